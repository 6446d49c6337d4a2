// Every field of a model survives config.json, and a format that does not hold it says so.
#include "llmc/checkpoint/model_export.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/checkpoint/model_file.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/model/families/family.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/model/field_values_testing.h"

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
    config.mlp = MlpKind::swiglu, config.bias = Bias::none;
    return config;
}

}   // namespace

TEST_CASE("model export: every value of every field of a model comes back from config.json") {
    int beyond = 0;
    for (const bool llama : {false, true}) {
        const ModelConfig dense = llama ? small_llama() : custom_model_config(3, 4, 64, 24, 101);
        CHECK(std::string(family_of(dense).model_type) == (llama ? "llama" : "gpt2"));
        for (const ModelField& field : model_fields()) {
            const ModelConfig plain = plain_for(field, dense);
            const bool as_dense = plain == dense;
            for (const double wanted : values_to_try(field, plain)) {
                ModelConfig config = plain;
                field.set(config, wanted);
                INFO(field.name, " ", field.value_of(config));
                CHECK(field.get(config) == wanted);
                CHECK(through_config_json(config) == config);
                CHECK(beyond_llmc(config).empty() ==
                      (!llama && as_dense && (field.basic || field.same(config, plain))));
                // a Llama with either is one of these
                const bool qwen = config.qk_norm == QkNorm::head || config.bias == Bias::qkv;
                const bool of_mixtral = std::string(field.name).starts_with("expert") || field.of_training;
                // windows of all layers or of some, and layers without positions: a Mistral or SmolLM3
                const bool of_layers = field.letters != nullptr || std::string(field.name) == "window";
                const bool has_key =
                    field.basic || (llama ? field.llama_key != nullptr || qwen || of_mixtral || of_layers : field.gpt2);
                CHECK(beyond_hugging_face(config).empty() ==
                      ((llama || as_dense) && (has_key || field.same(config, plain))));
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

TEST_CASE("model export: a tokenizer_config.json of shorter sequences gets the model's length, and keeps the rest") {
    const ModelConfig model = small_llama();   // sequences of 24
    for (const auto& [before, after] : {std::pair("16", "24"), {"24", "24"}, {"1e30", "1e30"}, {"null", "null"}}) {
        const TemporaryFolder folder;
        auto content = [](const char* length) {
            return text("{\"eos_token\":  \"f\", \"model_max_length\": ", length, "}");
        };
        Tokenizer::bytes().save(folder.path());
        write_whole(real_files(), folder / "tokenizer_config.json", content(before));
        const Tokenizer tokenizer = Tokenizer::load(folder.path());
        std::string found;
        for (const HuggingFaceFile& file : hugging_face_files(model, TensorType::F32, &tokenizer)) {
            if (file.name == "tokenizer_config.json") found += file.content;
        }
        CHECK(found == content(after));
    }
}

TEST_CASE("model export: norms after sublayers and of rows of queries and keys are an OLMo2, neither alone is") {
    ModelConfig config = small_llama();
    config.norm_position = NormPosition::after;
    CHECK(beyond_hugging_face(config) == "--norm-position after");
    config.qk_norm = QkNorm::row;
    CHECK(std::string(family_of(config).model_type) == "olmo2");
    CHECK(through_config_json(config) == config);
    config.bias = Bias::all;
    CHECK(beyond_hugging_face(config) == "--bias 1");
    config.bias = Bias::none, config.norm_position = NormPosition::before;
    CHECK(beyond_hugging_face(config) == "--qk-norm row");
}

TEST_CASE("model export: activation_function is that of the MLP, and no other") {
    const std::pair<MlpKind, const char*> kinds[] = {
        {MlpKind::gelu, "gelu_new"}, {MlpKind::swiglu, "silu"}, {MlpKind::relu2, "relu2"}};
    for (const auto& [mlp, activation] : kinds) {
        ModelConfig config = custom_model_config(1, 1, 64, 8, 101);
        config.norm = NormKind::rms, config.mlp = mlp;
        const std::string written = to_text(hugging_face_config(config, "float32"));
        const std::string said = text("\"activation_function\":\"", activation, '"');
        const std::size_t begin = written.find(said);
        REQUIRE(begin != std::string::npos);
        const auto read_with = [&](const char* other) {
            std::string changed = written;
            changed.replace(begin, said.size(), text("\"activation_function\":\"", other, '"'));
            return read_hugging_face_config(parse_json(changed), "config.json");
        };
        CHECK(read_with(activation) == config);
        for (const char* other : {"gelu", "gelu_new", "silu", "relu2"}) {
            if (other != std::string(activation)) CHECK_THROWS_AS(read_with(other), Error);
        }
    }
}

TEST_CASE("model export: a model that was read as a Mistral is written as one, until it is none any more") {
    const ModelConfig llama = small_llama();
    const auto json_of = [](const ModelConfig& config) { return hugging_face_config(config, "float32"); };
    for (const std::int64_t kv_heads : {1, 2, 4}) {
        for (const bool tied : {false, true}) {
            ModelConfig config = llama;
            config.model_type = "mistral", config.own_kv_heads = kv_heads, config.tied = tied;
            const Json json = json_of(config);
            CHECK(*json.find("model_type") == Json("mistral"));
            CHECK(*json.find("architectures") == Json::array({"MistralForCausalLM"}));
            CHECK(json.find("sliding_window")->is_null());   // left out it means 4096
            const ModelConfig again = through_config_json(config);
            CHECK(again == config);
            CHECK(std::string(family_of(again).model_type) == "mistral");
        }
    }
    CHECK(std::string(family_of(through_config_json(llama)).model_type) == "llama");
    ModelConfig slides = llama;   // whatever it was read as
    slides.window = 9;
    CHECK(*json_of(slides).find("model_type") == Json("mistral"));
    CHECK(*json_of(slides).find("sliding_window") == Json(9));
    CHECK(through_config_json(slides) == slides);
    slides.layer_pattern = "SS";   // all slide
    CHECK(*json_of(slides).find("model_type") == Json("mistral"));
    for (const char* const rope_layers : {"", "RN"}) {
        slides.layer_pattern = "SL", slides.rope_layers = rope_layers;
        CHECK(*json_of(slides).find("model_type") == Json("smollm3"));
        CHECK(through_config_json(slides) == slides);
    }
    slides.bias = Bias::qkv;
    CHECK(beyond_hugging_face(slides) == "--rope-layers RN");
    CHECK(*json_of(slides).find("layer_pattern") == Json("SL"));
    CHECK(*json_of(slides).find("rope_layers") == Json("RN"));
    CHECK(through_config_json(slides) == slides);
    slides.bias = Bias::none, slides.rope_layers = "";
    slides.layer_pattern = "", slides.experts = 4, slides.own_expert_width = 40;
    CHECK(*json_of(slides).find("model_type") == Json("mixtral"));
    CHECK(through_config_json(slides) == slides);
    ModelConfig changed = llama;
    changed.model_type = "mistral", changed.qk_norm = QkNorm::head;
    CHECK(std::string(family_of(changed).model_type) == "qwen3");
    changed.qk_norm = QkNorm::none, changed.bias = Bias::all;
    CHECK(is_only_ours(family_of(changed)));
    changed = llama, changed.model_type = "train_gpt";
    CHECK(std::string(family_of(changed).model_type) == "llama");
}

TEST_CASE("model export: mixtures of experts are a Mixtral, Qwen3-MoE or OLMoE, or of no family but our own") {
    ModelConfig config = small_llama();
    config.experts = 4, config.own_expert_width = 40;
    auto family = [&] { return std::string(family_of(config).model_type); };
    CHECK(family() == "mixtral");
    config.router_norm = false;
    CHECK(beyond_hugging_face(config) == "--router-norm 0");
    for (const auto& [norm, name] : {std::pair(QkNorm::head, "qwen3_moe"), std::pair(QkNorm::row, "olmoe")}) {
        config.qk_norm = norm;
        for (const bool router_norm : {false, true}) {
            config.router_norm = router_norm;
            CHECK(family() == name);
            CHECK(through_config_json(config) == config);
        }
        config.own_mlp_width = 64;   // of no layer
        CHECK(family() == name);
        CHECK(through_config_json(config) == config);
        config.own_mlp_width = 0;
    }
    config.shared_experts = 1;
    CHECK(beyond_hugging_face(config) == "--shared-experts 1");
    config.shared_experts = 0, config.router = RouterScore::sigmoid;
    CHECK(beyond_hugging_face(config) == "--router sigmoid");
    config.router = RouterScore::softmax, config.router_scale = 2.5;
    for (const QkNorm norm : {QkNorm::none, QkNorm::head, QkNorm::row}) {   // no type of these has a factor
        config.qk_norm = norm, config.router_norm = norm == QkNorm::none;
        CHECK(beyond_hugging_face(config) == "--router-scale 2.5");
        CHECK(family() == "train_gpt");
        CHECK(*hugging_face_config(config, "float32").find("routed_scaling_factor") == Json(2.5));
        CHECK(through_config_json(config) == config);
    }
    ModelConfig gpt2 = custom_model_config(3, 4, 64, 24, 101);
    gpt2.experts = 4;
    CHECK(beyond_hugging_face(gpt2) == "--experts 4");
}

TEST_CASE("model export: files of mixtures have a tensor for each matrix of an expert") {
    ModelConfig config = small_llama();
    config.experts = 3, config.own_expert_width = 40;
    auto check = [&](const std::string& mixture, std::vector<std::string> matrices) {
        const ParamTable table(config);
        auto tensors = [&](const char* name) { return file_tensors(table, table[table.index(name, 1)]); };
        CHECK(tensors("mlp.router.weight")[0].name == "model.layers.1." + mixture + "gate.weight");
        const ParamInfo& router = table[table.index("mlp.router.weight", 1)];   // files say whose names they have
        CHECK(file_tensors(table, router, false, find_family("train_gpt"))[0].name == "h.1.mlp.router.weight");
        const auto in = tensors("mlp.experts.c_fc.weight"), out = tensors("mlp.experts.c_proj.weight");
        REQUIRE(in.size() == 6);
        REQUIRE(out.size() == 3);
        const std::string expert = "model.layers.1." + mixture + "experts.2.";
        CHECK(in[4].name == expert + matrices[0] + ".weight");
        CHECK(in[4].first_row == 160);
        CHECK(in[4].shape == std::vector<std::int64_t>{40, 128});
        CHECK(in[5].name == expert + matrices[1] + ".weight");
        CHECK(in[5].first_row == 200);
        CHECK(out[2].name == expert + matrices[2] + ".weight");
        CHECK(out[2].first_row == 256);
        CHECK(out[2].shape == std::vector<std::int64_t>{128, 40});
    };
    check("block_sparse_moe.", {"w1", "w3", "w2"});
    config.qk_norm = QkNorm::row;
    check("mlp.", {"gate_proj", "up_proj", "down_proj"});
}

TEST_CASE("model export: config.json of mixtures, by transformers 4 and 5, and what is refused by name") {
    const TemporaryFolder folder;
    auto read = [&](const std::string& type, const std::string& more) {
        write_whole(real_files(), folder / "config.json",
                    "{\"model_type\": \"" + type +
                        "\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"hidden_size\": 64, "
                        "\"max_position_embeddings\": 128, \"vocab_size\": 300, \"num_key_value_heads\": 2, "
                        "\"num_experts_per_tok\": 2, \"intermediate_size\": 96" +
                        more + "}");
        return hugging_face_model_config(real_files(), folder.path());
    };
    auto refused = [&](const std::string& type, const std::string& more) -> std::string {
        try {
            read(type, more);
        } catch (const Error& error) {
            return error.kind() == ErrorKind::bad_data ? error.message() : "";
        }
        return "";
    };
    auto names = [](const std::string& message, const char* what) { return message.find(what) != std::string::npos; };
    const ModelConfig mixtral = read("mixtral", ", \"num_local_experts\": 8, \"rope_theta\": 1000000.0");
    CHECK(mixtral.experts == 8);
    CHECK(mixtral.expert_width() == 96);
    CHECK(mixtral.experts_per_token() == 2);
    CHECK(mixtral.router_norm);
    CHECK(mixtral == read("mixtral",
                          ", \"num_local_experts\": 8, \"rope_parameters\": {\"rope_theta\": 1000000.0, "
                          "\"rope_type\": \"default\"}"));
    CHECK(names(refused("mixtral", ""), "num_local_experts"));
    CHECK(read("mixtral", ", \"num_local_experts\": 8, \"sliding_window\": 64").window == 64);
    const ModelConfig qwen3 = read("qwen3_moe", ", \"num_experts\": 8, \"moe_intermediate_size\": 48");
    CHECK(qwen3.expert_width() == 48);
    CHECK(qwen3 == read("qwen3_moe", ", \"num_local_experts\": 8, \"moe_intermediate_size\": 48"));   // transformers 5
    CHECK_FALSE(qwen3.router_norm);   // as nothing says it
    CHECK(qwen3.qk_norm == QkNorm::head);
    const std::string of_qwen3 = ", \"num_experts\": 8, \"moe_intermediate_size\": 48";
    CHECK(read("qwen3_moe", of_qwen3 + ", \"norm_topk_prob\": true").router_norm);
    CHECK(names(refused("qwen3_moe", of_qwen3 + ", \"decoder_sparse_step\": 2"), "decoder_sparse_step"));
    CHECK(names(refused("qwen3_moe", of_qwen3 + ", \"mlp_only_layers\": [0]"), "mlp_only_layers"));
    CHECK(names(refused("qwen3_moe", ", \"num_experts\": 8"), "moe_intermediate_size"));
    const ModelConfig olmoe = read("olmoe", ", \"num_experts\": 8, \"clip_qkv\": null");
    CHECK(olmoe.expert_width() == 96);
    CHECK_FALSE(olmoe.router_norm);
    CHECK(olmoe.qk_norm == QkNorm::row);
    CHECK(names(refused("olmoe", ", \"num_experts\": 8, \"clip_qkv\": 8.0"), "clip_qkv"));
    // what only training has stays in files of a family
    ModelConfig trained = olmoe;
    trained.aux_loss = 0.01, trained.router_z_loss = 0.001;
    CHECK(std::string(family_of(trained).model_type) == "olmoe");
    CHECK(through_config_json(trained) == trained);
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
    CHECK(four.rope_scaling == RopeScaling::llama3);
    CHECK(four.rope_factor == 8);
    CHECK(four.rope_original_len() == 8192);
    CHECK(four.kv_heads() == 2);
    CHECK(four.head_size() == 16);
    CHECK(through_config_json(four) == four);
    const ModelConfig linear =
        read(", \"rope_theta\": 500000.0, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}");
    CHECK(linear.rope_scaling == RopeScaling::linear);
    CHECK(linear.rope_factor == 2);
    CHECK(through_config_json(linear) == linear);
    CHECK(read(", \"rope_scaling\": null").rope_scaling == RopeScaling::none);
    for (const char* type : {"dynamic", "longrope", "proportional"}) {
        CHECK(refused(text(", \"rope_scaling\": {\"rope_type\": \"", type, "\", \"factor\": 8.0}")).find(type) !=
              std::string::npos);
    }
    CHECK(refused(", \"hidden_act\": \"gelu\"").find("hidden_act") != std::string::npos);
    CHECK(refused(", \"attention_bias\": true").find("attention_bias") != std::string::npos);
    CHECK(refused(", \"rms_norm_eps\": \"x\"").find("rms_norm_eps") != std::string::npos);
    CHECK(refused(", \"head_dim\": 20").find("heads of 20") != std::string::npos);
}

TEST_CASE("model file: a model's tokenizer is any that a folder may hold") {
    for (const char* name : {"tokenizer.json", "vocab.bpe", "tokenizer.model", "tokenizer.bin", "merges.txt"}) {
        TemporaryFolder folder;
        CHECK(tokenizer_of_model(real_files(), folder.path(), "").empty());
        write_whole(real_files(), folder / name, "");
        CHECK(tokenizer_of_model(real_files(), folder.path(), "") == folder.path());
        CHECK(tokenizer_of_model(real_files(), folder / "model.bin", "") == folder.path());
    }
}
