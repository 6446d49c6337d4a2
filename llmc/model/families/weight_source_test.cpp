#include "llmc/model/families/weight_source.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "llmc/base/error.h"
#include "llmc/base/rng.h"
#include "llmc/io/safetensors.h"
#include "llmc/io/temporary_folder_test.h"

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
    CHECK(with(4, 1 << 28).find("268435456 layers of 16 channels need more than") != std::string::npos);
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
    CHECK(with_config("\"vocab_size\":50", "\"vocab_size\":51").find("expected [51,16]") != std::string::npos);
    CHECK(with_config("\"n_inner\":null", "\"n_inner\":17").find("an MLP of width 17") != std::string::npos);
    CHECK(with_config("}", "").find("not JSON") != std::string::npos);
    CHECK(with_config("\"n_head\":2", "\"n_head\":\"2\"").find("expected a size") != std::string::npos);
    CHECK(with_config("\"n_head\":2", "\"n_head\":3").find("do not divide") != std::string::npos);

    write_whole(real_files(), folder / "config.json", small_config);
    real_files().remove_all(folder / "model.safetensors");
    CHECK(message_of([&] { open_weights(real_files(), folder.path()); }).find("neither model.safetensors") !=
          std::string::npos);
    write_whole(real_files(), folder / "model.safetensors.index.json", R"({"weight_map":{"a":"../b"}})");
    CHECK(message_of([&] { open_weights(real_files(), folder.path()); }).find("a file of this folder") !=
          std::string::npos);
}
