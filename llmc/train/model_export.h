// The weights of a model on the device, written so that other programs read them: as an llm.c model file, or as the
// weights of a Hugging Face GPT-2 folder. (Reading both: llmc/model/weight_source.h, which has the formats.)
//
// In the build's precision, one tensor at a time. Padding rows of the vocabulary are zero in llm.c's files and left out
// of Hugging Face's. Collective over the ranks that share the weights: all of them call it, one of them writes.
#pragma once

#include <string>

#include "llmc/io/file.h"
#include "llmc/model/stage.h"
#include "llmc/parallel/gather.h"

// All of the file or none of it.
void save_llmc_model(FileSystem& files, const std::string& path, const Stage& model, const WholeTensors& whole);

// config.json's content, and model.safetensors: GPT-2's names, linear layers [in, out].
std::string hugging_face_config(const ModelConfig& config);
void save_hugging_face_weights(FileSystem& files, const std::string& path, const Stage& model, const WholeTensors& whole);
