#include "llmc/model/families/weight_source.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "llmc/base/error.h"
#include "llmc/base/rng.h"
#include "llmc/io/safetensors.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/mesh/shard.h"

namespace {

const ModelConfig small = custom_model_config(2, 2, 16, 8, 50);

// Distinct values that bf16 holds exactly; padding rows zero.
std::vector<float> values_of(const ParamTable& table, int param) {
    std::vector<float> values(static_cast<std::size_t>(table[param].tensor.elements()), 0.0f);
    for (std::size_t i = 0; i < static_cast<std::size_t>(table[param].exported_elements()); i++) {
        values[i] = static_cast<float>(param) + static_cast<float>(i % 128) / 128.0f;
        std::uint32_t bits;
        std::memcpy(&bits, &values[i], 4);
        bits &= 0xffff0000u;
        std::memcpy(&values[i], &bits, 4);
    }
    return values;
}

std::string message_of(const std::function<void()>& action, ErrorKind expected = ErrorKind::bad_data) {
    try {
        action();
    } catch (const Error& error) {
        CHECK(error.kind() == expected);
        return error.what();
    }
    return "";
}

constexpr const char* small_config =
    R"({"model_type":"gpt2","n_layer":2,"n_head":2,"n_embd":16,"n_positions":8,"vocab_size":50,"n_inner":null})";

// A Hugging Face folder of the same values; `prefix` before each name, `extra` tensors besides: zeros, but a classifier
// copies the embedding.
void write_hugging_face(const std::string& folder, const ParamTable& table, const std::string& prefix,
                        const std::vector<TensorEntry>& extra, TensorType type = TensorType::F32,
                        bool copies_classifier = true) {
    std::vector<TensorEntry> entries;
    for (const ParamInfo& param : table.all()) {
        TensorEntry entry{prefix + param.name, type, {param.exported_rows()}, 0};
        if (param.is_matrix()) entry.shape.push_back(param.tensor.cols);
        if (param.hf_transposed) std::swap(entry.shape[0], entry.shape[1]);
        entries.push_back(entry);
    }
    entries.insert(entries.end(), extra.begin(), extra.end());
    SafetensorsWriter writer(real_files().create(folder + "/model.safetensors"), entries, {{"format", "pt"}});
    for (int i = 0; i < table.size(); i++) {
        const std::vector<float> ours = values_of(table, i);
        const auto rows = static_cast<std::size_t>(table[i].exported_rows()),
                   cols = static_cast<std::size_t>(table[i].tensor.cols);
        for (std::size_t k = 0; k < rows * cols; k++) {
            const float value = table[i].hf_transposed ? ours[k % rows * cols + k / rows] : ours[k];
            std::uint32_t bits;
            std::memcpy(&bits, &value, 4);
            const std::uint16_t high = static_cast<std::uint16_t>(bits >> 16);
            if (type == TensorType::BF16)
                writer.write_values(std::span(&high, 1));
            else
                writer.write_values(std::span(&value, 1));
        }
    }
    for (const TensorEntry& entry : extra) {
        if (copies_classifier && entry.name == "lm_head.weight") {
            const std::vector<float> embedding = values_of(table, 0);
            writer.write_values(std::span(embedding).first(static_cast<std::size_t>(table[0].exported_elements())));
        } else {
            writer.write(std::vector<std::byte>(entry.bytes()));
        }
    }
    writer.finish();
    write_whole(real_files(), folder + "/config.json", small_config);
}

void check_equal(const WeightSource& source, const ParamTable& table) {
    CHECK(source.config() == table.config());
    for (int i = 0; i < table.size(); i++) {
        INFO(table[i].name);
        CHECK(source.read(table[i]) == values_of(table, i));
    }
}

// Tensors of a file, by name.
struct Stored {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
};
using StoredTensors = std::map<std::string, Stored>;

// A mixture of a family of Hugging Face's, and its own words in names of tensors.
struct MixtureFamily {
    const char *type, *mlp, *gate, *up, *down;
};
constexpr MixtureFamily mixture_families[] = {{"mixtral", "block_sparse_moe", "w1", "w3", "w2"},
                                              {"qwen3_moe", "mlp", "gate_proj", "up_proj", "down_proj"},
                                              {"olmoe", "mlp", "gate_proj", "up_proj", "down_proj"}};

ModelConfig small_mixture(const MixtureFamily& family) {
    ModelConfig config = custom_model_config(2, 2, 16, 8, 50), kind = find_family(family.type)->implied;
    kind.layers = config.layers, kind.heads = config.heads, kind.channels = config.channels;
    kind.max_seq_len = config.max_seq_len, kind.vocab_size = config.vocab_size;
    kind.padded_vocab_size = config.padded_vocab_size, kind.own_kv_heads = 1, kind.own_head_size = 16;
    kind.experts = 4, kind.own_expert_width = 24, kind.model_type = family.type;
    return kind;
}

// Returns random tensors of a model, each expert's apart.
StoredTensors experts_apart(const ParamTable& table) {
    StoredTensors all;
    for (const ParamInfo& param : table.all()) {
        for (const FileTensor& tensor : file_tensors(table, param)) {
            std::vector<float> values(static_cast<std::size_t>(tensor.rows * param.tensor.cols));
            std::uint64_t counter = name_hash(tensor.name);
            for (float& value : values) value = static_cast<float>(mix64(counter++) >> 40);
            all[tensor.name] = {tensor.shape, values};
        }
    }
    return all;
}

// Returns the same tensors as transformers 5 has them in memory: `gate_up_proj` (experts, 2F, C), an expert's gates
// before its ups, and `down_proj` (experts, C, F); all names under "mlp.".
StoredTensors experts_stacked(StoredTensors tensors, const MixtureFamily& family, const ModelConfig& config) {
    const std::int64_t E = config.experts, F = config.expert_width(), C = config.channels;
    for (std::int64_t l = 0; l < config.layers; l++) {
        const std::string layer = text("model.layers.", l, "."), old = layer + family.mlp, mlp = layer + "mlp";
        Stored both{{E, 2 * F, C}, {}}, down{{E, C, F}, {}};
        for (std::int64_t e = 0; e < E; e++) {
            auto append = [&](Stored& to, const char* matrix) {
                const auto node = tensors.extract(text(old, ".experts.", e, ".", matrix, ".weight"));
                to.values.insert(to.values.end(), node.mapped().values.begin(), node.mapped().values.end());
            };
            append(both, family.gate);
            append(both, family.up);
            append(down, family.down);
        }
        tensors[mlp + ".experts.gate_up_proj"] = both;
        tensors[mlp + ".experts.down_proj"] = down;
        auto router = tensors.extract(old + ".gate.weight");
        router.key() = mlp + ".gate.weight";
        tensors.insert(std::move(router));
    }
    return tensors;
}

// Writes a folder whose tensors are dealt out to files in turn.
void write_folder(const std::string& folder, const StoredTensors& tensors, const ModelConfig& config, int files = 1) {
    Json map = Json::object();
    for (int file = 0; file < files; file++) {
        const std::string name = files == 1 ? "model.safetensors" : text("part", file, ".safetensors");
        std::vector<TensorEntry> entries;
        int i = 0;
        for (const auto& [tensor, stored] : tensors) {
            if (i++ % files == file) entries.push_back({tensor, TensorType::F32, stored.shape, 0});
        }
        SafetensorsWriter writer(real_files().create(folder + "/" + name), entries, {});
        for (const TensorEntry& entry : entries) {
            writer.write_values(std::span(tensors.at(entry.name).values));
            map.add(entry.name, name);
        }
        writer.finish();
    }
    if (files > 1) {
        write_whole(real_files(), folder + "/model.safetensors.index.json",
                    to_text(Json::object({{"weight_map", map}})));
    }
    write_whole(real_files(), folder + "/config.json", to_text(hugging_face_config(config, "float32")));
}

}   // namespace

TEST_CASE("weight_source: llm.c model files are written and read back, in both types") {
    TemporaryFolder folder;
    const ParamTable table(small);
    for (DType type : {DType::fp32, DType::bf16}) {
        const std::string path = folder / "model.bin";
        write_llmc_model(real_files(), path, small, type, [&](int param) { return values_of(table, param); });
        const std::size_t size = type == DType::fp32 ? 4 : 2;
        CHECK(read_whole(real_files(), path).size() == 1024 + static_cast<std::size_t>(table.elements()) * size);
        check_equal(*open_weights(real_files(), path), table);
    }
}

TEST_CASE("weight_source: the layout of an llm.c file is the documented one") {
    TemporaryFolder folder;
    const ParamTable table(small);
    write_llmc_model(real_files(), folder / "model.bin", small, DType::fp32,
                     [&](int param) { return values_of(table, param); });
    const std::string bytes = read_whole(real_files(), folder / "model.bin");
    std::int32_t header[8];
    std::memcpy(header, bytes.data(), sizeof header);
    const std::int32_t expected[8] = {20240326, 3, 8, 50, 2, 2, 16, 128};
    CHECK(std::equal(header, header + 8, expected));
    // wte, wpe, then ln1w of both layers, then ln1b of both
    const std::size_t ln1w = 1024 + 4 * (128 * 16 + 8 * 16);
    auto first_value = [&](std::size_t at) {
        float value;
        std::memcpy(&value, bytes.data() + at, 4);
        return value;
    };
    CHECK(first_value(ln1w) == static_cast<float>(table.index("ln_1.weight", 0)));
    CHECK(first_value(ln1w + 4 * 16) == static_cast<float>(table.index("ln_1.weight", 1)));
    CHECK(first_value(ln1w + 4 * 32) == static_cast<float>(table.index("ln_1.bias", 0)));
}

TEST_CASE("weight_source: damaged llm.c files are refused or hold a model, 2,000 mutants") {
    TemporaryFolder folder;
    const ParamTable table(small);
    const std::string path = folder / "model.bin";
    write_llmc_model(real_files(), path, small, DType::bf16, [&](int param) { return values_of(table, param); });
    const std::string good = read_whole(real_files(), path);
    std::uint64_t counter = 0;
    auto draw = [&](std::uint64_t n) { return mix64(0x11c + counter++) % n; };
    int refused = 0;
    for (int i = 0; i < 2000; i++) {
        std::string bytes = good;
        for (std::uint64_t changes = 1 + draw(2); changes > 0; changes--) {
            static constexpr std::int32_t numbers[] = {0, -1,  1,       2,       3,         5,
                                                       8, 128, 1 << 16, 1 << 28, INT32_MAX, INT32_MIN};
            const std::size_t at = draw(9) * 4;   // an int of the header, the first past those that mean something too
            const std::int32_t number = numbers[draw(std::size(numbers))];
            switch (draw(5)) {
                case 0: std::memcpy(bytes.data() + at, &number, 4); break;
                case 1: bytes[at + draw(4)] ^= static_cast<char>(1 << draw(8)); break;
                case 2: bytes[draw(bytes.size())] ^= static_cast<char>(1 << draw(8)); break;
                case 3: bytes.resize(std::max<std::size_t>(draw(bytes.size()), 40)); break;
                case 4: bytes.append(1 + draw(100), 'x'); break;
            }
        }
        write_whole(real_files(), path, bytes);
        const std::string why = message_of([&] {
            const std::unique_ptr<WeightSource> source = open_weights(real_files(), path);
            const ParamTable own(source->config());
            for (const ParamInfo& param : own.all()) {
                CHECK(source->read(param).size() == static_cast<std::size_t>(param.tensor.elements()));
            }
        });
        if (why.empty()) continue;
        refused++;
        CHECK(why.find(path) != std::string::npos);
    }
    CHECK(refused > 1000);
}

TEST_CASE("weight_source: broken llm.c files are named with the place that is wrong") {
    TemporaryFolder folder;
    const ParamTable table(small);
    const std::string path = folder / "model.bin";
    write_llmc_model(real_files(), path, small, DType::bf16, [&](int param) { return values_of(table, param); });
    const std::string good = read_whole(real_files(), path);
    auto with = [&](std::size_t index, std::int32_t value) {
        std::string bytes = good;
        std::memcpy(bytes.data() + 4 * index, &value, 4);
        write_whole(real_files(), path, bytes);
        return message_of([&] { open_weights(real_files(), path); });
    };
    CHECK(with(0, 7).find("byte 0: the file begins with 7") != std::string::npos);
    CHECK(with(1, 4).find("version 4, expected 3 (fp32) or 5 (bf16)") != std::string::npos);
    CHECK(with(4, -1).find("byte 16: a size of -1") != std::string::npos);
    CHECK(with(5, 3).find("3 heads do not divide") != std::string::npos);
    CHECK(with(7, 50).find("padded vocabulary of 50, expected 128") != std::string::npos);
    CHECK(with(4, 1 << 23).find("8388608 layers of 16 channels need more than") != std::string::npos);
    CHECK(with(4, 1 << 28).find("--layers 268435456") != std::string::npos);
    CHECK(with(4, 3).find("needs") != std::string::npos);   // one layer more than the file holds
    CHECK(with(6, 1 << 28).find("byte") != std::string::npos);
    write_whole(real_files(), path, good.substr(0, 1000));
    CHECK(message_of([&] { open_weights(real_files(), path); }).find("a header has 1024") != std::string::npos);
    CHECK(message_of([&] { open_weights(real_files(), folder / "none"); }, ErrorKind::io) != "");
}

TEST_CASE("weight_source: Hugging Face folders, with and without prefix, fp32 and bf16, masks ignored") {
    const ParamTable table(small);
    for (const char* prefix : {"", "transformer."}) {
        for (TensorType type : {TensorType::F32, TensorType::BF16}) {
            TemporaryFolder folder;
            write_hugging_face(folder.path(), table, prefix,
                               {{std::string(prefix) + "h.0.attn.bias", TensorType::BOOL, {1, 1, 8, 8}, 0},
                                {"lm_head.weight", TensorType::F32, {50, 16}, 0}},
                               type);
            check_equal(*open_weights(real_files(), folder.path()), table);
        }
    }
}

TEST_CASE("weight_source: a tied classifier that is no copy of the embedding is refused") {
    const ParamTable table(small);
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{50, 16}, {49, 16}}) {
        TemporaryFolder folder;
        write_hugging_face(folder.path(), table, "", {{"lm_head.weight", TensorType::F32, shape, 0}}, TensorType::F32,
                           false);
        const std::string message = message_of([&] { open_weights(real_files(), folder.path()); });
        CHECK(message.find(folder / "model.safetensors") != std::string::npos);
        CHECK(message.find("'lm_head.weight' differs from 'wte.weight'") != std::string::npos);
    }
}

TEST_CASE("weight_source: tensors that the model has no place for are refused by name, unless a pattern has them") {
    const ParamTable table(small);
    auto message = [&](const std::vector<std::string>& names, const std::string& ignored = "",
                       const char* prefix = "") {
        TemporaryFolder folder;
        std::vector<TensorEntry> extra;
        for (const std::string& name : names) extra.push_back({name, TensorType::F32, {16}, 0});
        write_hugging_face(folder.path(), table, prefix, extra);
        return message_of([&] { open_weights(real_files(), folder.path(), ignored); });
    };
    auto has = [](const std::string& text, const char* what) { return text.find(what) != std::string::npos; };
    for (const char* name : {"h.2.ln_1.weight", "h.0.attn.q_norm.weight", "h.1.attn.q_proj.bias", "lm_head.bias",
                             "h.0.attn.rotary_emb.inv_freq", "transformer.h.5.mlp.c_fc.weight", "masked_bias"}) {
        INFO(name);
        CHECK(has(message({name}), text("config.json has no tensor '", name, "'").c_str()));
        CHECK(has(message({name}), "--ignore-tensors"));
        CHECK(message({name}, name) == "");
        CHECK(message({name}, "other,*") == "");
        CHECK(has(message({name}, "h,other"), name));
    }
    for (const char* prefix : {"", "transformer."}) {
        CHECK(message({std::string(prefix) + "h.0.attn.bias", std::string(prefix) + "h.1.attn.masked_bias"}, "",
                      prefix) == "");
    }
    CHECK(message({"h.2.ln_1.weight", "h.2.ln_1.bias", "x"}, "h.2.*,x") == "");
    CHECK(has(message({"h.2.ln_1.weight", "y", "x"}, "h.2.*"), "no tensor 'x', 'y'"));
    std::vector<std::string> many;
    for (int i = 0; i < 11; i++) many.push_back(text("a", 10 + i));
    CHECK(has(message(many), "'a16', 'a17' (nor 3 more)"));
}

TEST_CASE("weight_source: a Llama's inverse frequencies are passed over, layers, biases and norms are not") {
    ModelConfig config = small;
    config.norm = NormKind::rms, config.positions = PositionKind::rotary, config.mlp = MlpKind::swiglu;
    config.bias = Bias::none, config.own_head_size = 16, config.own_mlp_width = 32, config.tied = true;
    const ParamTable table(config);
    auto message = [&](const std::string& name) {
        TemporaryFolder folder;
        std::vector<TensorEntry> entries;
        for (const ParamInfo& param : table.all()) {
            for (const FileTensor& tensor : file_tensors(table, param)) {
                entries.push_back({tensor.name, TensorType::F32, tensor.shape, 0});
            }
        }
        entries.push_back({name, TensorType::F32, {8}, 0});
        SafetensorsWriter writer(real_files().create(folder / "model.safetensors"), entries, {});
        for (const TensorEntry& entry : entries) writer.write(std::vector<std::byte>(entry.bytes()));
        writer.finish();
        write_whole(real_files(), folder / "config.json", to_text(hugging_face_config(config, "float32")));
        return message_of([&] { open_weights(real_files(), folder.path()); });
    };
    CHECK(message("model.layers.0.self_attn.rotary_emb.inv_freq") == "");
    CHECK(message("model.rotary_emb.inv_freq").empty());
    for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.q_norm.weight",
                             "model.layers.2.input_layernorm.weight", "model.layers.0.mlp.experts.0.up_proj.weight",
                             "model.layers.0.attn.bias"}) {
        INFO(name);
        CHECK(message(name).find(text("has no tensor '", name, "'")) != std::string::npos);
    }
}

TEST_CASE("weight_source: the file of an element is that of its block of rows") {
    ModelConfig config = small;
    config.norm = NormKind::rms, config.positions = PositionKind::rotary, config.mlp = MlpKind::swiglu;
    config.bias = Bias::none, config.own_head_size = 16, config.own_mlp_width = 32, config.tied = true;
    const ParamTable table(config);
    TemporaryFolder folder;
    Json map = Json::object();
    auto in_second = [](const std::string& name) {
        return name.find("k_proj") != std::string::npos || name.find("up_proj") != std::string::npos;
    };
    for (const std::string file : {"one", "two"}) {   // keys and ups are in the second file
        std::vector<TensorEntry> entries;
        for (const ParamInfo& param : table.all()) {
            for (const FileTensor& tensor : file_tensors(table, param)) {
                if (in_second(tensor.name) != (file == "two")) continue;
                entries.push_back({tensor.name, TensorType::F32, tensor.shape, 0});
                map.add(tensor.name, file + ".safetensors");
            }
        }
        SafetensorsWriter writer(real_files().create(folder / (file + ".safetensors")), entries, {});
        for (const TensorEntry& entry : entries) writer.write(std::vector<std::byte>(entry.bytes()));
        writer.finish();
    }
    write_whole(real_files(), folder / "model.safetensors.index.json", to_text(Json::object({{"weight_map", map}})));
    write_whole(real_files(), folder / "config.json", to_text(hugging_face_config(config, "float32")));
    const auto weights = open_weights(real_files(), folder.path());
    for (const char* name : {"attn.c_attn.weight", "mlp.c_fc.weight", "ln_1.weight"}) {
        const ParamInfo& param = table[table.index(name, 1)];
        INFO(param.name);
        for (const FileTensor& tensor : file_tensors(table, param)) {
            const std::string expected = folder / (in_second(tensor.name) ? "two.safetensors" : "one.safetensors");
            CHECK(weights->file_of(param, tensor.first_row * param.tensor.cols) == expected);
            CHECK(weights->file_of(param, (tensor.first_row + tensor.rows) * param.tensor.cols - 1) == expected);
        }
    }
}

TEST_CASE("weight_source: the biases of a Qwen2's queries, keys and values are read from a tensor each") {
    ModelConfig config = custom_model_config(2, 4, 64, 8, 50);
    config.norm = NormKind::rms, config.positions = PositionKind::rotary, config.mlp = MlpKind::swiglu;
    config.bias = Bias::qkv, config.own_kv_heads = 2;
    const ParamTable table(config);
    const StoredTensors tensors = experts_apart(table);
    const TemporaryFolder folder;
    write_folder(folder.path(), tensors, config, 2);
    const auto weights = open_weights(real_files(), folder.path());
    CHECK(std::string(weights->config().model_type) == "qwen2");
    CHECK(weights->config() == config);
    std::vector<float> expected;
    for (const auto& [name, rows] : {std::pair("q", 64), {"k", 32}, {"v", 32}}) {
        const Stored& stored = tensors.at(text("model.layers.1.self_attn.", name, "_proj.bias"));
        CHECK(stored.shape == std::vector<std::int64_t>{rows});
        expected.insert(expected.end(), stored.values.begin(), stored.values.end());
    }
    CHECK(weights->read(table[table.index("attn.c_attn.bias", 1)]) == expected);
    for (const char* name : {"attn.c_proj.bias", "mlp.c_fc.bias", "mlp.c_proj.bias"}) CHECK(table.find(name, 1) == -1);
}

TEST_CASE("weight_source: all experts of a layer in one tensor are the same model as each in its own") {
    for (const MixtureFamily& family : mixture_families) {
        INFO(std::string(family.type));
        const ModelConfig config = small_mixture(family);
        const ParamTable table(config);
        const StoredTensors apart = experts_apart(table);
        const TemporaryFolder expected_folder;
        write_folder(expected_folder.path(), apart, config);
        const auto expected = open_weights(real_files(), expected_folder.path());
        for (const int files : {1, 3}) {
            const TemporaryFolder folder;
            write_folder(folder.path(), experts_stacked(apart, family, config), config, files);
            const auto weights = open_weights(real_files(), folder.path());
            CHECK(weights->config() == expected->config());
            CHECK(weights->type() == DType::fp32);
            for (const ParamInfo& param : table.all()) {
                INFO(param.name);
                CHECK(weights->read(param) == expected->read(param));
                const std::string file = weights->file_of(param, param.exported_elements() - 1);
                CHECK(file.starts_with(folder / (files == 1 ? "model.safetensors" : "part")));
            }
        }
    }
}

TEST_CASE("weight_source: of experts in one tensor a rank keeps its own, or under tensor parallelism all") {
    for (const MixtureFamily& family : mixture_families) {
        INFO(std::string(family.type));
        const ModelConfig config = small_mixture(family);
        const ParamTable table(config);
        const StoredTensors apart = experts_apart(table);
        const TemporaryFolder folder;
        write_folder(folder.path(), experts_stacked(apart, family, config), config);
        const auto weights = open_weights(real_files(), folder.path());
        for (const auto& [name, matrices] : {std::pair("mlp.experts.c_fc.weight", std::vector{family.gate, family.up}),
                                             std::pair("mlp.experts.c_proj.weight", std::vector{family.down})}) {
            const ParamInfo& param = table[table.index(name, 1)];
            const std::vector<float> all = weights->read(param);
            for (const MeshShape& mesh :
                 {MeshShape{.dp = 2, .ep = 2}, MeshShape{.tp = 2, .ep = 2}, MeshShape{.tp = 2}}) {
                const MeshCoordinates last{.dp = mesh.dp - 1, .tp = mesh.tp - 1};
                std::vector<float> held, expected;
                for (const OwnedRange& range : held_ranges(param.tensor, mesh, last)) {
                    for_runs(range, [&](std::int64_t global, std::int64_t, std::int64_t count) {
                        held.insert(held.end(), all.begin() + global, all.begin() + global + count);
                    });
                }
                for (std::int64_t e = mesh.ep == 2 ? config.experts / 2 : 0; e < config.experts; e++) {
                    for (const char* matrix : matrices) {
                        const std::vector<float>& values =
                            apart.at(text("model.layers.1.", family.mlp, ".experts.", e, ".", matrix, ".weight"))
                                .values;
                        expected.insert(expected.end(), values.begin(), values.end());
                    }
                }
                CHECK(held == expected);
            }
        }
    }
}

TEST_CASE("weight_source: experts in one tensor beside single ones, or in another shape, are refused by name") {
    for (const MixtureFamily& family : mixture_families) {
        INFO(std::string(family.type));
        const ModelConfig config = small_mixture(family);
        const StoredTensors apart = experts_apart(ParamTable(config));
        auto check = [&](const std::function<void(StoredTensors&)>& change, const std::string& told) {
            StoredTensors tensors = experts_stacked(apart, family, config);
            change(tensors);
            for (const int files : {1, 2}) {
                const TemporaryFolder folder;
                write_folder(folder.path(), tensors, config, files);
                const std::string message = message_of([&] { open_weights(real_files(), folder.path()); });
                CAPTURE(message);
                CHECK(message.find(told) != std::string::npos);
            }
        };
        const std::string one = text("model.layers.1.", family.mlp, ".experts.3.", family.down, ".weight");
        const std::string in = "model.layers.0.mlp.experts.gate_up_proj", out = "model.layers.1.mlp.experts.down_proj";
        check([&](StoredTensors& tensors) { tensors[one] = apart.at(one); },
              text("tensor '", in, "' holds all experts of its layer, but '", one, "' in "));
        check(
            [&](StoredTensors& tensors) {   // every other layer in the other form
                for (const auto& [name, stored] : apart) {
                    if (name.starts_with(text("model.layers.1.", family.mlp, ".experts."))) tensors[name] = stored;
                }
                std::erase_if(tensors, [](const auto& tensor) {
                    return tensor.first.starts_with("model.layers.1.mlp.experts.") && tensor.first.ends_with("_proj");
                });
            },
            text("tensor '", in, "' holds all experts of its layer, but '"));
        check([&](StoredTensors& tensors) { tensors.erase(out); }, text("there is no tensor '", out, "'"));
        check(
            [&](StoredTensors& tensors) {
                tensors[in].shape = {4, 16, 48};
            },   // [in, out]
            text("tensor '", in, "' has the shape [4,16,48], expected by config.json [4,48,16]"));
        check(
            [&](StoredTensors& tensors) {
                tensors[out].shape = {64, 24};
            },
            text("tensor '", out, "' has the shape [64,24], expected by config.json [4,16,24]"));
    }
}

TEST_CASE("weight_source: doubles are converted, types without numbers refused where the model needs them") {
    const ParamTable table(small);
    auto write = [&](const TemporaryFolder& folder, TensorType first_type, const std::vector<TensorEntry>& extra) {
        std::vector<TensorEntry> entries;
        for (const ParamInfo& param : table.all()) {
            entries.push_back({param.name, entries.empty() ? first_type : TensorType::F32, param.file_shape(true), 0});
        }
        entries.insert(entries.end(), extra.begin(), extra.end());
        SafetensorsWriter writer(real_files().create(folder / "model.safetensors"), entries, {});
        for (const TensorEntry& entry : entries) {
            if (entry.type != TensorType::F64) {
                writer.write(std::vector<std::byte>(entry.bytes()));
                continue;
            }
            const std::vector<double> values(static_cast<std::size_t>(entry.elements()), 0.1);
            writer.write_values(std::span(values));
        }
        writer.finish();
        write_whole(real_files(), folder / "config.json", small_config);
    };
    TemporaryFolder doubles;
    write(doubles, TensorType::F64, {{"lm_head.weight", TensorType::F64, {50, 16}, 0}});   // a copy of the embedding
    const auto source = open_weights(real_files(), doubles.path());
    CHECK(source->read(table[0])[17] == 0.1f);
    CHECK(source->type() == DType::fp32);
    for (const TensorType type : {TensorType::F8_E4M3, TensorType::C64, TensorType::F4, TensorType::I8}) {
        TemporaryFolder needed, beside;
        write(needed, type, {});
        const std::string message = message_of([&] { open_weights(real_files(), needed.path()); });
        CHECK(message.find(text("tensor 'wte.weight' is ", name_of(type), ": type not supported")) !=
              std::string::npos);
        CHECK(message.find("not a valid") == std::string::npos);
        write(beside, TensorType::F32, {{"h.0.attn.bias", type, {2, 4}, 0}, {"scale", type, {8}, 0}});
        CHECK(message_of([&] { open_weights(real_files(), beside.path(), "scale"); }) == "");
    }
}

TEST_CASE("weight_source: what is not there and spelled like a name is none of the known models") {
    TemporaryFolder folder;
    for (const char* name : {"gpt2", "gpt2-xl", "124M", ""}) {
        const std::string message = message_of([&] { open_weights(real_files(), name); }, ErrorKind::usage);
        CHECK(message.find(text("no model named '", name, "'")) != std::string::npos);
        CHECK(message.find("gpt2:124M") != std::string::npos);
    }
    CHECK(message_of([&] { open_weights(real_files(), folder / "gpt2"); }, ErrorKind::io) != "");
    CHECK(message_of([&] { open_weights(real_files(), "gpt2.bin"); }, ErrorKind::io) != "");
}

TEST_CASE("weight_source: a Hugging Face folder whose classifier is not tied") {
    ModelConfig config = small;
    config.tied = false;
    const ParamTable table(config);
    TemporaryFolder folder;
    write_hugging_face(folder.path(), table, "", {});
    std::string json = small_config;
    json.replace(json.rfind('}'), 1, ",\"tie_word_embeddings\":false}");
    write_whole(real_files(), folder / "config.json", json);
    check_equal(*open_weights(real_files(), folder.path()), table);
    json.replace(json.find("false"), 5, "\"no\"");
    write_whole(real_files(), folder / "config.json", json);
    CHECK(message_of([&] { open_weights(real_files(), folder.path()); }).find("expected true or false") !=
          std::string::npos);
    // null: as where nothing is said
    TemporaryFolder tied;
    write_hugging_face(tied.path(), ParamTable(small), "", {});
    json.replace(json.find("\"no\""), 4, "null");
    write_whole(real_files(), tied / "config.json", json);
    check_equal(*open_weights(real_files(), tied.path()), ParamTable(small));
    // without its tensor
    json.replace(json.rfind("null"), 4, "false");
    write_whole(real_files(), tied / "config.json", json);
    CHECK(message_of([&] { open_weights(real_files(), tied.path()); }).find("no tensor 'lm_head.weight'") !=
          std::string::npos);
}

TEST_CASE("weight_source: Hugging Face folders of another model or with parts missing are named") {
    const ParamTable table(small);
    TemporaryFolder folder;
    write_hugging_face(folder.path(), table, "", {});
    auto with_config = [&](const std::string& from, const std::string& to) {
        std::string config = small_config;
        config.replace(config.find(from), from.size(), to);
        write_whole(real_files(), folder / "config.json", config);
        return message_of([&] { open_weights(real_files(), folder.path()); });
    };
    CHECK(with_config("\"gpt2\"", "\"bert\"").find("\"model_type\" is \"bert\"") != std::string::npos);
    CHECK(with_config("\"n_layer\":2", "\"n_layer\":3").find("no tensor 'h.2.ln_1.weight'") != std::string::npos);
    CHECK(with_config("\"n_layer\":2,", "").find("no \"n_layer\"") != std::string::npos);
    CHECK(with_config("\"vocab_size\":50", "\"vocab_size\":51").find("expected by config.json [51,16]") !=
          std::string::npos);
    CHECK(with_config("\"n_inner\":null", "\"n_inner\":17").find("an MLP of width 17") != std::string::npos);
    CHECK(with_config("}", "").find("not JSON") != std::string::npos);
    CHECK(with_config("\"n_head\":2", "\"n_head\":\"2\"").find("expected a size") != std::string::npos);
    CHECK(with_config("\"n_head\":2", "\"n_head\":3").find("do not divide") != std::string::npos);

    write_whole(real_files(), folder / "config.json", small_config);
    real_files().remove_all(folder / "model.safetensors");
    CHECK(message_of([&] { open_weights(real_files(), folder.path()); }).find("neither model.safetensors") !=
          std::string::npos);
    const std::pair<const char*, const char*> indices[] = {{R"({"weight_map":{"a":"../b"}})", "a file of this folder"},
                                                           {R"({"weight_map":{"a":""}})", "a file of this folder"},
                                                           {R"({"weight_map":{}})", "\"weight_map\" lists no tensor"},
                                                           {R"({"weight_map":[]})", "no \"weight_map\""},
                                                           {"{}", "no \"weight_map\""},
                                                           {"", "not JSON"}};
    for (const auto& [index, told] : indices) {
        write_whole(real_files(), folder / "model.safetensors.index.json", index);
        const std::string message = message_of([&] { open_weights(real_files(), folder.path()); });
        CAPTURE(message);
        CHECK(message.find("model.safetensors.index.json: ") != std::string::npos);
        CHECK(message.find(told) != std::string::npos);
    }
}
