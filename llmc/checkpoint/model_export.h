// Writes the weights of a model for other programs, in the build's precision: as an llm.c model file, or in a Hugging
// Face folder. (llmc/model/families/weight_source.h reads both, and has the formats.)
#pragma once

#include <string>

#include "llmc/io/file.h"
#include "llmc/io/safetensors.h"
#include "llmc/model/families/family.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/model/stage/stage.h"
#include "llmc/parallel/gather.h"
#include "llmc/tokenizer/tokenizer.h"

// Writes all of the file or none of it; padding rows of the vocabulary are zero. Collective over all ranks, of every
// pipeline stage: the first one writes, one tensor at a time.
void save_llmc_model(FileSystem& files, const std::string& path, const Stage& model, const Gatherer& gatherer);

constexpr TensorType parameter_type = sizeof(floatX) == 2 ? TensorType::BF16 : TensorType::F32;

// File of a Hugging Face folder that describes the model: config.json, and where the tokenizer is known (not null), so
// that texts begin and end where they should, generation_config.json, tokenizer_config.json and what else an imported
// model has said of its texts (llmc/tokenizer/files/files.h).
struct HuggingFaceFile {
    std::string name, content;
};
std::vector<HuggingFaceFile> hugging_face_files(const ModelConfig& config, TensorType type, const Tokenizer* tokenizer);

// Returns the safetensors file's tensors for a parameter, in the file's order: names, types and shapes (family.h).
std::vector<TensorEntry> hugging_face_entries(const ParamTable& table, const ParamInfo& info);

// Writes the tensors of a parameter; `values` has the parameter with its padding rows, stored [out, in].
template <class T>
void write_hugging_face(SafetensorsWriter& file, const ParamTable& table, const ParamInfo& info,
                        std::span<const T> values) {
    values = values.first(static_cast<std::size_t>(info.exported_elements()));
    if (!file_tensors(table, info).front().transposed) return file.write_values(values);
    const std::int64_t rows = info.exported_rows(), cols = info.tensor.cols;
    const std::int64_t strip = std::max<std::int64_t>(1, (1 << 20) / rows);   // columns that are converted at once
    for (std::int64_t first = 0; first < cols; first += strip) {
        const std::vector<T> columns = transposed(values, rows, cols, first, std::min(first + strip, cols));
        file.write_values(std::span(columns));
    }
}
