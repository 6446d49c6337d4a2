#include "llmc/train/model_export.h"

#include <algorithm>
#include <filesystem>

#include "llmc/base/json.h"
#include "llmc/io/safetensors.h"
#include "llmc/model/weight_source.h"

namespace {

// A matrix [rows, cols] as [cols, rows], in tiles so that both sides stay in the cache.
std::vector<float> transposed(std::span<const float> values, std::size_t rows, std::size_t cols) {
    std::vector<float> result(values.size());
    constexpr std::size_t tile = 32;
    for (std::size_t row0 = 0; row0 < rows; row0 += tile) {
        for (std::size_t col0 = 0; col0 < cols; col0 += tile) {
            for (std::size_t row = row0; row < std::min(row0 + tile, rows); row++) {
                for (std::size_t col = col0; col < std::min(col0 + tile, cols); col++) {
                    result[col * rows + row] = values[row * cols + col];
                }
            }
        }
    }
    return result;
}

}   // namespace

void save_llmc_model(FileSystem& files, const std::string& path, const Stage& model, const WholeTensors& whole) {
    if (!whole.writes()) {
        for (int param : llmc_order(model.table())) whole.read(model.parameters(), param);
        return;
    }
    const std::string temporary = path + ".tmp";
    write_llmc_model(files, temporary, model.config(), dtype_of<floatX>,
                     [&](int param) { return whole.read(model.parameters(), param); });
    files.rename(temporary, path);
    files.sync_folder(std::filesystem::path(path).parent_path().string());
}

std::string hugging_face_config(const ModelConfig& config) {
    const OrderedJson json{
        {"architectures", {"GPT2LMHeadModel"}},
        {"model_type", "gpt2"},
        {"n_layer", config.layers},
        {"n_head", config.heads},
        {"n_embd", config.channels},
        {"n_positions", config.max_seq_len},
        {"n_ctx", config.max_seq_len},
        {"vocab_size", config.vocab_size},
        {"activation_function", "gelu_new"},
        {"layer_norm_epsilon", 1e-5},
        {"initializer_range", 0.02},
        {"resid_pdrop", 0.0},
        {"embd_pdrop", 0.0},
        {"attn_pdrop", 0.0},
        {"tie_word_embeddings", config.tied},
        {"torch_dtype", sizeof(floatX) == 2 ? "bfloat16" : "float32"},
    };
    return to_text(json, 2) + "\n";
}

void save_hugging_face_weights(FileSystem& files, const std::string& path, const Stage& model,
                               const WholeTensors& whole) {
    const ParamTable& table = model.table();
    std::vector<TensorEntry> entries;   // Hugging Face takes names without prefix, but not beside lm_head's
    for (const ParamInfo& info : table.all()) {
        TensorEntry entry;
        entry.name = table.config().tied || info.kind == Param::lmhead ? info.name : "transformer." + info.name;
        entry.type = sizeof(floatX) == 2 ? TensorType::BF16 : TensorType::F32;
        entry.shape = {info.exported_rows};
        if (info.is_matrix) {
            entry.shape.insert(info.hf_transposed ? entry.shape.begin() : entry.shape.end(), info.tensor.cols);
        }
        entries.push_back(entry);
    }
    std::optional<SafetensorsWriter> writer;
    if (whole.writes()) writer.emplace(files, path, entries, TensorMetadata{{"format", "pt"}});
    for (int param = 0; param < table.size(); param++) {
        const ParamInfo& info = table[param];
        std::vector<float> values = whole.read(model.parameters(), param);
        if (!writer) continue;
        values.resize(static_cast<std::size_t>(info.exported_elements()));
        if (info.hf_transposed) {
            values = transposed(values, static_cast<std::size_t>(info.exported_rows),
                                static_cast<std::size_t>(info.tensor.cols));
        }
        const std::vector<floatX> converted(values.begin(), values.end());   // exact: it was this type on the device
        writer->write_values(std::span(converted));
    }
    if (writer) writer->finish();
}
