// Weights to and from files: llm.c's model files, and folders in Hugging Face's GPT-2 form (our checkpoints are such).
//
// llm.c model file, all little-endian:
//   byte 0      256 int32: [0] magic 20240326, [1] version 3 (fp32) or 5 (bf16), [2] maxT, [3] V, [4] L, [5] NH, [6] C,
//               [7] V padded to a multiple of 128, rest unused
//   byte 1024   wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb, each stacked
//               over the layers, matrices [out, in], wte with its padded rows
//
// Hugging Face folder: config.json (model_type gpt2), model.safetensors with GPT-2's names, with or without
// "transformer."; its linear layers [in, out]; V rows of wte, the tied lm_head.weight and masks (attn.bias,
// attn.masked_bias) ignored.
//
// Either may be fp32 or bf16 (folders also fp16) whatever the build's precision: fp32 weights are rounded to nearest in
// a bf16 build. Padding rows become zero. Anything wrong is Error(bad_data) naming file, place, what was found and
// expected.
#pragma once

#include <string>

#include "llmc/io/file.h"
#include "llmc/io/safetensors.h"
#include "llmc/model/gpt.h"

// The sizes of the model in a file or folder.
ModelConfig read_model_config(const FileSystem& files, const std::string& path);

// Its weights, into a model of those sizes.
void load_model(const FileSystem& files, const std::string& path, Gpt& model);

// An llm.c model file in the build's precision. All of it or none.
void save_llmc_model(FileSystem& files, const std::string& path, Gpt& model);

// config.json's content, and model.safetensors in the build's precision, for a Hugging Face folder.
std::string hugging_face_config(const ModelConfig& config);
void save_hugging_face_weights(FileSystem& files, const std::string& path, Gpt& model);

// One tensor [rows, cols] transposed: [cols, rows].
std::vector<float> transposed(std::span<const float> values, std::int64_t rows, std::int64_t cols);
