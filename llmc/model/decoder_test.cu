#include "llmc/model/decoder.h"

#include <doctest/doctest.h>

#include <cmath>

#include "llmc/base/stream.h"
#include "llmc/model/golden_gpt_test.h"
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
    // Of `logits` after position t of sequence b.
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
