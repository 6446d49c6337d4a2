#include "llmc/kernels/fp8/fp8_blocks.cuh"

#include <algorithm>
#include <bit>
#include <cmath>

#include "llmc/kernels/kernel_testing.h"

namespace {

// The numbers of e4m3 that are not negative, by their codes, from the definition of the format.
Doubles e4m3_numbers() {
    Doubles numbers;
    for (int code = 0; code < 0x7f; code++) {   // 0x7f is NaN
        const int exponent = code >> 3, mantissa = code & 7;
        numbers.push_back(exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
    }
    return numbers;
}

double nearest_e4m3(double x) {
    static const Doubles numbers = e4m3_numbers();
    if (!std::isfinite(x)) return NAN;
    const double size = std::min(std::abs(x), numbers.back());
    const std::size_t above = static_cast<std::size_t>(std::ranges::lower_bound(numbers, size) - numbers.begin());
    if (numbers[above] == size) return std::copysign(size, x);
    const double up = numbers[above] - size, down = size - numbers[above - 1];
    const bool goes_up = up < down || (up == down && above % 2 == 0);   // an even code has an even mantissa
    return std::copysign(numbers[above - (goes_up ? 0 : 1)], x);
}

double scale_of(double largest) {
    double scale = std::ldexp(1.0, -100);
    while (largest / scale > 448 && scale < std::ldexp(1.0, 100)) scale *= 2;
    return scale;
}

// (rows, cols) in blocks of tall x 128.
Doubles reference(const Doubles& in, int rows, int cols, int tall) {
    Doubles out(in.size());
    for (int row = 0; row < rows; row += tall) {
        for (int col = 0; col < cols; col += 128) {
            auto for_block = [&](auto&& work) {
                for (int r = row; r < std::min(row + tall, rows); r++) {
                    for (int c = col; c < std::min(col + 128, cols); c++) work(static_cast<std::size_t>(r * cols + c));
                }
            };
            double largest = 0;
            for_block([&](std::size_t i) {
                if (std::isfinite(in[i])) largest = std::max(largest, std::abs(in[i]));
            });
            const double scale = scale_of(largest);
            for_block([&](std::size_t i) { out[i] = nearest_e4m3(in[i] / scale) * scale; });
        }
    }
    return out;
}

// Counts elements that differ, not-a-number being equal to itself.
int differing(const Doubles& a, const Doubles& b) {
    REQUIRE(a.size() == b.size());
    int count = 0;
    for (std::size_t i = 0; i < a.size(); i++) {
        count += std::isnan(a[i]) ? !std::isnan(b[i]) : a[i] != b[i] || std::signbit(a[i]) != std::signbit(b[i]);
    }
    return count;
}

template <class Real>
Doubles rows_rounded(KernelTest& test, const Doubles& in, int rows, int cols, std::size_t shift = 0) {
    TestTensor<Real> from = test.tensor<Real>(in, shift), to = test.output<Real>(in.size());
    round_rows_to_fp8(to.data(), from.data(), rows, cols, test.stream);
    return to.values();
}
template <class Real>
Doubles tiles_rounded(KernelTest& test, const Doubles& in, int rows, int cols, std::size_t shift = 0,
                      int matrices = 1) {
    TestTensor<Real> from = test.tensor<Real>(in, shift), to = test.output<Real>(in.size());
    round_tiles_to_fp8(to.data(), from.data(), matrices, rows, cols, test.stream);
    return to.values();
}

// Rows of 128 numbers: 448, so that the scale is 1, and others.
Doubles beside_448(const Doubles& values) {
    Doubles rows;
    for (std::size_t i = 0; i < values.size(); i++) {
        if (rows.size() % 128 == 0) rows.push_back(448);
        rows.push_back(values[i]);
    }
    rows.resize((rows.size() + 127) / 128 * 128);
    return rows;
}

}   // namespace

TEST_CASE("fp8: every bf16 number is rounded to the nearest of e4m3, ties to even") {
    KernelTest test;
    Doubles small, any;
    for (std::uint32_t bits = 0; bits < 65536; bits++) {
        const double x = std::bit_cast<float>(bits << 16);
        any.push_back(x);
        if (std::abs(x) <= 448) small.push_back(x);
    }
    const Doubles beside = beside_448(small);
    const int rows = static_cast<int>(beside.size() / 128);
    CHECK(differing(rows_rounded<bf16>(test, beside, rows, 128), reference(beside, rows, 128, 1)) == 0);
    // a block each: the element alone, so every scale there is
    CHECK(differing(rows_rounded<bf16>(test, any, 65536, 1), reference(any, 65536, 1, 1)) == 0);
}

TEST_CASE("fp8: numbers of fp32 beside the borders between two of e4m3 go to the nearest") {
    KernelTest test;
    const Doubles numbers = e4m3_numbers();
    Doubles borders;
    for (std::size_t i = 0; i + 1 < numbers.size(); i++) {
        const auto middle = static_cast<float>((numbers[i] + numbers[i + 1]) / 2);
        for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
            borders.push_back(x), borders.push_back(-x);
        }
    }
    const Doubles beside = beside_448(borders);
    const int rows = static_cast<int>(beside.size() / 128);
    CHECK(differing(rows_rounded<float>(test, beside, rows, 128), reference(beside, rows, 128, 1)) == 0);
}

TEST_CASE("fp8: scales are the least under which no number of their block is beyond 448") {
    KernelTest test;
    // the largest one's bits at the border, and numbers near zero, whose rounding shows the scale
    Doubles rows;
    int count = 0;
    for (const double largest : {448.0, 449.0, 224.0, 225.0, 1.75, 0x1.c00002p0, 1e-30, 0x1p-126, 3e38, 0.0}) {
        rows.push_back(largest);
        for (int i = 1; i < 128; i++) rows.push_back(largest * std::ldexp(1.0 + i / 256.0, -10 - i % 12));
        count++;
    }
    for (double& x : rows) x = static_cast<float>(x);
    const Doubles out = rows_rounded<float>(test, rows, count, 128);
    CHECK(differing(out, reference(rows, count, 128, 1)) == 0);
    CHECK(out[0] == 448);
    CHECK(out[128] == 448);                        // 224.5 under a scale of 2, nearest to 224
    CHECK(out[8 * 128] == std::ldexp(448, 100));   // saturated under the largest scale
}

TEST_CASE_TEMPLATE("fp8: blocks of rows and of tiles have their own scales, ragged ones too", Real, float, bf16) {
    KernelTest test;
    struct Size {
        int rows, cols;
        std::size_t shift;
    };
    for (const Size size : {Size{1, 8, 0},
                            {3, 128, 0},
                            {17, 200, 0},
                            {130, 264, 0},
                            {131, 261, 0},
                            {129, 136, 3},
                            {256, 576, 0},
                            {40, 1600, 0}}) {
        const std::size_t n = static_cast<std::size_t>(size.rows) * static_cast<std::size_t>(size.cols);
        Doubles in = random_values<Real>(n, 1.0, 7);
        for (std::size_t i = 0; i < n; i++) {   // blocks of other sizes
            in[i] = std::ldexp(in[i], static_cast<int>(i / static_cast<std::size_t>(size.cols) / 128 * 5 +
                                                       i % static_cast<std::size_t>(size.cols) / 128 * 3) -
                                          7);
        }
        INFO(size.rows, " x ", size.cols);
        CHECK(differing(rows_rounded<Real>(test, in, size.rows, size.cols, size.shift),
                        reference(in, size.rows, size.cols, 1)) == 0);
        CHECK(differing(tiles_rounded<Real>(test, in, size.rows, size.cols, size.shift),
                        reference(in, size.rows, size.cols, 128)) == 0);
    }
}

TEST_CASE("fp8: tiles do not reach from one matrix into the next") {
    KernelTest test;
    const Doubles first = random_values<bf16>(100 * 160, 1.0, 1), second = random_values<bf16>(100 * 160, 64.0, 2);
    Doubles both = first;
    both.insert(both.end(), second.begin(), second.end());
    Doubles expected = reference(first, 100, 160, 128), rest = reference(second, 100, 160, 128);
    expected.insert(expected.end(), rest.begin(), rest.end());
    CHECK(differing(tiles_rounded<bf16>(test, both, 100, 160, 0, 2), expected) == 0);
}

TEST_CASE_TEMPLATE("fp8: a number that is not finite is NaN, and does not change its neighbours", Real, float, bf16) {
    KernelTest test;
    Doubles in = random_values<Real>(2 * 128, 1.0, 9);
    in[3] = NAN, in[70] = INFINITY, in[128 + 5] = -INFINITY;
    for (const int tall : {1, 128}) {
        const Doubles out = tall == 1 ? rows_rounded<Real>(test, in, 2, 128) : tiles_rounded<Real>(test, in, 2, 128);
        CHECK(differing(out, reference(in, 2, 128, tall)) == 0);
        CHECK(std::isnan(out[3]));
        CHECK(std::isnan(out[70]));
        CHECK(std::isfinite(out[4]));
    }
}

TEST_CASE("fp8: products of rounded numbers lie within bf16, so that rounding again changes nothing") {
    KernelTest test;
    const Doubles in = random_values<float>(64 * 300, 3.0, 11);
    const Doubles once = rows_rounded<float>(test, in, 64, 300);
    CHECK(differing(once, rows_rounded<float>(test, once, 64, 300)) == 0);
    CHECK(differing(once, rows_rounded<bf16>(test, once, 64, 300)) == 0);
}
