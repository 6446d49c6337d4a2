// Finds the model that --model names: a descriptor, an llm.c model file, a Hugging Face folder, a checkpoint, or the
// output folder of a run.
#pragma once

#include <memory>
#include <string>

#include "llmc/base/log.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/tokenizer/tokenizer.h"

// Opens the weights of `model`; returns null for a descriptor. A run's output folder is replaced in `model` by its
// newest checkpoint whose model verifies, with a warning for each one passed over. In a checkpoint, or an export with a
// manifest, all files of the model must verify; the ranks share the hashing, which is collective. Throws
// Error(bad_data) naming the file, or if a run's folder has no usable checkpoint. `state`: opens this state of the
// optimizer ("ema") in place of the weights. `ignored`: tensors that may lie beside those of a Hugging Face model
// (weight_source.h).
std::unique_ptr<WeightSource> find_weights(const FileSystem& files, std::string& model, const Log& log,
                                           const CheckpointRanks& ranks = {}, const std::string& state = "",
                                           const std::string& ignored = "");

// Wraps weights: reading a value that is not finite throws Error(bad_data) naming the tensor. Null stays null.
std::unique_ptr<WeightSource> only_finite(std::unique_ptr<WeightSource> weights);

// Returns where a model's tokenizer is: `requested` if that is not empty, else the model's folder (or that of its file)
// if it has a tokenizer; empty: none.
std::string tokenizer_of_model(const FileSystem& files, const std::string& model, const std::string& requested);

// Throws Error(bad_data) if the tokenizer has more ids than the model.
Tokenizer load_tokenizer(const std::string& where, const ModelConfig& model);
