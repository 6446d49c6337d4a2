// `train_gpt export`: writes an existing model for other programs. Needs no device and no training.
//
//   --to hf      a folder that Hugging Face's AutoModelForCausalLM and AutoTokenizer load: config.json,
//                generation_config.json, model.safetensors, and the tokenizer's files where there is one
//   --to llmc    llm.c's model file (weight_source.h has its byte table)
// Writes all of it or nothing: the output gets its name at the end. Weights keep their type unless --dtype says
// otherwise.
#pragma once

#include "llmc/io/file.h"
#include "llmc/run/options/options.h"

// Runs the verb. Returns the exit code. Error(usage) where the output exists, or the format cannot hold the model.
int export_model(FileSystem& files, const Options& options);
