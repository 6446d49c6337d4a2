// Tests the meaning of fields that config.json leaves out, recorded from transformers 5.24, whose classes are asked by
// dev/reference/config_defaults.py.
#include "llmc/model/families/family.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"

namespace {

ModelConfig read(const std::string& type, const std::string& more = "") {
    const bool experts = type == "mixtral" || type == "qwen3_moe" || type == "olmoe";
    std::string json = "{\"model_type\": \"" + type +
                       "\", \"num_hidden_layers\": 2, \"num_attention_heads\": 32, \"hidden_size\": 1024, "
                       "\"max_position_embeddings\": 8192, \"vocab_size\": 300";
    if (type == "mistral") json += ", \"sliding_window\": null";
    if (experts) json += ", \"num_experts_per_tok\": 2, \"intermediate_size\": 96";
    if (experts) json += type == "mixtral" ? ", \"num_local_experts\": 8" : ", \"num_experts\": 8";
    if (type == "qwen3_moe") json += ", \"moe_intermediate_size\": 48";
    return read_hugging_face_config(parse_json(json + more + "}"), "config.json");
}

std::string refused(const std::string& type, const std::string& more) {
    try {
        read(type, more);
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::bad_data);
        CHECK(error.message().find("config.json: ") == 0);
        return error.message();
    }
    return "";
}

bool has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

constexpr const char* of_llamas_kind[] = {"llama", "mistral", "qwen2",     "qwen3",
                                          "olmo2", "mixtral", "qwen3_moe", "olmoe"};

// As Llama 3.1, but what `more` says.
std::string llama3(const std::string& more) {
    return ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0" + more + "}";
}
constexpr const char* frequencies = ", \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0";
constexpr const char* positions = ", \"original_max_position_embeddings\": 8192";

}   // namespace

TEST_CASE("families: fields that config.json leaves out mean what transformers' configuration says") {
    struct Expected {
        const char* type;
        double norm_eps;
        std::int64_t kv_heads, head_size, mlp_width;   // for 32 heads, 1024 channels
        double rope_theta;
    };
    constexpr Expected recorded[] = {{"llama", 1e-6, 32, 32, 11008, 1e4}, {"mistral", 1e-6, 8, 32, 14336, 1e4},
                                     {"qwen2", 1e-6, 32, 32, 22016, 1e4}, {"qwen3", 1e-6, 32, 128, 22016, 1e4},
                                     {"olmo2", 1e-5, 32, 32, 11008, 1e4}, {"mixtral", 1e-5, 8, 32, 0, 1e6},
                                     {"olmo3", 1e-5, 32, 32, 11008, 5e5}, {"smollm3", 1e-6, 4, 32, 11008, 2e6},
                                     {"qwen3_moe", 1e-6, 4, 32, 0, 1e4},  {"olmoe", 1e-5, 32, 32, 0, 1e4}};
    for (const Expected& row : recorded) {
        INFO(row.type);
        const ModelConfig config = read(row.type);
        CHECK(config.norm_eps == row.norm_eps);
        CHECK(config.tied == (std::string(row.type) == "smollm3"));
        CHECK(config.kv_heads() == row.kv_heads);
        CHECK(config.head_size() == row.head_size);
        CHECK(config.rope_theta == row.rope_theta);
        CHECK(config.rope_factor == 1);
        if (row.mlp_width > 0) CHECK(config.mlp_width() == row.mlp_width);
        // a field that is there counts
        CHECK(read(row.type, ", \"rms_norm_eps\": 0.001").norm_eps == 0.001);
        CHECK(read(row.type, ", \"tie_word_embeddings\": true").tied);
        CHECK(read(row.type, ", \"num_key_value_heads\": 16").kv_heads() == 16);
        CHECK(read(row.type, ", \"head_dim\": 64").head_size() == 64);
    }
    const Json gpt2 =
        parse_json("{\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 32, \"n_positions\": 64, \"vocab_size\": 9}");
    const ModelConfig config = read_hugging_face_config(gpt2, "config.json");
    CHECK(config.tied);
    CHECK(config.norm_eps == 1e-5);
    CHECK(config.mlp_width() == 128);
}

TEST_CASE("families: null says what it says to transformers, or is refused as there") {
    for (const char* type : of_llamas_kind) {
        INFO(type);
        CHECK_FALSE(read(type, ", \"tie_word_embeddings\": null").tied);
        CHECK(read(type, ", \"num_key_value_heads\": null").kv_heads() == 32);
        CHECK(read(type, ", \"rope_scaling\": null, \"rope_parameters\": null") == read(type));
        CHECK(has(refused(type, ", \"rms_norm_eps\": null"), "\"rms_norm_eps\" is null, expected a number above 0"));
        CHECK(has(refused(type, ", \"rope_theta\": null"), "\"rope_theta\" is null, expected a number above 0"));
        if (std::string(type) == "qwen3") {
            CHECK(has(refused(type, ", \"head_dim\": null"), "\"head_dim\" is null, expected a size"));
        } else {
            CHECK(read(type, ", \"head_dim\": null").head_size() == 32);
        }
    }
    CHECK(has(refused("llama", ", \"intermediate_size\": null"), "\"intermediate_size\" is null, expected a size"));
    CHECK(has(refused("llama", ", \"rope_parameters\": {\"rope_theta\": null}"), "\"rope_theta\" is null"));
}

TEST_CASE("families: rope_theta of the inner object counts before the one outside") {
    const std::string outside = ", \"rope_theta\": 500000.0";
    for (const char* type : of_llamas_kind) {
        INFO(type);
        CHECK(read(type, outside).rope_theta == 500000);
        for (const char* object : {"rope_parameters", "rope_scaling"}) {
            const std::string inner = std::string(", \"") + object + "\": ";
            CHECK(read(type, outside + inner + "{\"rope_theta\": 200000.0}").rope_theta == 200000);
            CHECK(read(type, inner + "{\"rope_theta\": 200000.0, \"rope_type\": \"default\"}" + outside).rope_theta ==
                  200000);
            CHECK(read(type, outside + inner + "{\"rope_type\": \"default\"}").rope_theta == 500000);
            CHECK(read(type, outside + inner + "{}").rope_theta == 500000);
        }
        CHECK(read(type,
                   ", \"rope_parameters\": {\"rope_theta\": 300000.0}, \"rope_scaling\": {\"rope_theta\": 200000.0}")
                  .rope_theta == 200000);
        CHECK(read(type, ", \"rope_scaling\": {}, \"rope_parameters\": {\"rope_theta\": 300000.0}").rope_theta ==
              300000);
    }
}

TEST_CASE("families: rotary scaling of the type default or without a type scales nothing, others say all they need") {
    for (const char* inner : {"{\"factor\": 8.0}", "{\"factor\": 8.0, \"type\": \"default\"}",
                              "{\"factor\": 8.0, \"rope_type\": \"default\", \"type\": \"llama3\"}"}) {
        INFO(inner);
        CHECK(read("llama", std::string(", \"rope_scaling\": ") + inner).rope_scaling == RopeScaling::none);
    }
    for (const char* outside : {"rope_factor", "factor", "low_freq_factor", "original_max_position_embeddings"}) {
        CHECK(read("llama", text(", \"", outside, "\": 8.0")) == read("llama"));   // said outside it means nothing
    }
    CHECK(read("llama", ", \"rope_type\": \"llama3\"") == read("llama"));
    auto original_len = [](const std::string& more) {
        const ModelConfig config = read("llama", more);
        CHECK(config.rope_scaling == RopeScaling::llama3);
        CHECK(config.rope_factor == 8);
        return config.rope_original_len();
    };
    const std::string outside = ", \"original_max_position_embeddings\": 2048";
    CHECK(original_len(llama3(std::string(frequencies) + positions)) == 8192);
    CHECK(original_len(llama3(std::string(frequencies) + ", \"original_max_position_embeddings\": 256")) == 256);
    CHECK(original_len(llama3(frequencies)) == 8192);   // the model's positions
    CHECK(original_len(llama3(frequencies) + outside) == 2048);
    CHECK(original_len(llama3(std::string(frequencies) + positions) + outside) == 2048);
    const ModelConfig other = read("llama", llama3(", \"low_freq_factor\": 2, \"high_freq_factor\": 8.5"));
    CHECK(other.rope_low_freq_factor == 2);
    CHECK(other.rope_high_freq_factor == 8.5);
    CHECK(has(refused("llama", llama3(", \"low_freq_factor\": 4.0, \"high_freq_factor\": 4.0")),
              "\"low_freq_factor\" 4 \"high_freq_factor\" 4"));
    CHECK(has(refused("llama", llama3(", \"low_freq_factor\": 0, \"high_freq_factor\": 4.0")),
              "\"low_freq_factor\" is 0, expected a number above 0"));
    CHECK(
        has(refused("llama", llama3(", \"low_freq_factor\": 1.0")), "\"high_freq_factor\" of \"rope_scaling\" is not"));
    CHECK(has(refused("llama", llama3(std::string(frequencies) + ", \"original_max_position_embeddings\": 0.5")),
              "\"original_max_position_embeddings\" is 0.5, expected a size"));
    CHECK(has(refused("llama", llama3(positions)), "\"low_freq_factor\" of \"rope_scaling\" is not there"));
    CHECK(has(refused("llama", llama3(std::string(frequencies) + positions + ", \"partial_rotary_factor\": 0.5")),
              "\"partial_rotary_factor\" of \"rope_scaling\" is 0.5"));
    const std::string type = ", \"rope_parameters\": {\"rope_type\": ";
    CHECK(has(refused("qwen3", type + "\"llama3\"" + frequencies + positions + "}"),
              "\"factor\" of \"rope_parameters\" is not there, llama3 needs it"));
    CHECK(
        has(refused("qwen3", type + "\"linear\"}"), "\"factor\" of \"rope_parameters\" is not there, linear needs it"));
    CHECK(has(refused("qwen3", type + "\"linear\", \"factor\": 0.5}"), "\"factor\" 0.5"));
    CHECK(has(refused("qwen3", type + "\"linear\", \"factor\": 2.0, \"partial_rotary_factor\": 0.5}"),
              "\"partial_rotary_factor\" of \"rope_parameters\" is 0.5"));
    for (const char* beyond : {"dynamic", "longrope", "none"}) {
        CHECK(has(refused("qwen3", text(type, "\"", beyond, "\", \"factor\": 2.0}")),
                  text("is of the type \"", beyond, "\", only \"default\", \"linear\", \"llama3\" and \"yarn\" are")));
    }
    for (const char* object : {"rope_scaling", "rope_parameters"}) {
        for (const char* key : {"rope_type", "type"}) {
            const ModelConfig linear = read("qwen3", text(", \"", object, "\": {\"", key,
                                                          "\": \"linear\", \"factor\": 2.5, \"low_freq_factor\": 3}"));
            CHECK(linear.rope_scaling == RopeScaling::linear);
            CHECK(linear.rope_factor == 2.5);
            CHECK(linear.rope_low_freq_factor == 1);   // of llama3 alone
        }
    }
    CHECK(has(refused("qwen3", type + "null}"), "is of the type null"));
    CHECK(has(refused("qwen3", ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1.0}}"),
              "\"rope_parameters\" says \"full_attention\" apart"));
    CHECK(has(refused("qwen3", ", \"rope_scaling\": 2.0"), "\"rope_scaling\" is 2.0, expected an object"));
}

TEST_CASE("families: numbers of a YaRN that are left out or null mean what its function in transformers has") {
    auto yarn = [](const std::string& more) {
        return text(", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8.0", more, "}");
    };
    ModelConfig expected = read("qwen2");
    expected.rope_scaling = RopeScaling::yarn, expected.rope_factor = 8;
    expected.own_rope_original_len = 8192;   // the model's positions
    CHECK(read("qwen2", yarn("")) == expected);
    CHECK(read("qwen2", yarn(", \"beta_fast\": null, \"beta_slow\": null, \"attention_factor\": null, \"mscale\": 2.0, "
                             "\"truncate\": true")) == expected);
    CHECK(read("qwen2", yarn(", \"low_freq_factor\": 3")) == expected);   // of llama3 alone
    const Json written = hugging_face_config(expected, "float32");
    CHECK(written.find("rope_scaling")->find("attention_factor") == nullptr);
    CHECK(read_hugging_face_config(written, "config.json") == expected);
    expected.own_rope_original_len = 4096, expected.rope_beta_fast = 8, expected.rope_beta_slow = 2;
    expected.rope_attention_factor = 1.25;
    const std::string all = ", \"original_max_position_embeddings\": 4096, \"beta_fast\": 8, \"beta_slow\": 2.0";
    CHECK(read("qwen2", yarn(all + ", \"attention_factor\": 1.25, \"mscale\": 3, \"mscale_all_dim\": 2")) == expected);
    CHECK(read_hugging_face_config(hugging_face_config(expected, "float32"), "config.json") == expected);
    // recorded from its function: 0.1 mscale ln(8) + 1, over that of mscale_all_dim
    const ModelConfig scaled = read("qwen2", yarn(all + ", \"mscale\": 1.0, \"mscale_all_dim\": 0.5"));
    CHECK(scaled.rope_attention_factor == doctest::Approx(1.0941813967));
    CHECK(has(refused("qwen2", yarn(", \"truncate\": false")), "\"truncate\" of \"rope_scaling\" is false, only true"));
    CHECK(has(refused("qwen2", yarn(", \"mscale\": \"a\"")),
              "\"mscale\" of \"rope_scaling\" is \"a\", expected a number"));
    CHECK(has(refused("qwen2", yarn(", \"beta_fast\": 1, \"beta_slow\": 2")), "\"beta_slow\" 2 \"beta_fast\" 1"));
    CHECK(has(refused("qwen2", ", \"rope_scaling\": {\"rope_type\": \"yarn\"}"),
              "\"factor\" of \"rope_scaling\" is not"));
}

TEST_CASE("families: an OLMo 3's layers that slide have frequencies of their own") {
    auto read_four = [](const std::string& fields) {
        return read_hugging_face_config(
            parse_json(text("{\"model_type\": \"olmo3\", \"num_hidden_layers\": 4, \"num_attention_heads\": 2, "
                            "\"hidden_size\": 64, \"vocab_size\": 300, \"max_position_embeddings\": 64",
                            fields, "}")),
            "config.json");
    };
    const std::string yarn = "{\"rope_type\": \"yarn\", \"factor\": 8.0, \"original_max_position_embeddings\": 16}";
    struct {
        std::string fields;
        RopeScaling scaling;
        double theta, of_window;
    } const recorded[] = {
        // from Olmo3Config
        {"", RopeScaling::none, 5e5, 0},
        {", \"rope_theta\": 5e5, \"rope_scaling\": " + yarn, RopeScaling::yarn, 5e5, 5e5},
        {", \"rope_theta\": 1e4", RopeScaling::none, 1e4, 5e5},   // outside it is of layers that see all keys
        {", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 8.0}", RopeScaling::none, 5e5, 0},   // by its old name
        {", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 3e4}}", RopeScaling::none, 3e4, 5e5},
        {", \"rope_parameters\": {\"full_attention\": " + yarn + ", \"sliding_attention\": {\"rope_theta\": 1e4}}",
         RopeScaling::yarn, 5e5, 1e4},
        {", \"rope_parameters\": {\"full_attention\": " + yarn + ", \"sliding_attention\": " + yarn + "}",
         RopeScaling::yarn, 5e5, 0},
        {", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 3e4}}, \"rope_scaling\": " + yarn,
         RopeScaling::yarn, 3e4, 5e5},
        {", \"rope_parameters\": {\"rope_theta\": 2e4}", RopeScaling::none, 5e5, 0},   // of no layer
    };
    for (const auto& one : recorded) {
        INFO(one.fields);
        const ModelConfig config = read_four(one.fields);
        CHECK(config.window == 4096);
        CHECK(config.layer_pattern == "SSSL");
        CHECK(config.rope_scaling == one.scaling);
        CHECK(config.rope_theta == one.theta);
        CHECK(config.rope_window_theta == one.of_window);
        CHECK(read_hugging_face_config(hugging_face_config(config, "float32"), "config.json") == config);
    }
    const ModelConfig full = read_four(
        ", \"rope_theta\": 1e4, \"sliding_window\": null, \"layer_types\": [\"full_attention\", "
        "\"full_attention\", \"full_attention\", \"full_attention\"]");
    CHECK(full.window == 0);
    CHECK(full.rope_window_theta == 0);   // of no layer
    const Json written = hugging_face_config(full, "float32");
    CHECK(*written.find("model_type") == Json("olmo3"));
    CHECK_FALSE(written.contains("sliding_window"));   // its class makes that mask in any case
    CHECK(read_hugging_face_config(written, "config.json") == full);
    auto message = [&](const std::string& fields) {
        try {
            read_four(fields);
        } catch (const Error& error) {
            return error.message();
        }
        return std::string();
    };
    CHECK(has(message(", \"sliding_window\": null"), "\"sliding_attention\", but \"sliding_window\" is null"));
    CHECK(has(message(", \"rope_parameters\": {\"sliding_attention\": " + yarn + "}"), "has another scaling than"));
    CHECK(
        has(message(", \"rope_parameters\": {\"full_attention\": 2}"), "\"full_attention\" is 2, expected an object"));
}

TEST_CASE("families: a SmolLM3's layers have positions but every fourth one, or those that the file says") {
    auto read_four = [](const std::string& fields) {
        return read_hugging_face_config(
            parse_json(text("{\"model_type\": \"smollm3\", \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "
                            "\"hidden_size\": 64, \"vocab_size\": 300, \"max_position_embeddings\": 64",
                            fields, "}")),
            "config.json");
    };
    const std::string on = ", \"use_sliding_window\": true", window = on + ", \"sliding_window\": 8";
    struct {
        std::string fields;
        const char* rope_layers;
        std::int64_t window;
        const char* pattern;
    } const recorded[] = {
        // from SmolLM3Config
        {"", "RRRN", 0, ""},
        {", \"no_rope_layer_interval\": 3", "RRN", 0, ""},
        {", \"no_rope_layer_interval\": 5", "", 0, ""},
        {", \"no_rope_layers\": [1, 1, 1, 1], \"no_rope_layer_interval\": 2", "", 0, ""},
        {", \"no_rope_layers\": [1, 0, 1, 0, 0]", "RN", 0, ""},
        {", \"sliding_window\": 8", "RRRN", 0, ""},
        {on, "RRRN", 0, ""},
        {window, "RRRN", 8, "LLLS"},   // those without positions slide
        {window + ", \"no_rope_layers\": [0, 0, 0, 0]", "N", 8, ""},
        {window + ", \"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\", "
                  "\"full_attention\"]",
         "RRRN", 8, "SL"},
    };
    for (const auto& one : recorded) {
        INFO(one.fields);
        const ModelConfig config = read_four(one.fields);
        CHECK(config.rope_layers == one.rope_layers);
        CHECK(config.window == one.window);
        CHECK(config.layer_pattern == one.pattern);
        CHECK(config.tied);
        const Json written = hugging_face_config(config, "float32");
        CHECK(*written.find("model_type") == Json("smollm3"));
        CHECK(written.find("no_rope_layers")->elements().size() == 4);   // left out it means every fourth
        CHECK(read_hugging_face_config(written, "config.json") == config);
    }
    auto message = [&](const std::string& fields) {
        try {
            read_four(fields);
        } catch (const Error& error) {
            return error.message();
        }
        return std::string();
    };
    CHECK(has(message(", \"no_rope_layers\": [1, 0]"), "expected 0 or 1 for each of 4 layers"));
    CHECK(has(message(", \"no_rope_layers\": [1, 0, 2, 1]"), "\"no_rope_layers\" has 2, expected 0 or 1"));
    CHECK(has(message(", \"no_rope_layer_interval\": 0"), "\"no_rope_layer_interval\" is 0, expected at least 1"));
}

TEST_CASE("families: a config.json without a model_type is a GPT-2's if its fields are, and is else refused") {
    const std::string sizes = "\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 32, \"vocab_size\": 9";
    auto message = [](const std::string& fields) {
        try {
            read_hugging_face_config(parse_json("{" + fields + "}"), "config.json");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::bad_data);
            if (has(error.message(), "of a GPT-2")) {
                CHECK(has(error.hint(), "one of \"gpt2\", \"llama\", \"mistral\", \"qwen2\""));
            }
            return error.message();
        }
        return std::string("read");
    };
    for (const char* type : {"", ", \"model_type\": null"}) {
        CHECK(message(sizes + ", \"n_positions\": 16" + type) == "read");
        CHECK(message(sizes + ", \"n_ctx\": 16" + type) == "read");
        CHECK(has(message("\"num_hidden_layers\": 2, \"hidden_size\": 32" + std::string(type)),
                  "there is no \"model_type\" in it, nor the \"n_layer\" of a GPT-2"));
        CHECK(has(message("\"n_layer\": 2, \"hidden_size\": 32" + std::string(type)), "nor the \"n_head\" of a GPT-2"));
        CHECK(has(message("\"n_layer\": 2, \"n_head\": 2" + std::string(type)), "nor the \"n_embd\" of a GPT-2"));
    }
    CHECK(has(message("\"architectures\": [\"LlamaForCausalLM\"]"), "there is no \"model_type\" in it"));
    CHECK(has(message(sizes), "there is no \"n_positions\" in it, nor a \"model_type\""));
    CHECK(has(message(sizes + ", \"model_type\": 7"), "\"model_type\" is 7, only"));
}

TEST_CASE("families: a sliding window is what sliding_window says, without it the class's") {
    auto window_of = [](const std::string& type, const std::string& fields) {
        const char* const sizes =
            "\"num_hidden_layers\": 2, \"num_attention_heads\": 32, \"hidden_size\": 1024, \"vocab_size\": 300, "
            "\"max_position_embeddings\": 8192, \"num_experts_per_tok\": 2, \"num_local_experts\": 8, "
            "\"intermediate_size\": 96";
        return read_hugging_face_config(parse_json(text("{\"model_type\": \"", type, "\", ", sizes, fields, "}")),
                                        "config.json")
            .window;
    };
    CHECK(window_of("mistral", "") == 4096);
    CHECK(window_of("mixtral", "") == 0);
    for (const char* type : {"mistral", "mixtral"}) {
        CHECK(window_of(type, ", \"sliding_window\": null") == 0);
        CHECK(window_of(type, ", \"sliding_window\": 63") == 63);
        CHECK(window_of(type, ", \"sliding_window\": 8192") == 8192);
    }
    CHECK(window_of("llama", ", \"sliding_window\": 63") == 0);   // its class ignores it
    const ModelConfig mistral = read("mistral");
    CHECK(mistral.layer_pattern.empty());
    CHECK(mistral.slides(1) == false);
    for (const char* wrong : {"\"64\"", "0", "-1", "1.5"}) {
        CHECK(has(refused("mixtral", text(", \"sliding_window\": ", wrong)),
                  text("\"sliding_window\" is ", wrong, ", expected a size")));
    }
    CHECK(has(refused("qwen3_moe", ", \"use_sliding_window\": true"), "\"use_sliding_window\" is true, only false"));
}

TEST_CASE("families: a Qwen2's and a Qwen3's window is none unless it is switched on, and is of some layers") {
    const std::string on = ", \"use_sliding_window\": true";
    auto read_four = [](const std::string& type, const std::string& fields) {
        const char* const sizes =
            "\"num_hidden_layers\": 4, \"num_attention_heads\": 2, \"hidden_size\": 64, \"vocab_size\": 300, "
            "\"max_position_embeddings\": 64, \"num_key_value_heads\": 1";
        const Json json = parse_json(text("{\"model_type\": \"", type, "\", ", sizes, fields, "}"));
        return read_hugging_face_config(json, "config.json");
    };
    auto types = [](const char* letters) {
        std::string list;
        for (const char* letter = letters; *letter != 0; letter++) {
            list += text(list.empty() ? "" : ", ", *letter == 'S' ? "\"sliding_attention\"" : "\"full_attention\"");
        }
        return text(", \"layer_types\": [", list, "]");
    };
    for (const char* type : {"qwen2", "qwen3"}) {
        INFO(std::string(type));
        // a window that is switched off is not looked at, as in published Qwen2.5 files
        for (const char* off :
             {"", ", \"use_sliding_window\": false", ", \"sliding_window\": 8, \"max_window_layers\": 1",
              ", \"use_sliding_window\": false, \"sliding_window\": 32768, \"max_window_layers\": 2",
              ", \"use_sliding_window\": true, \"sliding_window\": null, \"max_window_layers\": 0",
              ", \"use_sliding_window\": true, \"sliding_window\": 8",
              ", \"use_sliding_window\": true, \"sliding_window\": 8, \"max_window_layers\": 4",
              ", \"sliding_window\": -1", ", \"max_window_layers\": -1"}) {
            INFO(std::string(off));
            const ModelConfig config = read_four(type, off);
            CHECK(config.window == 0);
            CHECK(config.layer_pattern.empty());
        }
        auto check = [&](const std::string& fields, std::int64_t window, const char* pattern) {
            const ModelConfig config = read_four(type, fields);
            CHECK(config.window == window);
            CHECK(config.layer_pattern == pattern);
            const Json written = hugging_face_config(config, "float32");
            CHECK(*written.find("model_type") == Json(type));
            CHECK(*written.find("use_sliding_window") == Json(true));
            CHECK(read_hugging_face_config(written, "config.json") == config);
            return written;
        };
        check(on + ", \"max_window_layers\": 0", 4096, "");
        const Json late = check(on + ", \"sliding_window\": 8, \"max_window_layers\": 3", 8, "LLLS");
        CHECK(*late.find("max_window_layers") == Json(3));
        CHECK(late.find("layer_types")->elements().size() == 4);
        CHECK(late.find("layer_pattern") == nullptr);
        check(on + ", \"sliding_window\": 8" + types("SLSL"), 8, "SL");
        check(on + ", \"sliding_window\": 8, \"max_window_layers\": 3" + types("SSSL"), 8, "SSSL");   // types count
        check(on + ", \"sliding_window\": 8" + types("SSSS"), 8, "");
        ModelConfig repeated = read_four(type, on + ", \"sliding_window\": 8" + types("SLSL"));
        repeated.layer_pattern = "SLSL";   // as an option may say it
        CHECK(read_hugging_face_config(hugging_face_config(repeated, "float32"), "config.json") == repeated);
        auto message = [&](const std::string& fields) {
            try {
                read_four(type, fields);
            } catch (const Error& error) {
                CHECK(error.kind() == ErrorKind::bad_data);
                return error.message();
            }
            return std::string();
        };
        CHECK(has(message(", \"use_sliding_window\": 1"), "\"use_sliding_window\" is 1, expected true or false"));
        CHECK(has(message(on + ", \"max_window_layers\": 0, \"sliding_window\": 0"),
                  "\"sliding_window\" is 0, expected"));
        CHECK(has(message(on + ", \"max_window_layers\": -1"), "\"max_window_layers\" is -1, expected"));
        CHECK(has(message(on + types("SLS")), "expected the types of 4 layers"));
        CHECK(has(message(on + ", \"layer_types\": [1, 2, 3, 4]"), "\"layer_types\" has 1, only"));
        CHECK(has(message(types("SLSL")), "\"use_sliding_window\" is not true"));
    }
    auto read_deep = [](int layers, const char* fields) {
        const std::string sizes =
            text("{\"model_type\": \"qwen2\", \"use_sliding_window\": true, \"num_hidden_layers\": ", layers,
                 ", \"num_attention_heads\": 2, \"hidden_size\": 64, \"vocab_size\": 300, ",
                 "\"num_key_value_heads\": 1, \"max_position_embeddings\": 64", fields, "}");
        return read_hugging_face_config(parse_json(sizes), "config.json");
    };
    CHECK(read_deep(30, "").layer_pattern == std::string(28, 'L') + "SS");   // fields left out
    CHECK(read_deep(30, "").window == 4096);
    CHECK(read_deep(64, ", \"max_window_layers\": 40").layer_pattern == std::string(40, 'L') + std::string(24, 'S'));
    CHECK_THROWS_WITH_AS(read_deep(5000, ""), doctest::Contains("in no pattern of at most 4096 layers"), Error);
}

TEST_CASE("families: a model that the program does not have is refused by the names of fields, not of options") {
    auto message = [](const std::string& type, const std::string& fields) {
        try {
            read_hugging_face_config(
                parse_json("{\"model_type\": \"" + type + "\", \"vocab_size\": 9, " + fields + "}"), "config.json");
        } catch (const Error& error) {
            CHECK(has(error.message(), "config.json: not a model: "));
            CHECK_FALSE(has(error.what(), "--heads"));
            CHECK_FALSE(has(error.what(), "--channels"));
            return std::string(error.what());
        }
        return std::string("read");
    };
    const std::string llama = "\"num_hidden_layers\": 2, \"max_position_embeddings\": 16, \"num_attention_heads\": 4, ";
    CHECK(has(message("llama", llama + "\"hidden_size\": 64, \"head_dim\": 24"), "\"head_dim\""));
    CHECK(has(message("mistral", llama + "\"hidden_size\": 64, \"head_dim\": 12"), "\"head_dim\""));
    CHECK(has(message("qwen3", llama + "\"hidden_size\": 20"), "\"hidden_size\" must be a multiple of 8"));
    CHECK(has(message("llama", llama + "\"hidden_size\": 32"), "\"hidden_size\" / \"num_attention_heads\""));
    CHECK(has(message("llama", llama + "\"hidden_size\": 64, \"num_key_value_heads\": 3"),
              "\"num_key_value_heads\" must divide \"num_attention_heads\""));
    CHECK(
        has(message("llama", llama + "\"hidden_size\": 64, \"intermediate_size\": 20"), "\"intermediate_size\" must"));
    CHECK(has(message("llama", llama + "\"hidden_size\": 64, \"rms_norm_eps\": 2"), "\"rms_norm_eps\" 2"));
    CHECK(has(message("llama", llama + "\"hidden_size\": 64, \"rope_theta\": 0.5"), "\"rope_theta\" 0.5"));
    const std::string gpt2 = "\"n_layer\": 2, \"n_positions\": 16, \"n_head\": 2, ";
    CHECK(has(message("gpt2", gpt2 + "\"n_embd\": 20"), "\"n_embd\" / \"n_head\""));
    CHECK(has(message("gpt2", gpt2 + "\"n_embd\": 32, \"n_inner\": 20"), "\"n_inner\" must be a multiple of 8"));
}
