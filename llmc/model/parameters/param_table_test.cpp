#include "llmc/model/parameters/param_table.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "llmc/base/error.h"
#include "llmc/model/same_weights.h"

namespace {

ErrorKind kind_of_error(const std::string& descriptor) {
    try {
        model_config(descriptor);
    } catch (const Error& error) {
        CHECK(error.hint().find("gpt2:124M") != std::string::npos);   // lists what exists
        CHECK(error.message().find(descriptor) != std::string::npos);
        return error.kind();
    }
    return ErrorKind::bug;
}

}   // namespace

TEST_CASE("config: which layers slide, and how many keys a query sees in each") {
    ModelConfig config = custom_model_config(6, 2, 32, 64, 97);
    auto sliding = [&] {
        std::string layers;
        for (int l = 0; l < 6; l++) layers += config.slides(l) ? 'S' : 'L';
        return layers;
    };
    CHECK(sliding() == "LLLLLL");
    CHECK(mean_keys(config, 8) == 4);
    config.window = 2;
    CHECK(sliding() == "SSSSSS");
    CHECK(keys_by_layer(config, 0, 8) == 1.75);   // of 8 queries two half keys, and 1.75 is (2 x 1 + 6 x 2) / 8
    CHECK(mean_keys(config, 8) == 1.75);
    config.layer_pattern = "SSSL";
    CHECK(sliding() == "SSSLSS");
    CHECK(keys_by_layer(config, 3, 8) == 4);
    CHECK(mean_keys(config, 8) == (5 * 1.75 + 4) / 6);
    CHECK(layer_flops_per_token(config, 8) ==
          doctest::Approx(layer_flops_per_token(custom_model_config(6, 2, 32, 64, 97), 8) -
                          3 * 4 * 32 * (4 - (5 * 1.75 + 4) / 6)));
    for (const int window : {1, 8, 9}) {
        config.window = window;
        config.layer_pattern = "SL";
        CHECK(config.window_cuts(8) == (window < 8));
        CHECK(keys_by_layer(config, 0, 8) == (window == 1 ? 1 - 1 / 16.0 : 4));
    }
    for (const char* pattern : {"S", "L", "SSSL", "LLSLSSLLLS"}) CHECK(pattern_of(pattern_number(pattern)) == pattern);
    CHECK(pattern_of(pattern_number(std::string(longest_pattern, 'S'))) == std::string(longest_pattern, 'S'));
}

TEST_CASE("config: patterns of layers that make no model are refused") {
    auto refused = [](std::int64_t window, const std::string& pattern) -> std::string {
        ModelConfig config = custom_model_config(3, 2, 32, 64, 97);
        config.window = window, config.layer_pattern = pattern;
        try {
            check_model_config(config);
        } catch (const Error& error) {
            return error.message();
        }
        return "";
    };
    CHECK(refused(4, "") == "");
    CHECK(refused(4, "SSL") == "");
    ModelConfig plain, cuts_nothing, other;   // 1,024 positions
    cuts_nothing.window = 1024, other.window = 1023;
    CHECK(have_same_weights(plain, cuts_nothing));
    CHECK_FALSE(have_same_weights(plain, other));
    CHECK(refused(0, "SL") == "not a model: --layer-pattern SL without a --window");
    CHECK(refused(4, "SSSL") == "not a model: --layer-pattern SSSL of 4 layers for 3");
    CHECK(refused(4, "LL") == "not a model: --layer-pattern LL, in which no layer slides");
    ModelConfig config;
    for (const ModelField& field : model_fields()) {
        if (field.letters == nullptr) continue;
        const std::string letters = field.letters, one(1, letters[0]);
        for (const char* wrong : {"SX", "sl", "S L", "RS", "0"}) CHECK_FALSE(field.read(config, wrong));
        CHECK_FALSE(field.read(config, std::string(longest_pattern + 1, letters[0])));
        CHECK(field.read(config, one + letters));
    }
    CHECK(config.layer_pattern == "SSL");
    CHECK(config.rope_layers == "RRN");
}

TEST_CASE("config: descriptors give the published sizes") {
    CHECK(model_config("d12") == model_config("gpt2:124M"));
    CHECK(model_config("gpt2:d48") == model_config("gpt2:1558M"));
    CHECK(model_config("gpt3:c2048") == model_config("gpt3:1300M"));
    CHECK(model_config("gpt2:124M").max_seq_len == 1024);
    CHECK(model_config("gpt3:125M").max_seq_len == 2048);
    CHECK(model_config("gpt3:13B").head_size() == 128);
    CHECK(model_config("d10") == custom_model_config(10, 10, 640));
    for (const char* qwen : {"qwen2:500M", "qwen3:600M"}) CHECK(model_config(qwen).norm_eps == 1e-6);
    // with their own vocabularies, the sizes that were published
    auto count = [](const char* descriptor, std::int64_t vocab) {
        ModelConfig config = model_config(descriptor);
        config.vocab_size = vocab, config.padded_vocab_size = padded_vocab(vocab);
        return parameter_count(config) - (padded_vocab(vocab) - vocab) * config.channels * (config.tied ? 1 : 2);
    };
    CHECK(count("llama:125M", 49152) == 134515008);      // SmolLM-135M
    CHECK(count("llama:350M", 49152) == 361821120);      // SmolLM-360M
    CHECK(count("llama:1B", 128256) == 1235814400);      // Llama-3.2-1B
    CHECK(count("llama:8B", 128256) == 8030261248);      // Meta-Llama-3-8B
    CHECK(count("qwen2:500M", 151936) == 494032768);     // Qwen2.5-0.5B
    CHECK(count("qwen2:1500M", 151936) == 1543714304);   // Qwen2.5-1.5B
    CHECK(count("qwen2:3B", 151936) == 3085938688);      // Qwen2.5-3B
    CHECK(count("qwen2:7B", 152064) == 7615616512);      // Qwen2.5-7B
    CHECK(count("smollm3:3B", 128256) == 3075098624);    // SmolLM3-3B
    CHECK(count("olmo3:7B", 100278) == 7298011136);      // Olmo-3-1025-7B
    CHECK(count("olmo3:32B", 100278) == 32233522176);    // Olmo-3-1125-32B
    CHECK(count("mistral:7B", 32000) == 7241732096);     // Mistral-7B-v0.1
    CHECK(count("qwen3:600M", 151936) == 596049920);     // Qwen3-0.6B
    CHECK(count("qwen3:1700M", 151936) == 1720574976);   // Qwen3-1.7B
    CHECK(count("qwen3:8B", 151936) == 8190735360);      // Qwen3-8B
    CHECK(flops_per_token(model_config("llama:1B"), 2048) ==
          3.0 * 16 * (4.0 * 2048 * 64 * 40 + 2.0 * 2048 * 32 * 64 + 6.0 * 2048 * 8192) + 6.0 * 2048 * 50257);
    CHECK(model_config("gpt2:124M").padded_vocab_size == 50304);
    // llm.c reports 124475904 for its d12: the 124439808 of GPT-2 and 47 padding rows of 768
    CHECK(parameter_count(model_config("d12")) == 124475904);
    CHECK(flops_per_token(model_config("d12"), 1024) == 6.0 * 124475904 + 6.0 * 12 * 768 * 1024);
}

TEST_CASE("config: a token of a mixture has the FLOPs of its chosen and shared experts and of the router") {
    ModelConfig config = custom_model_config(1, 2, 16, 32, 100);
    config.experts = 4, config.own_experts_per_token = 2, config.own_expert_width = 8, config.shared_experts = 1;
    // forward: 4 matrices of attention 4 x 2 x 16 x 16, its causal half 2 x 10 x 16, the router 2 x 4 x 16, three
    // experts of two matrices 3 x 2 x 2 x 8 x 16; both ways: three times that, and the classifier's 6 x 16 x 100
    CHECK(flops_per_token(config, 10) == 3 * (2048 + 320 + 128 + 1536) + 9600);
    config.mlp = MlpKind::swiglu, config.bias = Bias::none;   // three matrices
    CHECK(flops_per_token(config, 10) == 3 * (2048 + 320 + 128 + 2304) + 9600);
    config.layers = 5;
    CHECK(flops_per_token(config, 10) == 5 * 3 * (2048 + 320 + 128 + 2304) + 9600);
    config.layers = 1, config.experts = 64;   // only the router has more to do
    CHECK(flops_per_token(config, 10) == 3 * (2048 + 320 + 64 * 32 + 2304) + 9600);
    config.own_experts_per_token = 6, config.shared_experts = 0;
    CHECK(flops_per_token(config, 10) == 3 * (2048 + 320 + 64 * 32 + 6 * 768) + 9600);
}

TEST_CASE("config: names that do not exist are usage errors that list those that do") {
    for (const char* name :
         {"gpt2:125M", "gpt4:1T", "d0", "dx", "gpt3:c100", "", "d12x", "gpt2:d", "d99999999999999999999"}) {
        CHECK(kind_of_error(name) == ErrorKind::usage);
    }
    CHECK(is_descriptor("d12"));
    CHECK(is_descriptor("gpt3:nonsense"));
    CHECK_FALSE(is_descriptor("data/model.bin"));
    CHECK_FALSE(is_descriptor("d"));
}

TEST_CASE("config: sizes that make no model are usage errors") {
    CHECK_THROWS_AS(custom_model_config(0, 1, 64), Error);
    CHECK_THROWS_AS(custom_model_config(2, 3, 64), Error);
    CHECK_THROWS_AS(custom_model_config(2, 16, 64), Error);   // heads of 4
    CHECK_THROWS_AS(custom_model_config(2, 4, 64, 0), Error);
    CHECK_THROWS_AS(custom_model_config(2, 4, 64, 128, -5), Error);
    CHECK(custom_model_config(2, 3, 48, 32, 97).padded_vocab_size == 128);
}

TEST_CASE("param_table: indices, names and units agree") {
    ParamTable table(custom_model_config(3, 2, 32, 16, 100));
    CHECK(table.size() == 2 + 3 * 12 + 2);
    std::set<std::string> names;
    int next = 0;
    for (int unit = 0; unit < table.units(); unit++) {
        for (int i : table.unit_params(unit)) {
            CHECK(i == next++);   // units follow each other in table order
            CHECK(table.index(table[i].name) == i);
            CHECK(table.find(table[i].name) == i);
            names.insert(table[i].name);
        }
    }
    CHECK(next == table.size());
    CHECK(static_cast<int>(names.size()) == table.size());
    CHECK(table.find("h.0.attn.bias") == -1);
    CHECK(table.unit_params(table.head_unit(), true).front() == table.index("wte.weight"));
    CHECK(table.find("h.2.mlp.c_fc.weight") == table.index("mlp.c_fc.weight", 2));
}

TEST_CASE("param_table: an untied classifier is one tensor more, in the head") {
    ModelConfig config = custom_model_config(3, 2, 32, 16, 100);
    const ParamTable tied(config);
    config.tied = false;
    const ParamTable untied(config);
    CHECK(untied.size() == tied.size() + 1);
    CHECK(untied.elements() == tied.elements() + 128 * 32);
    for (int i = 0; i < tied.size(); i++) CHECK(untied[i].name == tied[i].name);
    const ParamInfo& classifier = untied[untied.classifier()];
    CHECK(classifier.name == "lm_head.weight");
    CHECK(classifier.unit == untied.head_unit());
    CHECK(classifier.exported_rows() == 100);
    CHECK_FALSE((classifier.hf_transposed || classifier.tensor.tied || untied[untied.index("wte.weight")].tensor.tied));
    CHECK(tied.classifier() == tied.index("wte.weight"));
    CHECK_THROWS_AS(tied.index("lm_head.weight"), Error);
    CHECK_THROWS_AS(untied.unit_params(untied.head_unit(), true), Error);
    CHECK(untied.unit_params(untied.head_unit()).back() == untied.index("lm_head.weight"));
}

TEST_CASE("param_table: initialisation, decay and orientation are GPT-2's") {
    ParamTable table(model_config("d12"));
    const ParamInfo& wte = table[table.index("wte.weight")];
    CHECK(wte.exported_rows() == 50257);
    CHECK(wte.tensor.rows == 50304);
    CHECK_FALSE(wte.hf_transposed);
    CHECK(wte.tensor.tied);
    CHECK(table[table.index("mlp.c_proj.weight", 5)].deviation == doctest::Approx(0.02 / std::sqrt(24.0)));
    CHECK(table[table.index("mlp.c_fc.weight", 5)].deviation == doctest::Approx(0.02));
    for (const ParamInfo& param : table.all()) {
        CHECK(param.decays == param.is_matrix());
        CHECK(param.orthogonal == (param.is_matrix() && param.layer >= 0));
        CHECK(param.hf_transposed == (param.is_matrix() && param.layer >= 0));
        if (!param.is_matrix()) CHECK(param.tensor.cols == 1);
        if (param.name.ends_with("bias")) CHECK(param.init == Init::zeros);
    }
}

TEST_CASE("param_table: Muon makes updates of all matrices of layers orthogonal, experts' too") {
    ModelConfig mixture = model_config("llama:125M");
    mixture.experts = 4, mixture.shared_experts = 1;
    for (const ModelConfig& config : {model_config("llama:125M"), mixture}) {
        const ParamTable table(config);
        for (const ParamInfo& param : table.all()) {
            INFO(param.name);
            CHECK(param.orthogonal == (param.is_matrix() && param.layer >= 0));
        }
    }
}

TEST_CASE("param_table: random keys follow from names, and no two tensors have one key") {
    // the names of every model that the program knows are among those of its deepest one, and the untied head's
    const ParamTable deepest(model_config("d1000"));
    std::set<std::uint64_t> keys{random_key(42, name_hash("lm_head.weight"))};
    for (const ParamInfo& param : deepest.all()) keys.insert(random_key(42, param.random_tensor()));
    CHECK(static_cast<int>(keys.size()) == deepest.size() + 1);

    const ParamTable small(custom_model_config(2, 2, 32));
    for (const ParamInfo& param : small.all()) {
        CHECK(param.random_tensor() == name_hash(param.name));
        CHECK(deepest[deepest.find(param.name)].random_tensor() == param.random_tensor());
    }
}

TEST_CASE("param_table: gradients of norms alone are partial under sequence parallelism") {
    const ParamTable table(custom_model_config(2, 2, 32, 16, 100));
    int norms = 0;
    for (const ParamInfo& param : table.all()) {
        const bool norm = param.name.find("ln_") != std::string::npos;
        norms += norm;
        INFO(param.name);
        CHECK(param.tensor.partial == (norm ? AxisSet{Axis::tp} : AxisSet{}));
    }
    CHECK(norms == 2 * 4 + 2);
}
