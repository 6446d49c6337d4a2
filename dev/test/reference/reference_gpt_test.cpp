// The double-precision model against central differences of its own loss, and against the independent implementation's
// golden data (dev/reference/).
#include "dev/test/reference/reference_gpt_testing.h"

#include <doctest/doctest.h>

#include "dev/test/reference/golden_gpt_testing.h"
#include "llmc/base/rng.h"

namespace {

struct Example {
    ReferenceGpt model;
    std::vector<int> tokens, targets;
    int B, T;
};

// Weights large enough that every part of the model matters, biases and layernorms included.
Example make_example(const ModelConfig& config, int B, int T, std::uint64_t seed) {
    Example e{ReferenceGpt(config), {}, {}, B, T};
    for (int i = 0; i < e.model.table.size(); i++) {
        const ParamInfo& param = e.model.table[i];
        Doubles& values = e.model.parameters[static_cast<std::size_t>(i)];
        const double center = param.init == Init::ones ? 1.0 : 0.0;
        const auto real = static_cast<std::size_t>(param.exported_elements());
        for (std::size_t k = 0; k < real; k++)
            values[k] = center + 0.3 * normal(mix64(seed ^ param.random_tensor()), k);
    }
    for (int r = 0; r < B * T; r++) {
        const std::uint64_t bits = mix64(seed + 1000 + static_cast<std::uint64_t>(r));
        e.tokens.push_back(static_cast<int>(bits % static_cast<std::uint64_t>(config.vocab_size)));
        e.targets.push_back(static_cast<int>((bits >> 32) % static_cast<std::uint64_t>(config.vocab_size)));
    }
    return e;
}

// (loss(x + h) - loss(x - h)) / 2h, with Richardson's extrapolation over two step sizes.
double central_difference(Example& e, std::size_t tensor, std::size_t element) {
    double& x = e.model.parameters[tensor][element];
    const double kept = x;
    auto slope = [&](double h) {
        x = kept + h;
        const double above = e.model.forward(e.tokens, e.targets, e.B, e.T).loss;
        x = kept - h;
        const double below = e.model.forward(e.tokens, e.targets, e.B, e.T).loss;
        x = kept;
        return (above - below) / (2 * h);
    };
    const double h = 1e-4;
    return (4 * slope(h) - slope(2 * h)) / 3;
}

// About ten elements of `count`, the first and the last among them.
std::vector<std::size_t> spread(std::size_t count) {
    std::vector<std::size_t> elements;
    for (std::size_t k = 0; k + 1 < count; k += std::max<std::size_t>(1, count / 9)) elements.push_back(k);
    elements.push_back(count - 1);
    return elements;
}

// |a - b| / |b| by Euclidean norm.
double relative_error(const Doubles& a, const Doubles& b) {
    REQUIRE(a.size() == b.size());
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < a.size(); i++) {
        error += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return std::sqrt(error / norm);
}

}   // namespace

namespace {

void check_gradients(const ModelConfig& config, double z_loss = 0) {
    Example e = make_example(config, 2, 5, 3);
    e.model.z_loss = z_loss;
    const ReferenceResult result = e.model.forward_backward(e.tokens, e.targets, e.B, e.T);
    for (int i = 0; i < e.model.table.size(); i++) {
        const ParamInfo& param = e.model.table[i];
        const Doubles& gradient = result.gradients[static_cast<std::size_t>(i)];
        double error = 0, norm = 0;
        for (std::size_t k : spread(static_cast<std::size_t>(param.exported_elements()))) {
            const double expected = central_difference(e, static_cast<std::size_t>(i), k);
            error += (gradient[k] - expected) * (gradient[k] - expected);
            norm += expected * expected;
        }
        INFO(param.name);
        CHECK(std::sqrt(error) <= 1e-8 * std::sqrt(norm) + 1e-10);
        if (param.name != "wpe.weight" && (config.tied || param.name != "wte.weight")) CHECK(norm > 0);
    }
}

}   // namespace

TEST_CASE(
    "reference_gpt: gradients of every tensor agree with central differences, the classifier tied or not, RMSNorm") {
    ModelConfig config = custom_model_config(2, 2, 16, 7, 11);
    check_gradients(config);
    config.tied = false;
    check_gradients(config);
    config.norm = NormKind::rms;
    check_gradients(config);
    config.window = 2, config.layer_pattern = "LS";
    check_gradients(config);
}

TEST_CASE("reference_gpt: gradients of a model of Llama's kind agree with central differences") {
    for (const std::int64_t kv_heads : {1, 2, 4}) {
        ModelConfig config = llama_like(custom_model_config(2, 4, 64, 7, 11), kv_heads);
        config.own_mlp_width = 24;
        config.tied = kv_heads == 2;
        if (kv_heads == 4) config.own_head_size = 32;
        if (kv_heads != 1) config.qk_norm = kv_heads == 2 ? QkNorm::head : QkNorm::row;
        if (kv_heads != 2) config.norm_position = NormPosition::after;
        if (kv_heads == 4) config.bias = Bias::qkv;
        if (kv_heads == 1) config.bias = Bias::all, config.mlp = MlpKind::gelu;
        if (kv_heads != 2) config.rope_factor = 8;
        if (kv_heads != 2) config.rope_scaling = kv_heads == 1 ? RopeScaling::llama3 : RopeScaling::yarn;
        if (kv_heads == 4) config.window = 3, config.layer_pattern = "SL", config.rope_window_theta = 50;
        if (kv_heads == 2) config.rope_layers = "RN";
        check_gradients(config, kv_heads == 2 ? 0.1 : 0.0);
    }
}

TEST_CASE("reference_gpt: gradients of mixtures of experts agree with central differences") {
    const ModelConfig gpt2 = custom_model_config(2, 2, 16, 7, 11);
    ModelConfig config = with_experts(gpt2, 5, 2, 24);
    check_gradients(config);
    config.router_norm = false, config.mlp = MlpKind::swiglu, config.shared_experts = 2;
    check_gradients(config);
    config.aux_loss = 0.3, config.router_z_loss = 0.1, config.router_scale = 2.5;
    check_gradients(config);
    config.router = RouterScore::sigmoid, config.router_norm = true, config.shared_experts = 0;
    check_gradients(config);
}

TEST_CASE("reference_gpt: padding rows and unused positions get no gradient, ignored targets no loss") {
    Example e = make_example(custom_model_config(1, 1, 8, 9, 5), 1, 4, 8);
    e.targets[2] = -1;
    const ReferenceResult result = e.model.forward_backward(e.tokens, e.targets, e.B, e.T);
    CHECK(result.losses[2] == 0.0);
    const Doubles& dwte = result.gradients[0];
    const Doubles& dwpe = result.gradients[1];
    for (std::size_t k = 5 * 8; k < dwte.size(); k++) REQUIRE(dwte[k] == 0.0);
    for (std::size_t k = 4 * 8; k < dwpe.size(); k++) REQUIRE(dwpe[k] == 0.0);
}

TEST_CASE("reference_gpt: agrees with the independent implementation's golden data") {
    const GoldenGpt golden = load_golden();
    ReferenceGpt model(golden.config);
    model.parameters = golden.parameters;
    const ReferenceResult result = model.forward_backward(golden.tokens, golden.targets, golden.B, golden.T);
    CHECK(std::abs(result.loss - golden.loss) < 1e-12);
    CHECK(relative_error(result.logits, golden.logits) < 1e-12);
    CHECK(relative_error(result.losses, golden.losses) < 1e-12);
    for (int i = 0; i < model.table.size(); i++) {
        INFO(model.table[i].name);
        const auto index = static_cast<std::size_t>(i);
        CHECK(relative_error(result.gradients[index], golden.gradients[index]) < 1e-12);
    }
}
