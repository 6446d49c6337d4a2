// Every field of a model survives config.json, and a format that does not hold it says so.
#include "llmc/checkpoint/model_export.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder_test.h"
#include "llmc/model/families/family.h"
#include "llmc/model/families/weight_source.h"

namespace {

// The model a config.json of this one describes.
ModelConfig through_config_json(const ModelConfig& config) {
    const TemporaryFolder folder;
    const auto files = hugging_face_files(config, TensorType::F32, nullptr);
    REQUIRE(files.front().name == "config.json");
    write_whole(real_files(), folder / "config.json", files.front().content);
    return hugging_face_model_config(real_files(), folder.path());
}

ModelConfig small_llama() {
    ModelConfig config = custom_model_config(3, 4, 128, 24, 101);
    config.norm = NormKind::rms, config.positions = PositionKind::rotary;
    config.mlp = MlpKind::swiglu, config.bias = false;
    return config;
}

}   // namespace

TEST_CASE("model export: every value of every field of a model comes back from config.json") {
    int beyond = 0;
    for (const bool llama : {false, true}) {
        const ModelConfig plain = llama ? small_llama() : custom_model_config(3, 4, 64, 24, 101);
        CHECK(std::string(family_of(plain).model_type) == (llama ? "llama" : "gpt2"));
        for (const ModelField& field : model_fields()) {
            const int values = field.is_number() ? 2 : static_cast<int>(field.values.size());
            for (int value = 0; value < values; value++) {
                ModelConfig config = plain;
                double wanted = field.is_number() ? (value + 1) * field.get(plain) : value;
                if (std::string(field.name) == "kv-heads") wanted = value + 1;
                if (field.name == std::string("norm-eps")) wanted = value == 0 ? 1e-5 : 1e-6;
                field.set(config, wanted);
                INFO(field.name, " ", field.value_of(config));
                CHECK(field.get(config) == wanted);
                CHECK(through_config_json(config) == config);
                CHECK(beyond_llmc(config).empty() == (!llama && (field.basic || field.same(config, plain))));
                const bool qwen3 = field.name == std::string("qk-norm");   // a Llama with it is one
                const bool has_key = field.basic || (llama ? field.llama_key != nullptr || qwen3 : field.gpt2);
                CHECK(beyond_hugging_face(config).empty() == (has_key || field.same(config, plain)));
                beyond += !beyond_hugging_face(config).empty();
                // and from an option's value
                ModelConfig read = plain;
                CHECK((field.read(read, field.value_of(config)) && read == config));
                CHECK_FALSE(field.read(read, "none such"));
            }
        }
    }
    CHECK(beyond > 0);
}

TEST_CASE("model export: config.json of transformers 4 and 5, and what is refused by name") {
    const TemporaryFolder folder;
    auto read = [&](const std::string& more) {
        write_whole(real_files(), folder / "config.json",
                    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                    "\"hidden_size\": 64, \"max_position_embeddings\": 128, \"vocab_size\": 300, "
                    "\"intermediate_size\": 96, \"num_key_value_heads\": 2" +
                        more + "}");
        return hugging_face_model_config(real_files(), folder.path());
    };
    auto refused = [&](const std::string& more) -> std::string {
        try {
            read(more);
        } catch (const Error& error) {
            return error.kind() == ErrorKind::bad_data ? error.message() : "";
        }
        return "";
    };
    const ModelConfig four = read(
        ", \"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
        "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}");
    const ModelConfig five = read(
        ", \"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", \"factor\": 8.0, "
        "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}");
    CHECK(four == five);
    CHECK(four.rope_theta == 500000);
    CHECK(four.rope_factor == 8);
    CHECK(four.kv_heads() == 2);
    CHECK(four.head_size() == 16);
    CHECK(through_config_json(four) == four);
    CHECK(read(", \"rope_scaling\": null").rope_factor == 1);
    CHECK(refused(", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8.0}").find("yarn") != std::string::npos);
    CHECK(refused(", \"hidden_act\": \"gelu\"").find("hidden_act") != std::string::npos);
    CHECK(refused(", \"attention_bias\": true").find("attention_bias") != std::string::npos);
    CHECK(refused(", \"rms_norm_eps\": \"x\"").find("rms_norm_eps") != std::string::npos);
    CHECK(refused(", \"head_dim\": 20").find("heads of 20") != std::string::npos);
}
