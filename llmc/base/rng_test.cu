#include "llmc/base/rng.h"

#include <doctest/doctest.h>

TEST_CASE("rng: Philox4x32-10 gives the known answers of its authors") {
    // Random123's kat_vectors: all zeros, all ones, and the digits of pi
    Random4 zeros = philox(0, 0, 0);
    CHECK(zeros.x == 0x6627e8d5u);
    CHECK(zeros.y == 0xe169c58du);
    CHECK(zeros.z == 0xbc57ac4cu);
    CHECK(zeros.w == 0x9b00dbd8u);
    Random4 ones = philox(~0ull, ~0ull, ~0ull);
    CHECK(ones.x == 0x408f276du);
    CHECK(ones.y == 0x41c83b0eu);
    CHECK(ones.z == 0xa20bc7c6u);
    CHECK(ones.w == 0x6d5451fdu);
}

TEST_CASE("rng: normal numbers have mean 0 and variance 1") {
    double sum = 0, squares = 0;
    const int n = 100000;
    for (int i = 0; i < n; i++) {
        double x = normal(42, static_cast<std::uint64_t>(i));
        sum += x;
        squares += x * x;
    }
    CHECK(std::abs(sum / n) < 0.01);
    CHECK(std::abs(squares / n - 1) < 0.02);
}
