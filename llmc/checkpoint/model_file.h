// The model that --model names, wherever it takes one that exists: a descriptor, an llm.c model file, a Hugging Face
// folder, a checkpoint, or the output folder of a run.
#pragma once

#include <memory>
#include <string>

#include "llmc/base/log.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/tokenizer/tokenizer.h"

// The weights of `model`; none of a descriptor. A run's output folder becomes the newest of its checkpoints whose model
// verifies; what was passed over is told. Of a checkpoint, or an export with a manifest, all files that a model is read
// from must be what was written; several ranks share the hashing, which is collective. Error(bad_data) naming the file,
// or that a run's folder has no checkpoint that can be used. `state`: not the weights, but what a checkpoint has of
// them in this state of the optimizer ("ema"). `ignored`: tensors that may lie beside those of a Hugging Face model
// (weight_source.h).
std::unique_ptr<WeightSource> find_weights(const FileSystem& files, std::string& model, const Log& log,
                                           const CheckpointRanks& ranks = {}, const std::string& state = "",
                                           const std::string& ignored = "");

// The same weights; reading one that is not finite is Error(bad_data) naming the tensor. Null stays null.
std::unique_ptr<WeightSource> only_finite(std::unique_ptr<WeightSource> weights);

// Where the tokenizer of a model is: `asked` if that is not empty, else its folder, or that of its file, where there is
// one; empty: there is none.
std::string tokenizer_of_model(const FileSystem& files, const std::string& model, const std::string& asked);

// Error(bad_data) where it has more ids than the model.
Tokenizer load_tokenizer(const std::string& where, const ModelConfig& model);
