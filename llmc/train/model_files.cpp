#include "llmc/train/model_files.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "llmc/base/error.h"

using Json = nlohmann::ordered_json;

namespace {

// ---------------------------------------------------------------------------------------------------------------------
// llm.c model files

constexpr std::int32_t llmc_magic = 20240326;
constexpr std::int32_t llmc_fp32 = 3, llmc_bf16 = 5;   // versions
constexpr std::uint64_t llmc_header_bytes = 1024;
using LlmcHeader = std::array<std::int32_t, 256>;

[[noreturn]] void bad_model(const std::string& path, const std::string& what) {
    throw Error(ErrorKind::bad_data, text(path, ": ", what),
                "--model takes a size (d12, gpt2:124M ...), an llm.c model file, or a Hugging Face GPT-2 folder.");
}

std::uint64_t llmc_element_bytes(const LlmcHeader& header) { return header[1] == llmc_bf16 ? 2 : 4; }

LlmcHeader read_llmc_header(const File& file) {
    if (file.size() < llmc_header_bytes)
        bad_model(file.path(), text("byte ", file.size(), ": ends inside its header of 1024 bytes"));
    LlmcHeader header;
    file.read_at(0, std::as_writable_bytes(std::span(header)));
    if (header[0] != llmc_magic)
        bad_model(file.path(), text("byte 0: magic number ", header[0], ", expected ", llmc_magic));
    if (header[1] != llmc_fp32 && header[1] != llmc_bf16) {
        bad_model(file.path(), text("byte 4: version ", header[1], ", expected 3 (fp32) or 5 (bf16)"));
    }
    return header;
}

ModelConfig llmc_config(const File& file) {
    const LlmcHeader header = read_llmc_header(file);
    ModelConfig config;
    config.max_seq_len = header[2];
    config.vocab_size = header[3];
    config.layers = header[4];
    config.heads = header[5];
    config.channels = header[6];
    config.padded_vocab_size = header[7];
    try {
        check_model_config(config);
    } catch (const Error& error) {
        bad_model(file.path(), text("bytes 8 to 31 are no model: ", error.message()));
    }
    const std::uint64_t expected =
        llmc_header_bytes + static_cast<std::uint64_t>(parameter_count(config)) * llmc_element_bytes(header);
    if (file.size() != expected) {
        bad_model(file.path(),
                  text("a model of these sizes makes a file of ", expected, " bytes, found ", file.size()));
    }
    return config;
}

// Calls visit(param) for every parameter in the order of llm.c's files: by kind, then by layer.
template <class Visit>
void in_llmc_order(const ParamTable& table, Visit visit) {
    for (int kind = 0; kind < param_kinds; kind++) {
        for (int param = 0; param < table.size(); param++) {
            if (static_cast<int>(table[param].kind) == kind) visit(param);
        }
    }
}

std::vector<float> read_floats(const File& file, std::uint64_t offset, std::size_t count, bool is_bf16) {
    std::vector<float> values(count);
    if (!is_bf16) {
        file.read_at(offset, std::as_writable_bytes(std::span(values)));
        return values;
    }
    std::vector<bf16> raw(count);
    file.read_at(offset, std::as_writable_bytes(std::span(raw)));
    std::transform(raw.begin(), raw.end(), values.begin(), [](bf16 value) { return static_cast<float>(value); });
    return values;
}

void load_llmc_model(const File& file, Gpt& model) {
    const bool is_bf16 = read_llmc_header(file)[1] == llmc_bf16;
    const std::uint64_t element_bytes = is_bf16 ? 2 : 4;
    std::uint64_t offset = llmc_header_bytes;
    in_llmc_order(model.table(), [&](int param) {
        const ParamInfo& info = model.table()[param];
        const std::size_t elements = static_cast<std::size_t>(info.tensor.elements());
        std::vector<float> values = read_floats(file, offset, elements, is_bf16);
        std::fill(values.begin() + static_cast<std::ptrdiff_t>(info.exported_elements()), values.end(), 0.0f);
        upload_tensor<floatX>(model.parameters(), param, values, model.stream());
        offset += elements * element_bytes;
    });
}

std::vector<floatX> in_build_precision(std::span<const float> values) {
    std::vector<floatX> result(values.size());
    std::transform(values.begin(), values.end(), result.begin(),
                   [](float value) { return static_cast<floatX>(value); });
    return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// Hugging Face folders

std::int64_t config_number(const Json& config, const std::string& path, const char* key) {
    if (!config.contains(key) || !config[key].is_number_integer()) {
        bad_model(path, text("no whole number \"", key, "\""));
    }
    return config[key].get<std::int64_t>();
}

ModelConfig folder_config(const FileSystem& files, const std::string& folder) {
    const std::string path = folder + "/config.json";
    const Json json = Json::parse(read_whole(files, path), nullptr, false);
    if (!json.is_object()) bad_model(path, "not a JSON object");
    const Json type = json.value("model_type", Json());
    if (type != "gpt2") bad_model(path, text("model_type is ", type.dump(), ", expected \"gpt2\""));
    ModelConfig config;
    config.layers = config_number(json, path, "n_layer");
    config.heads = config_number(json, path, "n_head");
    config.channels = config_number(json, path, "n_embd");
    config.max_seq_len = config_number(json, path, "n_positions");
    config.vocab_size = config_number(json, path, "vocab_size");
    config.padded_vocab_size = padded_vocab(config.vocab_size);
    try {
        check_model_config(config);
    } catch (const Error& error) {
        bad_model(path, error.message());
    }
    return config;
}

void load_folder_weights(const FileSystem& files, const std::string& folder, Gpt& model) {
    const SafetensorsFile weights(files, folder + "/model.safetensors");
    for (int param = 0; param < model.table().size(); param++) {
        const ParamInfo& info = model.table()[param];
        const TensorEntry* plain = weights.find(info.name);
        const TensorEntry& entry = plain != nullptr ? *plain : weights.entry("transformer." + info.name);

        const std::int64_t rows = info.exported_rows, cols = info.tensor.cols;
        std::vector<std::int64_t> shape{rows};
        if (info.is_matrix) shape = info.hf_transposed ? std::vector{cols, rows} : std::vector{rows, cols};
        if (entry.shape != shape) {
            auto show = [](const std::vector<std::int64_t>& sizes) {
                std::string list;
                for (std::int64_t size : sizes) list += text(list.empty() ? "" : ", ", size);
                return "[" + list + "]";
            };
            bad_model(weights.path(), text(entry.name, " has shape ", show(entry.shape), ", expected ", show(shape)));
        }
        std::vector<float> values = weights.read_as<float>(entry);
        if (info.hf_transposed) values = transposed(values, cols, rows);
        values.resize(static_cast<std::size_t>(info.tensor.elements()), 0.0f);
        upload_tensor<floatX>(model.parameters(), param, values, model.stream());
    }
}

bool is_folder(const std::string& path) { return std::filesystem::is_directory(path); }

}   // namespace

std::vector<float> transposed(std::span<const float> values, std::int64_t rows, std::int64_t cols) {
    std::vector<float> result(values.size());
    constexpr std::int64_t tile = 32;   // so that both sides stay in the cache
    for (std::int64_t row0 = 0; row0 < rows; row0 += tile) {
        for (std::int64_t col0 = 0; col0 < cols; col0 += tile) {
            for (std::int64_t row = row0; row < std::min(row0 + tile, rows); row++) {
                for (std::int64_t col = col0; col < std::min(col0 + tile, cols); col++) {
                    result[static_cast<std::size_t>(col * rows + row)] =
                        values[static_cast<std::size_t>(row * cols + col)];
                }
            }
        }
    }
    return result;
}

ModelConfig read_model_config(const FileSystem& files, const std::string& path) {
    if (is_folder(path)) return folder_config(files, path);
    return llmc_config(*files.open(path));
}

void load_model(const FileSystem& files, const std::string& path, Gpt& model) {
    const ModelConfig config = read_model_config(files, path);
    if (!(config == model.config())) {
        bad_model(path, text("holds ", describe(config), "; expected ", describe(model.config())));
    }
    if (is_folder(path)) {
        load_folder_weights(files, path, model);
    } else {
        load_llmc_model(*files.open(path), model);
    }
}

void save_llmc_model(FileSystem& files, const std::string& path, Gpt& model) {
    const ModelConfig& config = model.config();
    LlmcHeader header{};
    header[0] = llmc_magic;
    header[1] = sizeof(floatX) == 2 ? llmc_bf16 : llmc_fp32;
    const std::int64_t sizes[] = {config.max_seq_len, config.vocab_size, config.layers,
                                  config.heads,       config.channels,   config.padded_vocab_size};
    for (std::size_t i = 0; i < std::size(sizes); i++) header[2 + i] = static_cast<std::int32_t>(sizes[i]);

    const std::string temporary = path + ".tmp";
    {
        std::unique_ptr<File> file = files.create(temporary);
        file->write(std::as_bytes(std::span(header)));
        in_llmc_order(model.table(), [&](int param) {
            const std::vector<float> values = download_tensor(model.parameters(), param, model.stream());
            const std::vector<floatX> converted = in_build_precision(values);
            file->write(std::as_bytes(std::span(converted)));
        });
        file->sync();
    }
    files.rename(temporary, path);
    files.sync_folder(std::filesystem::path(path).parent_path().string());
}

std::string hugging_face_config(const ModelConfig& config) {
    const Json json{
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
        {"tie_word_embeddings", true},
        {"torch_dtype", sizeof(floatX) == 2 ? "bfloat16" : "float32"},
    };
    return json.dump(2) + "\n";
}

void save_hugging_face_weights(FileSystem& files, const std::string& path, Gpt& model) {
    const ParamTable& table = model.table();
    std::vector<TensorEntry> entries;
    for (const ParamInfo& info : table.all()) {
        TensorEntry entry;
        entry.name = info.name;
        entry.type = sizeof(floatX) == 2 ? TensorType::BF16 : TensorType::F32;
        entry.shape = {info.exported_rows};
        if (info.is_matrix)
            entry.shape.insert(info.hf_transposed ? entry.shape.begin() : entry.shape.end(), info.tensor.cols);
        entries.push_back(entry);
    }
    SafetensorsWriter writer(files, path, entries, {{"format", "pt"}});
    for (int param = 0; param < table.size(); param++) {
        const ParamInfo& info = table[param];
        std::vector<float> values = download_tensor(model.parameters(), param, model.stream());
        values.resize(static_cast<std::size_t>(info.exported_elements()));
        if (info.hf_transposed) values = transposed(values, info.exported_rows, info.tensor.cols);
        const std::vector<floatX> converted = in_build_precision(values);
        writer.write_values(std::span<const floatX>(converted));
    }
    writer.finish();
}
