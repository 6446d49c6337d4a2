#include "llmc/base/rng.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>

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

TEST_CASE("rng: the hash of a name is FNV-1a") {
    // known answers of its authors (test vectors of fnv_64a)
    CHECK(name_hash("") == 0xcbf29ce484222325ull);
    CHECK(name_hash("a") == 0xaf63dc4c8601ec8cull);
    CHECK(name_hash("foobar") == 0x85944171f73967e8ull);
    static_assert(name_hash("h.0.attn.c_attn.weight") != name_hash("h.1.attn.c_attn.weight"));
}

namespace {

// Units in the last place of a float of this size.
double ulps(double actual, double expected) {
    const float size = std::max(std::abs(static_cast<float>(expected)), 0x1p-126f);
    return std::abs(actual - expected) / (std::nextafter(size, INFINITY) - size);
}

}   // namespace

TEST_CASE("rng: our logarithm and cosine are close to the exact ones everywhere") {
    double worst_log = 0, worst_cos = 0;
    for (std::uint32_t i = 1; i <= 1u << 24; i += i < 4096 || i > (1u << 24) - 4096 ? 1 : 251) {
        const double x = static_cast<double>(i) / 16777216.0;
        if (i < 1u << 24) worst_log = std::max(worst_log, ulps(exact_log(static_cast<float>(x)), std::log(x)));
        worst_cos = std::max(worst_cos, std::abs(exact_cos_of_turns(i) - std::cos(2 * M_PI * x)));
    }
    CHECK(exact_log(1.0f) == 0.0f);
    CHECK(worst_log <= 2);
    CHECK(worst_cos <= 0x1p-23);
    CHECK(exact_cos_of_turns(0) == 1.0f);
    CHECK(exact_cos_of_turns(1u << 23) == -1.0f);
    CHECK(exact_cos_of_turns(1u << 22) == 0.0f);
}

// Initial weights must not depend on compiler, C library or machine. These bits were computed once; a build that gets
// others starts every run with another model.
TEST_CASE("rng: normal numbers have the same bits everywhere") {
    CHECK(std::bit_cast<std::uint32_t>(normal(42, 0)) == 0xbf785e5cu);
    CHECK(std::bit_cast<std::uint32_t>(normal(42, 1)) == 0xbd95e01bu);
    CHECK(std::bit_cast<std::uint32_t>(normal(~0ull, ~0ull)) == 0xbdecaea6u);
    std::uint64_t hash = 0;
    for (std::uint64_t i = 0; i < 1u << 20; i++) hash = mix64(hash ^ std::bit_cast<std::uint32_t>(normal(7, i)));
    CHECK(hash == 0x3f6d5d85fcbcf100ull);
}

TEST_CASE("rng: normal numbers have the moments and tails of the normal distribution") {
    const int n = 1 << 21;
    double powers[5] = {};
    int beyond[5] = {};
    for (int i = 0; i < n; i++) {
        const double x = normal(42, static_cast<std::uint64_t>(i));
        double power = 1;
        for (double& sum : powers) {
            sum += power / n;
            power *= x;
        }
        for (int k = 1; k < 5; k++) beyond[k] += std::abs(x) > k;
    }
    // five standard errors each: of x^k that is sqrt(E[x^2k] - E[x^k]^2)
    const double error = 5 / std::sqrt(n);
    CHECK(std::abs(powers[1]) < error);
    CHECK(std::abs(powers[2] - 1) < error * std::sqrt(2));
    CHECK(std::abs(powers[3]) < error * std::sqrt(15));
    CHECK(std::abs(powers[4] - 3) < error * std::sqrt(96));
    for (int k = 1; k < 5; k++) {
        const double expected = std::erfc(k / std::sqrt(2.0)), deviation = std::sqrt(expected * (1 - expected) / n);
        CHECK(std::abs(static_cast<double>(beyond[k]) / n - expected) < 5 * deviation);
    }
}
