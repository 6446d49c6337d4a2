#include "llmc/run/loop/step_batch.h"

#include <doctest/doctest.h>

TEST_CASE("step batch: pairs of a query and a key are counted as the mean of layers with a window and without") {
    ModelConfig config = custom_model_config(2, 1, 8, 8);
    config.window = 3, config.layer_pattern = "SL";
    auto pairs = [&](int rank, std::vector<std::int32_t> starts) {
        return seen_pairs(config, starts, {2, 1, rank}, 8);
    };
    // rank 0 has tokens 0, 1, 6, 7: 18 pairs, of which the window leaves 1 + 2 + 3 + 3; rank 1 has 18, and 4 x 3
    CHECK(pairs(0, {0, 0, 0, 0}) == (18 + 9) / 2.0);
    CHECK(pairs(1, {0, 0, 0, 0}) == (18 + 12) / 2.0);
    // a document begins at token 5
    CHECK(pairs(0, {0, 0, 5, 5}) == 1 + 2 + 2 + 3);
    CHECK(pairs(1, {0, 0, 0, 5}) == (3 + 4 + 5 + 1 + 3 + 3 + 3 + 1) / 2.0);
    config.window = 8;
    CHECK(pairs(1, {0, 0, 0, 0}) == 18);
}
