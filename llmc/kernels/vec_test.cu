#include "llmc/kernels/vec.cuh"

#include <bit>

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/exp.cuh"
#include "llmc/kernels/kernel_testing.h"
#include "llmc/kernels/rows/add_rows.cuh"

namespace {

template <class T, Cache cache>
__global__ void copy_kernel(T* out, const T* in, Extent extent) {
    std::int64_t i = thread_first_element();
    if (i < extent.count) store8<cache>(out, i, extent, load8<cache>(in, i, extent));
}

template <class Real>
__global__ void exp_kernel(float* out, const float* in, Extent extent) {
    std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    Vec8<float> x = load8(in, i, extent);
    for (int k = 0; k < 8; k++) x[k] = exp_for<Real>(x[k]);
    store8(out, i, extent, x);
}

template <class T>
__global__ void convert_kernel(T* out, const float* in, std::int64_t count) {
    const std::int64_t i = thread_first_element();
    const Extent extent{count, true};
    if (i < count) store8(out, i, extent, round_to<T>(load8(in, i, extent)));
}
template <class T>
__global__ void widen_kernel(float* out, const T* in, std::int64_t count) {
    const std::int64_t i = thread_first_element();
    const Extent extent{count, true};
    if (i < count) store8(out, i, extent, to_floats(load8(in, i, extent)));
}

// Which way the work of a thread went: 1 for packets, 2 for single elements.
__global__ void way_kernel(int* ways, Extent extent) {
    const std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    with_known_extent(i, extent,
                      [&](auto known) { ways[i / 8] += std::is_same_v<decltype(known), PacketExtent> ? 1 : 2; });
}

// Adds rows first, first + step, ... before `end`, twelve under way together.
template <class T>
__global__ void add_rows_kernel(float* out, const T* in, int first, int end, int step, Extent extent) {
    const std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    Vec8<float> sum = {};
    with_known_extent(i, extent, [&](auto known) {
        add_rows<12>(
            sum, first, end, step, [&](int row) { return in + row * extent.count; }, i, known);
        store8(out, i, known, sum);
    });
}

template <class T>
struct Copies {
    static constexpr auto keep = copy_kernel<T, Cache::keep>;
    static constexpr auto stream = copy_kernel<T, Cache::stream>;
};

}   // namespace

TEST_CASE_TEMPLATE("vec: eight at a time copies any length and alignment, and nothing beside it", T, float, bf16) {
    KernelTest test;
    for (std::size_t n : {1u, 7u, 8u, 9u, 31u, 2048u, 2049u}) {
        for (std::size_t shift : {0u, 1u, 4u, 8u}) {
            for (auto kernel : {Copies<T>::keep, Copies<T>::stream}) {
                auto in = test.random<T>(n, 1.0, n, shift), out = test.output<T>(n, shift);
                Extent extent{static_cast<std::int64_t>(n), packets_fit(in.data(), out.data())};
                CHECK(extent.packets == (shift * sizeof(T) % 16 == 0));
                launch(kernel,
                       elementwise_launch(extent.count, test.stream)
                           .reads(in.data(), n * sizeof(T))
                           .writes(out.data(), n * sizeof(T)),
                       out.data(), in.data(), extent);
                CHECK(same_bits(out.raw(), in.raw()));
            }
        }
    }
}

TEST_CASE("vec: the extent is known to be packets where eight aligned elements are left, and there only") {
    KernelTest test;
    for (const bool packets : {false, true}) {
        for (std::int64_t n : {1, 7, 8, 9, 4096, 4103}) {
            const auto threads = static_cast<std::size_t>(n + 7) / 8;
            auto ways = test.ints(std::vector<int>(threads, 0));
            launch(
                way_kernel,
                elementwise_launch(n, test.stream).reads(ways.data(), ways.bytes()).writes(ways.data(), ways.bytes()),
                ways.data(), Extent{n, packets});
            std::vector<int> expected(threads, packets ? 1 : 2);
            if (n % 8 != 0) expected.back() = 2;
            CHECK(ways.download(test.stream) == expected);
        }
    }
}

TEST_CASE_TEMPLATE("vec: rows are added in order, any number of them", T, float, bf16) {
    KernelTest test;
    const int C = 24, most = 40;
    auto in = test.random<T>(most * C, 1.0, 5);
    auto out = test.output<float>(C);
    const Doubles values = in.values();
    for (const bool packets : {true, false}) {
        for (int step : {1, 3}) {
            for (int end = 0; end <= most; end++) {
                launch(add_rows_kernel<T>,
                       elementwise_launch(C, test.stream)
                           .reads(in.data(), most * C * sizeof(T))
                           .writes(out.data(), C * sizeof(float)),
                       out.data(), in.data(), 1, end, step, Extent{C, packets});
                std::vector<float> expected(C, 0.0f);
                for (int row = 1; row < end; row += step) {
                    for (int c = 0; c < C; c++) expected[c] += static_cast<float>(values[row * C + c]);
                }
                CHECK(out.values() == Doubles(expected.begin(), expected.end()));
            }
        }
    }
}

TEST_CASE_TEMPLATE("exp: as precise as its type deserves", Real, float, bf16) {
    KernelTest test;
    Doubles x, expected, error;
    for (double value = -86; value < 87; value += 0.0137) x.push_back(rounded<float>(value));
    for (double value : x) {
        expected.push_back(std::exp(value));
        double units = std::is_same_v<Real, float> ? 4 : 4 + 2 * std::abs(value);   // units of 2^-24
        error.push_back(units * unit<float> * expected.back());
    }
    auto in = test.tensor<float>(x), out = test.output<float>(x.size());
    auto count = static_cast<std::int64_t>(x.size());
    launch(exp_kernel<Real>,
           elementwise_launch(count, test.stream).reads(in.data(), x.size() * 4).writes(out.data(), x.size() * 4),
           out.data(), in.data(), Extent{count, packets_fit(in.data(), out.data())});
    check_close(out.values(), expected, error, "exp");
}

TEST_CASE_TEMPLATE("exp: two units in the last place, at every 509th number", Real, float, bf16) {
    KernelTest test;
    Doubles x;
    for (std::uint32_t bits = 0; bits < 0x42b00000u; bits += 509) {   // up to 88
        const double value = static_cast<double>(std::bit_cast<float>(bits));
        x.push_back(value);
        if (value < 87) x.push_back(-value);
    }
    auto in = test.tensor<float>(x), out = test.output<float>(x.size());
    auto count = static_cast<std::int64_t>(x.size());
    launch(exp_kernel<Real>,
           elementwise_launch(count, test.stream).reads(in.data(), x.size() * 4).writes(out.data(), x.size() * 4),
           out.data(), in.data(), Extent{count, packets_fit(in.data(), out.data())});
    Doubles result = out.values();
    double worst = 0;   // in units of 2^-24
    for (std::size_t i = 0; i < x.size(); i++) {
        const double exact = std::exp(x[i]), error = std::abs(result[i] / exact - 1) / unit<float>;
        worst =
            std::max(worst, error / (std::is_same_v<Real, float> ? 1 : 1 + std::abs(x[i]) / 2));   // as exp.cuh says
    }
    CHECK(worst <= 4);
}

// Eight at once as one at a time: every bf16 number, the numbers half way to the next, and what lies beside those.
TEST_CASE("vec: conversions of eight round as those of one") {
    KernelTest test;
    std::vector<float> x;
    for (std::uint32_t high = 0; high < 0x10000u; high++) {
        for (std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
            x.push_back(std::bit_cast<float>(high << 16 | low));
        }
    }
    const auto n = static_cast<std::int64_t>(x.size());
    auto in = test.arena.allocate<float>("test/in", x.size()), wide = test.arena.allocate<float>("test/wide", x.size());
    auto halves = test.arena.allocate<bf16>("test/halves", x.size());
    in.upload(x, test.stream);
    launch(convert_kernel<bf16>,
           elementwise_launch(n, test.stream).reads(in.data(), n * 4).writes(halves.data(), n * 2), halves.data(),
           in.data(), n);
    launch(widen_kernel<bf16>,
           elementwise_launch(n, test.stream).reads(halves.data(), n * 2).writes(wide.data(), n * 4), wide.data(),
           halves.data(), n);
    std::vector<bf16> narrow = halves.download(test.stream);
    std::vector<float> again = wide.download(test.stream);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < x.size(); i++) {
        const bf16 expected = static_cast<bf16>(x[i]);
        const float widened = static_cast<float>(expected);
        wrong += std::memcmp(&narrow[i], &expected, 2) != 0 || std::memcmp(&again[i], &widened, 4) != 0;
    }
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("exp: the ends", Real, float, bf16) {
    KernelTest test;
    auto in = test.tensor<float>({0.0, -INFINITY, INFINITY, NAN, -1000.0, 1000.0, -0.0, -3e38});
    auto out = test.output<float>(8);
    launch(exp_kernel<Real>, elementwise_launch(8, test.stream).reads(in.data(), 32).writes(out.data(), 32), out.data(),
           in.data(), Extent{8, packets_fit(in.data(), out.data())});
    Doubles e = out.values();
    CHECK(e[0] == 1.0);
    CHECK(e[1] == 0.0);
    CHECK(std::isinf(e[2]));
    CHECK(std::isnan(e[3]));
    CHECK(e[4] == 0.0);
    CHECK(std::isinf(e[5]));
    CHECK(e[6] == 1.0);
    CHECK(e[7] == 0.0);
}
