#include "llmc/run/evaluation/windows.h"

#include <doctest/doctest.h>

TEST_CASE("evaluation: a pass has rows of about one length, as many as there is room for") {
    const std::vector<int> lengths{150, 140, 60, 60, 60, 3, 3};
    CHECK(passes_of(lengths, {2, 192, 1}) == std::vector<Pass>{{2, 192, 0, 2}, {5, 64, 2, 7}});
    CHECK(passes_of(lengths, {9, 192, 1}) == std::vector<Pass>{{2, 192, 0, 2}, {5, 64, 2, 7}});   // none wastes tokens
    CHECK(passes_of(lengths, {1, 192, 1}) ==
          std::vector<Pass>{{1, 192, 0, 1}, {1, 192, 1, 2}, {3, 64, 2, 5}, {2, 64, 5, 7}});
    const std::vector<int> short_ones(40, 12);
    CHECK(passes_of(short_ones, {4, 131072, 1}) == std::vector<Pass>{{40, 64, 0, 40}});
    CHECK(passes_of({}, {4, 64, 1}).empty());
}

TEST_CASE("evaluation: replicas share the rows of a pass, each with as many") {
    const std::vector<int> lengths{150, 140, 60, 60, 60, 3, 3};
    CHECK(passes_of(lengths, {1, 192, 1, 2}) == std::vector<Pass>{{1, 192, 0, 2}, {3, 64, 2, 7}});
    CHECK(passes_of(lengths, {1, 192, 1, 10}) == std::vector<Pass>{{1, 192, 0, 2}, {1, 64, 2, 7}});
}

TEST_CASE("evaluation: ranks that share rows can share those of every pass") {
    const std::vector<int> lengths{15, 14, 2};
    // 15 tokens cannot be shared by two, but those of two sequences can
    CHECK(passes_of(lengths, {2, 15, 2}) == std::vector<Pass>{{2, 15, 0, 1}, {2, 14, 1, 3}});
    CHECK(passes_of(std::vector<int>{100}, {1, 240, 12}) == std::vector<Pass>{{1, 192, 0, 1}});   // 128 is no 12 x n
    CHECK(window_size(64, 10, 1) == 64);
    CHECK(window_size(40, 10, 16) == 32);
    CHECK(window_size_for(40, 32, 16) == 32);
    CHECK(window_size_for(40, 33, 16) == 40);
}
