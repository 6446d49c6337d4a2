// Products of groups of rows on tensor cores (grouped_mma.cuh) against double loops, on a CPU too.
#include <algorithm>

#include "llmc/kernels/experts/grouped_matmul.cuh"
#include "llmc/kernels/experts/grouped_mma.cuh"
#include "llmc/kernels/experts/grouped_testing.h"
#include "llmc/kernels/kernel_testing.h"

namespace {

using Index = std::size_t;

// Checks the three products for groups of so many rows, on tensor cores. `untouched`: rows that belong to no group.
template <class Out>
void check_products(const std::vector<int>& groups, int N, int K, bool accumulate, int untouched = 0) {
    INFO(N, " x ", K, ", ", groups.size(), " groups of ", groups.front(), " ... ", groups.back(), " rows, accumulate ",
         accumulate);
    KernelTest test;
    const std::vector<int> offsets = offsets_of(groups);
    const int rows = offsets.back(), most = *std::ranges::max_element(groups);
    const Index M = static_cast<Index>(rows + untouched), G = groups.size(), n_ = static_cast<Index>(N),
                k_ = static_cast<Index>(K);
    const Doubles in = random_values<bf16>(M * k_, 1, 1), weight = random_values<bf16>(G * n_ * k_, 1, 2),
                  dout = random_values<bf16>(M * n_, 1, 3), none;
    const Doubles out_before = random_values<Out>(M * n_, 1, 4), din_before = random_values<Out>(M * k_, 1, 5),
                  weight_before = random_values<Out>(G * n_ * k_, 1, 6);
    Expected out(M * n_), din(M * k_), dweight(G * n_ * k_);
    for (Index g = 0; g < G; g++) {
        for (auto m = static_cast<Index>(offsets[g]); m < static_cast<Index>(offsets[g + 1]); m++) {
            for (Index n = 0; n < n_; n++) {
                for (Index k = 0; k < k_; k++) {
                    const Index w = (g * n_ + n) * k_ + k;
                    out.add(m * n_ + n, in[m * k_ + k] * weight[w]);
                    din.add(m * k_ + k, dout[m * n_ + n] * weight[w]);
                    dweight.add(w, dout[m * n_ + n] * in[m * k_ + k]);
                }
            }
        }
    }
    const DeviceBuffer<int> on_device = test.ints(offsets);
    const GroupedShape shape{static_cast<int>(G), static_cast<int>(M), N, K, on_device.data()};
    auto in_d = test.tensor<bf16>(in), weight_d = test.tensor<bf16>(weight), dout_d = test.tensor<bf16>(dout);
    auto out_d = test.tensor<Out>(out_before), din_d = test.tensor<Out>(din_before),
         dweight_d = test.tensor<Out>(weight_before);

    auto forward = forward_product(out_d.data(), in_d.data(), weight_d.data(), shape);
    forward.accumulate = accumulate;
    const auto input_gradient = input_gradient_product(din_d.data(), dout_d.data(), weight_d.data(), shape, accumulate);
    const auto weight_gradient =
        weight_gradient_product(dweight_d.data(), dout_d.data(), in_d.data(), shape, accumulate);
    REQUIRE(grouped_mma_serves(forward));
    REQUIRE(grouped_mma_serves(input_gradient));
    REQUIRE(grouped_mma_serves(weight_gradient));
    launch_grouped_mma(forward, test.stream);
    launch_grouped_mma(input_gradient, test.stream);
    launch_grouped_mma(weight_gradient, test.stream);

    // rows of no group keep what was there
    auto before = [&](const Doubles& values, Index grouped) {
        Doubles result = accumulate ? values : Doubles(values.size(), 0.0);
        std::copy(values.begin() + static_cast<std::ptrdiff_t>(grouped), values.end(),
                  result.begin() + static_cast<std::ptrdiff_t>(grouped));
        return result;
    };
    const auto grouped_rows = static_cast<Index>(rows);
    out.check(out_d, before(out_before, grouped_rows * n_), K, "forward");
    din.check(din_d, before(din_before, grouped_rows * k_), N, "input gradient");
    dweight.check(dweight_d, before(weight_before, G * n_ * k_), most, "weight gradient");
}

template <class T>
bool same_bits(const T* a, const T* b, std::size_t n) {
    return std::memcmp(a, b, n * sizeof(T)) == 0;
}

}   // namespace

TEST_CASE_TEMPLATE("grouped mma: all three products match double loops", Out, float, bf16) {
    const std::vector<std::vector<int>> loads = {
        {0, 1, 13, 0, 129},   // empty ones, one row, a tile and one row more
        {0, 0, 150},          // all rows in one group
        {16, 32, 5}           // groups that begin at rows of a tile
    };
    const std::pair<int, int> sizes[] = {{8, 40}, {40, 8}, {128, 136}, {136, 40}};
    for (Index load = 0; load < loads.size(); load++) {
        for (Index i = 0; i < std::size(sizes); i++)
            check_products<Out>(loads[load], sizes[i].first, sizes[i].second, (load + i) % 2 == 1);
    }
    check_products<Out>({3, 17}, 264, 136, true);
    check_products<Out>({3, 17}, 136, 264, false);
    check_products<Out>({0, 20, 1}, 40, 40, true, 12);   // rows over an expert's capacity
}

TEST_CASE("grouped mma: no rows, no groups, one group without offsets, more columns than run at once") {
    check_products<bf16>({0, 0}, 8, 8, false, 3);
    check_products<bf16>({2, 1}, 16 * 128 + 8, 8, false);
    check_products<bf16>({2, 1}, 8, 2 * 16 * 128 + 136, true);

    KernelTest test;
    auto in = test.random<bf16>(7 * 40, 1, 1), weight = test.random<bf16>(16 * 40, 1, 2);
    auto with = test.output<float>(7 * 16), without = test.output<float>(7 * 16), unwritten = test.output<float>(16);
    const DeviceBuffer<int> offsets = test.ints({0, 7});
    launch_grouped_mma(forward_product(with.data(), in.data(), weight.data(), {1, 7, 16, 40, offsets.data()}),
                       test.stream);
    launch_grouped_mma(forward_product(without.data(), in.data(), weight.data(), {1, 7, 16, 40, nullptr}), test.stream);
    launch_grouped_mma(forward_product(unwritten.data(), in.data(), weight.data(), {1, 0, 16, 40, nullptr}),
                       test.stream);
    CHECK(with.raw() == without.raw());
    CHECK(unwritten.values() == Doubles(16, 777.0));
}

TEST_CASE("grouped mma: results of any width and alignment") {
    KernelTest test;
    const int M = 5, N = 13, K = 24;
    const Doubles in = random_values<bf16>(M * K, 1, 1), weight = random_values<bf16>(N * K, 1, 2);
    Expected out(M * N);
    for (Index i = 0; i < M * N * K; i++) {
        const Index m = i / K / N, n = i / K % N, k = i % K;
        out.add(m * N + n, in[m * K + k] * weight[n * K + k]);
    }
    auto in_d = test.tensor<bf16>(in), weight_d = test.tensor<bf16>(weight);
    for (const std::size_t shift : {0, 1}) {
        auto out_d = test.output<bf16>(M * N, shift);
        launch_grouped_mma(forward_product(out_d.data(), in_d.data(), weight_d.data(), {1, M, N, K, nullptr}),
                           test.stream);
        out.check(out_d, {}, K, "forward");
    }
}

TEST_CASE("grouped mma: factors that are no whole packets are refused, and computed all the same") {
    KernelTest test;
    auto out = test.output<float>(16 * 16);
    auto whole = test.random<bf16>(16 * 16, 1, 1), shifted = test.random<bf16>(16 * 16, 1, 2, 1);
    const GroupedShape shape{1, 16, 16, 16, nullptr};
    CHECK(grouped_mma_serves(forward_product(out.data(), whole.data(), whole.data(), shape)));
    CHECK(!grouped_mma_serves(forward_product(out.data(), shifted.data(), whole.data(), shape)));
    CHECK(!grouped_mma_serves(forward_product(out.data(), whole.data(), shifted.data(), shape)));
    CHECK(!grouped_mma_serves(forward_product(out.data(), whole.data(), whole.data(), {1, 16, 16, 12, nullptr})));
    CHECK(!grouped_mma_serves(
        weight_gradient_product(out.data(), whole.data(), whole.data(), {1, 16, 12, 16, nullptr}, false)));
    const Doubles a = whole.values(), b = shifted.values();
    Expected expected(16 * 16);
    for (Index i = 0; i < 16 * 16 * 16; i++) {
        expected.add(i / 16, a[i / 256 * 16 + i % 16] * b[i / 16 % 16 * 16 + i % 16]);
    }
    grouped_forward(out.data(), whole.data(), shifted.data(), shape, test.stream);
    expected.check(out, {}, 16, "forward");
}

TEST_CASE("grouped mma: the same bits whatever rows and groups are beside") {
    KernelTest test;
    const int C = 72, F = 40, before = 37, own = 131, all = 190;   // the second group's rows begin within a tile
    auto in = test.random<bf16>(all * C, 1, 1), dout = test.random<bf16>(all * F, 1, 2),
         weight = test.random<bf16>(3 * F * C, 1, 3);
    auto out = test.output<float>(all * F), alone = test.output<float>(own * F);
    auto din = test.output<float>(all * C), din_alone = test.output<float>(own * C);
    auto dweight = test.output<float>(3 * F * C), dweight_alone = test.output<float>(F * C);
    const DeviceBuffer<int> three = test.ints({0, before, before + own, all}), one = test.ints({0, own});
    const GroupedShape together{3, all, F, C, three.data()}, single{1, own, F, C, one.data()};
    const bf16 *const own_in = in.data() + before * C, *const own_dout = dout.data() + before * F,
                      *const own_weight = weight.data() + F * C;
    launch_grouped_mma(forward_product(out.data(), in.data(), weight.data(), together), test.stream);
    launch_grouped_mma(forward_product(alone.data(), own_in, own_weight, single), test.stream);
    launch_grouped_mma(input_gradient_product(din.data(), dout.data(), weight.data(), together, false), test.stream);
    launch_grouped_mma(input_gradient_product(din_alone.data(), own_dout, own_weight, single, false), test.stream);
    launch_grouped_mma(weight_gradient_product(dweight.data(), dout.data(), in.data(), together, false), test.stream);
    launch_grouped_mma(weight_gradient_product(dweight_alone.data(), own_dout, own_in, single, false), test.stream);
    CHECK(same_bits(out.raw().data() + before * F, alone.raw().data(), own * F));
    CHECK(same_bits(din.raw().data() + before * C, din_alone.raw().data(), own * C));
    CHECK(same_bits(dweight.raw().data() + F * C, dweight_alone.raw().data(), F * C));

    // one row, alone in its group, and the last of many
    const DeviceBuffer<int> last = test.ints({0, 1});
    auto row = test.output<float>(F);
    launch_grouped_mma(forward_product(row.data(), own_in + (own - 1) * C, own_weight, {1, 1, F, C, last.data()}),
                       test.stream);
    CHECK(same_bits(alone.raw().data() + (own - 1) * F, row.raw().data(), F));
}
