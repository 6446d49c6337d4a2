#include "llmc/train/sampler.h"

#include <doctest/doctest.h>

#include "llmc/base/rng.h"

TEST_CASE("sampler: tokens are drawn with the probabilities of the softmax") {
    const std::vector<float> logits{0.0f, 1.0f, -1.0f, 1.0f};
    CHECK(choose_token(logits, 0.0f, 0.9f) == 1);   // the first of equals
    CHECK(choose_token(logits, 1.0f, 1e-6f) == 0);
    CHECK(choose_token(logits, 1.0f, 1.0f) == 3);

    for (float temperature : {0.5f, 1.0f, 2.0f}) {
        double sum = 0, weights[4];
        for (int i = 0; i < 4; i++) sum += weights[i] = std::exp(logits[static_cast<std::size_t>(i)] / temperature);
        int counts[4] = {};
        const int draws = 20000;
        for (int i = 0; i < draws; i++) {
            counts[choose_token(logits, temperature, uniform(philox(7, static_cast<std::uint64_t>(i)).x))]++;
        }
        for (int i = 0; i < 4; i++) CHECK(counts[i] / double{draws} == doctest::Approx(weights[i] / sum).epsilon(0.08));
    }
    CHECK(choose_token(std::vector<float>{0.0f, NAN}, 1.0f, 0.5f) >= 0);   // a broken model does not break the run
}
