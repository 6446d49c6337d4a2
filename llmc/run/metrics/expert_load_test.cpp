#include "llmc/run/metrics/expert_load.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

TEST_CASE("expert load: the worst layer's, relative to an even load") {
    const ExpertLoad even = expert_load(std::vector<std::int32_t>{5, 5, 5, 5}, 4);
    CHECK(even.fullest == 1);
    CHECK(even.emptiest == 1);
    CHECK(even.entropy == doctest::Approx(1));
    // the fullest expert is in the second layer, the emptiest in the third
    const ExpertLoad load = expert_load(std::vector<std::int32_t>{3, 3, 3, 3, 9, 1, 1, 1, 4, 4, 4, 0}, 4);
    CHECK(load.fullest == 3);
    CHECK(load.emptiest == 0);
    CHECK(load.entropy == doctest::Approx(-(0.75 * std::log(0.75) + 0.25 * std::log(1.0 / 12)) / std::log(4.0)));
    CHECK(expert_load(std::vector<std::int32_t>{7, 7}, 1).entropy == 1);         // one expert is even
    CHECK(expert_load(std::vector<std::int32_t>{0, 0, 4, 0}, 2).fullest == 2);   // the first layer had none
    CHECK(expert_load(std::vector<std::int32_t>{0, 4}, 2).entropy == doctest::Approx(0));
}
