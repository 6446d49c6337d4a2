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

TEST_CASE("expert load: a line of progress tells the load, and the router's losses that are on") {
    CHECK(load_text({1.5, 0.25, 0.75, 0, 0}) == "experts 0.25-1.50, entropy 0.750");
    CHECK(load_text({1.5, 0.25, 0.75, 0.0204, 0}) == "experts 0.25-1.50, entropy 0.750, balance loss 0.0204");
    CHECK(load_text({1.5, 0.25, 0.75, 0, 3e-4}) == "experts 0.25-1.50, entropy 0.750, router z-loss 0.0003");
    CHECK(load_text({1, 1, 1, 0.02, 1e-3}) ==
          "experts 1.00-1.00, entropy 1.000, balance loss 0.02, router z-loss 0.001");
}

TEST_CASE("expert load: the share dropped is that of all layers, and is told with a capacity alone") {
    const std::vector<std::int32_t> counts = {3, 3, 3, 3, 9, 1, 1, 1};
    CHECK(dropped_share({}, counts) == std::nullopt);
    CHECK(dropped_share(std::vector<std::int32_t>{0, 6}, counts) == 0.25);
    CHECK(dropped_share(std::vector<std::int32_t>{0, 0}, counts) == 0.0);
    CHECK(dropped_share(std::vector<std::int32_t>{0, 0}, std::vector<std::int32_t>(8, 0)) == 0.0);
    ExpertLoad load{1.5, 0.25, 0.75, 0.02, 0};
    load.dropped = 0.0125;
    CHECK(load_text(load) == "experts 0.25-1.50, entropy 0.750, 1.25% dropped, balance loss 0.02");
    load.dropped = 0;
    CHECK(load_text(load) == "experts 0.25-1.50, entropy 0.750, 0.00% dropped, balance loss 0.02");
}

TEST_CASE("expert load: rows of the fullest rank, relative to the mean of the ranks, layer by layer") {
    const std::vector<std::int32_t> counts = {3, 3, 3, 3, 9, 1, 1, 1, 0, 0, 0, 0};
    // of two ranks with two experts each, of four with one
    CHECK(rank_loads(std::vector<std::int32_t>{6, 10, 0}, counts, {}, 4, 2) == std::vector<double>{1, 10 / 6.0, 1});
    CHECK(rank_loads(std::vector<std::int32_t>{3, 9, 0}, counts, {}, 4, 4) == std::vector<double>{1, 3, 1});
    CHECK(rank_loads({}, counts, {}, 4, 2).empty());
    // relative to the rows that were not dropped: 12 of 12, and 8 of 12
    CHECK(rank_loads(std::vector<std::int32_t>{6, 5, 0}, counts, std::vector<std::int32_t>{0, 4, 0}, 4, 2) ==
          std::vector<double>{1, 1.25, 1});
}
