// The stand-in's bf16: every value there and back, and every rounding against the definition (the nearest of the two
// neighbours, found in double precision; of two equally near ones the even).
#include <cuda_bf16.h>
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "llmc/cuda_on_cpu/blas/vector_math.h"

namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }
unsigned bits_of(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
bool is_nan(std::uint32_t bits) { return (bits & 0x7fffu) > 0x7f80u; }

// The value of a bf16 as if its exponent were not limited, so that the one after the largest is a number too.
double unlimited(std::uint32_t magnitude) { return magnitude == 0x7f80u ? std::ldexp(1.0, 128) : from_bits(magnitude); }

// The bf16 nearest to a finite x, ties to even, by comparing distances.
unsigned nearest(double x) {
    const std::uint32_t sign = std::signbit(x) ? 0x8000u : 0u;
    const double magnitude = std::fabs(x);
    std::uint32_t low = 0, high = 0x7f80u;   // the last one at most x, and the first above
    while (high - low > 1) {
        const std::uint32_t middle = (low + high) / 2;
        (unlimited(middle) <= magnitude ? low : high) = middle;
    }
    const double below = magnitude - unlimited(low), above = unlimited(high) - magnitude;
    if (magnitude >= unlimited(0x7f80u)) return sign | 0x7f80u;
    if (below < above) return sign | low;
    if (above < below) return sign | high;
    return sign | (low % 2 == 0 ? low : high);
}

}   // namespace

TEST_CASE("bf16: all 65,536 values survive the way to float and back") {
    for (std::uint32_t bits = 0; bits < 65536; bits++) {
        const __nv_bfloat16 x = __nv_bfloat16_raw{static_cast<unsigned short>(bits)};
        const float f = x;
        if (is_nan(bits)) {
            REQUIRE(std::isnan(f));
            REQUIRE(bits_of(__float2bfloat16(f)) == 0x7fffu);
            REQUIRE(is_nan(host::narrow_to_bf16(f)));
        } else {
            REQUIRE(std::bit_cast<std::uint32_t>(f) == bits << 16);
            REQUIRE(bits_of(__float2bfloat16(f)) == bits);
            REQUIRE(host::narrow_to_bf16(f) == bits);
            REQUIRE(bits_of(__double2bfloat16(static_cast<double>(f))) == bits);
        }
    }
}

TEST_CASE("bf16: floats between two values round to the nearest, ties to even; the other roundings to their side") {
    for (std::uint32_t bits = 0; bits < 65536; bits++) {
        if ((bits & 0x7f80u) == 0x7f80u) continue;   // infinities and NaN have no numbers behind them
        for (std::uint32_t rest : {1u, 0x1234u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
            const float f = std::bit_cast<float>(bits << 16 | rest);
            const unsigned want = rest < 0x8000u || (rest == 0x8000u && bits % 2 == 0) ? bits : bits + 1;
            REQUIRE(bits_of(__float2bfloat16_rn(f)) == want);
            REQUIRE(host::narrow_to_bf16(f) == want);
            const bool negative = bits >> 15;
            REQUIRE(bits_of(__float2bfloat16_rz(f)) == bits);
            REQUIRE(bits_of(__float2bfloat16_rd(f)) == bits + (negative ? 1 : 0));
            REQUIRE(bits_of(__float2bfloat16_ru(f)) == bits + (negative ? 0 : 1));
        }
    }
    // the definition agrees, here on numbers of all sizes
    std::uint32_t state = 1;
    for (int i = 0; i < 200000; i++) {
        state = state * 1664525u + 1013904223u;
        const float f = std::bit_cast<float>(state);
        if (!std::isfinite(f)) continue;
        REQUIRE(bits_of(__float2bfloat16(f)) == nearest(f));
    }
}

TEST_CASE("bf16: overflow, infinities, not-a-number") {
    CHECK(bits_of(__float2bfloat16(3.3895314e38f)) == 0x7f7fu);   // the largest
    CHECK(bits_of(__float2bfloat16(3.4028235e38f)) == 0x7f80u);   // beyond the middle to the next: infinite
    CHECK(bits_of(__float2bfloat16_rz(3.4028235e38f)) == 0x7f7fu);
    CHECK(bits_of(__float2bfloat16(INFINITY)) == 0x7f80u);
    CHECK(bits_of(__float2bfloat16(-INFINITY)) == 0xff80u);
    CHECK(bits_of(__float2bfloat16(-0.0f)) == 0x8000u);
    for (std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xff800001u, 0xffffffffu, 0x7fffffffu}) {
        const float f = std::bit_cast<float>(nan);
        for (auto convert :
             {__float2bfloat16, __float2bfloat16_rn, __float2bfloat16_rz, __float2bfloat16_rd, __float2bfloat16_ru}) {
            CHECK(bits_of(convert(f)) == 0x7fffu);
        }
        CHECK(is_nan(host::narrow_to_bf16(f)));
    }
}

TEST_CASE("bf16: doubles and integers are rounded once, not twice") {
    // 1 + 2^-8 lies between two bf16; a little more or less is lost on the way through float
    const double tie = 1.0 + 0x1p-8;
    CHECK(bits_of(__double2bfloat16(tie)) == 0x3f80u);
    CHECK(bits_of(__double2bfloat16(tie + 0x1p-40)) == 0x3f81u);
    CHECK(bits_of(__double2bfloat16(tie + 0x1p-7 - 0x1p-40)) == 0x3f81u);
    std::uint64_t state = 1;
    for (int i = 0; i < 100000; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        const double x =
            std::ldexp(static_cast<double>(static_cast<std::int64_t>(state)), static_cast<int>(state >> 8 & 127) - 120);
        REQUIRE(bits_of(__double2bfloat16(x)) == nearest(x));
        const auto n = static_cast<int>(state >> 32);
        REQUIRE(bits_of(__int2bfloat16_rn(n)) == nearest(n));
        REQUIRE(bits_of(__nv_bfloat16(static_cast<unsigned>(n))) == nearest(static_cast<unsigned>(n)));
    }
    CHECK(bits_of(__nv_bfloat16((1ll << 60) + (1ll << 52))) == bits_of(__float2bfloat16(0x1p60f)));
    CHECK(bits_of(__nv_bfloat16((1ll << 60) + (1ll << 52) + 1)) == bits_of(__float2bfloat16(0x1p60f)) + 1);
}

TEST_CASE("bf16: arithmetic is rounded once") {
    std::uint32_t state = 7;
    auto draw = [&] {   // finite, of moderate size, so that neither sums nor products overflow
        state = state * 1664525u + 1013904223u;
        return __nv_bfloat16_raw{static_cast<unsigned short>((state >> 16 & 0x8fffu) + 0x3800u)};
    };
    for (int i = 0; i < 100000; i++) {
        const __nv_bfloat16 a = draw(), b = draw(), c = draw();
        const double x = float(a), y = float(b), z = float(c);
        REQUIRE(bits_of(__hadd(a, b)) == nearest(x + y));   // exact in double: the exponents differ by at most 32
        REQUIRE(bits_of(__hsub(a, b)) == nearest(x - y));
        REQUIRE(bits_of(__hmul(a, b)) == nearest(x * y));
        REQUIRE(bits_of(__hfma(a, b, c)) == nearest(static_cast<double>(static_cast<long double>(x) * y + z)));
        REQUIRE(__hlt(a, b) == (x < y));
        REQUIRE(float(__hmax(a, b)) == std::max(x, y));
        const __nv_bfloat162 sum = __hadd2(__halves2bfloat162(a, b), __halves2bfloat162(c, a));
        REQUIRE(bits_of(sum.x) == bits_of(__hadd(a, c)));
        REQUIRE(bits_of(sum.y) == bits_of(__hadd(b, a)));
    }
    CHECK(std::isnan(float(__hmax(NAN, NAN))));
    CHECK(float(__hmin(NAN, 2.0f)) == 2.0f);
    CHECK_FALSE(__heq(NAN, NAN));
    CHECK(__hneu(NAN, NAN));
    CHECK_FALSE(__hne(NAN, NAN));
}
