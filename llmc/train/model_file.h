// The model that --model names, wherever it takes one that exists: a descriptor, an llm.c model file, a Hugging Face
// folder, a checkpoint, or the output folder of a run.
#pragma once

#include <memory>
#include <string>

#include "llmc/base/log.h"
#include "llmc/model/weight_source.h"
#include "llmc/tokenizer/tokenizer.h"

// A run's output folder becomes the newest of its checkpoints that verifies; what was passed over is told. Everything
// else stays as it is. Error(bad_data) where a run's folder has no checkpoint that can be used.
std::string resolve_model(const FileSystem& files, const std::string& model, const Log& log);

// Its weights; of a checkpoint, or an export with a manifest, only if all files are what was written: Error(bad_data)
// naming the file.
std::unique_ptr<WeightSource> open_intact_weights(const FileSystem& files, const std::string& model);

// Where the tokenizer of a model is: `asked` if that is not empty, else its folder, or that of its file, where there is
// one; empty: there is none.
std::string tokenizer_of_model(const FileSystem& files, const std::string& model, const std::string& asked);

// Error(bad_data) where it has more ids than the model.
Tokenizer load_tokenizer(const std::string& where, const ModelConfig& model);
