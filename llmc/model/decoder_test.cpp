#include "llmc/model/decoder.h"

#include <doctest/doctest.h>

#include <cmath>

#include "dev/test/reference/golden_gpt_testing.h"
#include "dev/test/reference/reference_gpt_testing.h"
#include "llmc/base/stream.h"
#include "llmc/model/weights.h"

namespace {

constexpr double parity = sizeof(floatX) == 4 ? 1e-5 : 2e-2;   // relative error by norm, as of all of the model

// The golden model, and the logits that an independent implementation has of its sequences.
struct GoldenDecoder {
    GoldenGpt golden = load_golden();
    OwnedStream stream;
    Arena arena;
    Decoder decoder{golden.config, arena, stream.get()};

    GoldenDecoder() {
        for (std::size_t i = 0; i < golden.parameters.size(); i++) {
            const std::vector<float> values(golden.parameters[i].begin(), golden.parameters[i].end());
            upload_tensor<floatX>(decoder.parameters(), static_cast<int>(i), values, stream.get());
        }
    }
    std::span<const std::int32_t> sequence(int b) const {
        const auto T = static_cast<std::size_t>(golden.T);
        return std::span<const std::int32_t>(golden.tokens).subspan(static_cast<std::size_t>(b) * T, T);
    }
    // Returns the relative error of `logits` after position t of sequence b.
    double error(const std::vector<float>& logits, int b, int t) const {
        const auto V = static_cast<std::size_t>(golden.config.vocab_size);
        REQUIRE(logits.size() == V);
        const double* expected = &golden.logits[static_cast<std::size_t>(b * golden.T + t) * V];
        double difference = 0, norm = 0;
        for (std::size_t i = 0; i < V; i++) {
            difference += (logits[i] - expected[i]) * (logits[i] - expected[i]);
            norm += expected[i] * expected[i];
        }
        return std::sqrt(difference / norm);
    }
};

}   // namespace

TEST_CASE("decoder: token by token, its logits are those of an independent implementation's whole pass") {
    GoldenDecoder test;
    for (int b = 0; b < test.golden.B; b++) {
        test.decoder.forget();
        for (int t = 0; t < test.golden.T; t++) {
            CHECK(test.error(test.decoder.read(test.sequence(b).subspan(static_cast<std::size_t>(t), 1)), b, t) <
                  parity);
        }
        CHECK(test.decoder.position() == test.golden.T);
    }
}

TEST_CASE("decoder: tokens read at once, or some at once and some alone, leave the same behind") {
    GoldenDecoder test;
    const int last = test.golden.T - 1;
    for (std::size_t at_once : {1u, 2u, 5u, 16u}) {
        test.decoder.forget();
        const auto tokens = test.sequence(0);
        test.decoder.read(tokens.first(at_once));
        CHECK(test.error(test.decoder.read(tokens.subspan(at_once)), 0, last) < parity);
    }
}

TEST_CASE("decoder: its logits are those of a double-precision model, for every kind of model") {
    std::vector<ModelConfig> kinds(13, custom_model_config(3, 2, 32, 16, 97));
    kinds[1].tied = false;
    kinds[2].norm = NormKind::rms;
    kinds[3] = llama_like(kinds[3], 1);
    kinds[4] = llama_like(custom_model_config(2, 4, 64, 16, 97), 2);
    kinds[4].own_head_size = 32, kinds[4].bias = Bias::all, kinds[4].tied = false, kinds[4].own_mlp_width = 40;
    kinds[4].qk_norm = QkNorm::head;
    kinds[5].norm_position = NormPosition::after;
    kinds[6] = kinds[4], kinds[6].norm_position = NormPosition::after, kinds[6].qk_norm = QkNorm::row;
    kinds[7] = with_experts(llama_like(custom_model_config(1, 4, 64, 16, 97), 2), 4, 2, 24);
    kinds[7].shared_experts = 1;
    kinds[8] = with_experts(llama_like(custom_model_config(2, 4, 64, 16, 97), 2), 4, 2, 24);
    kinds[8].router = RouterScore::sigmoid;
    kinds[9].window = 3, kinds[9].layer_pattern = "SL";
    kinds[10] = kinds[4], kinds[10].bias = Bias::qkv, kinds[10].window = 5, kinds[10].rope_window_theta = 50;
    kinds[11].window = 1, kinds[12].window = 16;   // of a token alone, of all positions
    for (const ModelConfig& config : kinds) {
        ReferenceGpt reference(config);
        if (config.router == RouterScore::sigmoid)
            reference.router_bias = {0.25, 0, -0.25, 0.125, -0.25, 0.25, 0, 0.125};
        OwnedStream stream;
        Arena arena;
        Decoder decoder(config, arena, stream.get());
        const std::vector<int> tokens{5, 96, 0, 17, 17, 3, 88, 41, 2}, targets(tokens.size(), -1);
        Doubles expected;
        // a token's choice of experts must be one that no rounding changes
        for (std::uint64_t seed = 0; expected.empty(); seed++) {
            REQUIRE(seed < 2000);
            for (int i = 0; i < reference.table.size(); i++) {
                const ParamInfo& param = reference.table[i];
                for (std::size_t k = 0; k < static_cast<std::size_t>(param.exported_elements()); k++) {
                    const float drawn = (param.init == Init::ones ? 1.0f : 0.0f) +
                                        0.2f * normal(mix64(seed) ^ mix64(0) ^ param.random_tensor(), k);
                    reference.parameters[static_cast<std::size_t>(i)][k] =
                        static_cast<double>(static_cast<float>(static_cast<floatX>(drawn)));
                }
            }
            reference.smallest_gap = INFINITY;
            const Doubles logits = reference.forward(tokens, targets, 1, static_cast<int>(tokens.size())).logits;
            if (reference.smallest_gap > (sizeof(floatX) == 4 ? 1e-2 : 0.2)) expected = logits;
        }
        for (int i = 0; i < reference.table.size(); i++) {
            const Doubles& from = reference.parameters[static_cast<std::size_t>(i)];
            upload_tensor<floatX>(decoder.parameters(), i, std::vector<float>(from.begin(), from.end()), stream.get());
        }
        decoder.router_bias().set(std::vector<float>(reference.router_bias.begin(), reference.router_bias.end()));
        const std::span<const std::int32_t> all(tokens);
        decoder.read(all.first(4));   // some at once, then one by one
        for (std::size_t t = 4; t < tokens.size(); t++) {
            const std::vector<float> logits = decoder.read(all.subspan(t, 1));
            double difference = 0, size = 0;
            for (std::size_t i = 0; i < logits.size(); i++) {
                const double e = expected[t * logits.size() + i];
                difference += (logits[i] - e) * (logits[i] - e);
                size += e * e;
            }
            INFO(describe(config), ", token ", t);
            CHECK(std::sqrt(difference / size) < parity);
        }
    }
}

TEST_CASE(
    "decoder: a layer with a window keeps little more than the window, and its logits are those of a whole pass") {
    for (const int window : {1, 3, 40}) {
        ModelConfig config = custom_model_config(2, 2, 16, 300, 31);
        config.window = window, config.layer_pattern = "SL";
        ReferenceGpt reference(config);
        OwnedStream stream;
        Arena arena;
        Decoder decoder(config, arena, stream.get());
        for (int i = 0; i < reference.table.size(); i++) {
            Doubles& values = reference.parameters[static_cast<std::size_t>(i)];
            for (std::size_t k = 0; k < static_cast<std::size_t>(reference.table[i].exported_elements()); k++) {
                values[k] = static_cast<double>(static_cast<float>(
                    static_cast<floatX>(0.2f * normal(7, reference.table[i].random_tensor() * 65536 + k))));
            }
            upload_tensor<floatX>(decoder.parameters(), i, std::vector<float>(values.begin(), values.end()),
                                  stream.get());
        }
        std::vector<int> tokens, targets(300, -1);
        for (int t = 0; t < 300; t++) tokens.push_back(t * 7 % 31);
        const Doubles expected = reference.forward(tokens, targets, 1, 300).logits;
        for (int turn = 0; turn < 2; turn++) {   // a second text begins with an empty cache
            decoder.forget();
            std::size_t read = 0;
            for (const std::size_t count : {50, 128, 1, 1, 100, 20}) {   // the second moves 39 rows of 40 by 11
                const std::vector<float> logits = decoder.read(std::span(tokens).subspan(read, count));
                read += count;
                double difference = 0, size = 0;
                for (std::size_t i = 0; i < logits.size(); i++) {
                    const double e = expected[(read - 1) * logits.size() + i];
                    difference += (logits[i] - e) * (logits[i] - e), size += e * e;
                }
                INFO("window ", window, ", ", read, " tokens");
                CHECK(std::sqrt(difference / size) < parity);
            }
            CHECK(read == 300);
        }
        std::size_t kept = 0;
        for (const Allocation& row : arena.allocations()) kept += row.name.starts_with("cache/") ? row.bytes : 0;
        const std::size_t row = 2 * 16 * sizeof(floatX);
        CHECK(kept == row * (300 + static_cast<std::size_t>(window) - 1 + 128 + static_cast<std::size_t>(window) / 8));
    }
}
