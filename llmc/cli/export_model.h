// `train_gpt export`: a model that there is, written for other programs. No device and no training is needed.
//
//   --to hf      a folder that Hugging Face's AutoModelForCausalLM and AutoTokenizer load: config.json,
//                generation_config.json, model.safetensors, and the tokenizer's files where there is one
//   --to llmc    llm.c's model file (weight_source.h has its byte table)
// All of it or nothing: what is written gets its name at the end. Weights keep their type unless --dtype says
// otherwise.
#pragma once

#include "llmc/io/file.h"
#include "llmc/run/options.h"

// Returns the exit code. Error(usage) where the output exists, or the format cannot hold the model.
int export_model(FileSystem& files, const Options& options);
