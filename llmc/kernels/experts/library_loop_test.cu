// The grouped kernel of experts against a library call for each expert.
#include <algorithm>
#include <numeric>

#include "llmc/kernels/experts/grouped_matmul.cuh"
#include "llmc/kernels/experts/library_loop_testing.h"
#include "llmc/kernels/kernel_testing.h"

namespace {

using Index = std::size_t;

Doubles sizes_of(Doubles values) {
    for (double& x : values) x = std::abs(x);
    return values;
}

// Checks that two results of `terms` products each are as near as their roundings allow. `sizes`: the result for the
// factors' absolute values. `added`: what the results were added to, or none; cuBLASLt may round a product to Out
// before it adds.
template <class Out>
void check_same_product(const Doubles& own, const Doubles& library, const Doubles& sizes, int terms, const char* what,
                        const Doubles& added = {}) {
    Doubles errors(own.size());
    for (Index i = 0; i < errors.size(); i++) {
        const double product = added.empty() ? 0 : std::abs(library[i] - added[i]);
        const double one = unit<Out> * (std::abs(library[i]) + product) + (terms + 2) * unit<float> * sizes[i];
        errors[i] = 2.02 * one + 1e-30;   // both are rounded, and `sizes` is
    }
    check_close(own, library, errors, what);
}

template <class Real>
void check_against_library(const std::vector<int>& groups, int N, int K) {
    INFO(N, " x ", K, ", ", groups.size(), " groups of ", groups.front(), " ... ", groups.back(), " rows");
    KernelTest test;
    std::vector<std::int32_t> offsets(groups.size() + 1, 0);
    std::partial_sum(groups.begin(), groups.end(), offsets.begin() + 1);
    const int M = offsets.back(), most = *std::ranges::max_element(groups);
    const Index m_ = static_cast<Index>(M), n_ = static_cast<Index>(N), k_ = static_cast<Index>(K),
                matrices = groups.size() * n_ * k_;
    const Doubles in = random_values<Real>(m_ * k_, 1, 1), weight = random_values<Real>(matrices, 1, 2),
                  dout = random_values<Real>(m_ * n_, 1, 3), before = random_values<float>(matrices, 1, 4),
                  din = random_values<Real>(m_ * k_, 1, 5);
    const DeviceBuffer<int> on_device = test.ints(offsets);
    const GroupedShape shape{static_cast<int>(groups.size()), M, N, K, on_device.data()};
    Matmul matmul(test.arena);
    LibraryLoop loop(matmul, offsets, N, K);
    auto in_d = test.tensor<Real>(in), weight_d = test.tensor<Real>(weight), dout_d = test.tensor<Real>(dout);
    auto in_sizes = test.tensor<Real>(sizes_of(in)), weight_sizes = test.tensor<Real>(sizes_of(weight)),
         dout_sizes = test.tensor<Real>(sizes_of(dout));

    auto own = test.output<Real>(m_ * n_), library = test.output<Real>(m_ * n_), sizes = test.output<Real>(m_ * n_);
    grouped_forward(own.data(), in_d.data(), weight_d.data(), shape, test.stream);
    loop.forward(library.data(), in_d.data(), weight_d.data(), test.stream);
    loop.forward(sizes.data(), in_sizes.data(), weight_sizes.data(), test.stream);
    check_same_product<Real>(own.values(), library.values(), sizes.values(), K, "forward");

    for (const bool accumulate : {false, true}) {
        CAPTURE(accumulate);
        auto own_din = test.tensor<Real>(din), library_din = test.tensor<Real>(din),
             din_sizes = test.tensor<Real>(sizes_of(din));
        grouped_input_gradient(own_din.data(), dout_d.data(), weight_d.data(), shape, accumulate, test.stream);
        loop.input_gradient(library_din.data(), dout_d.data(), weight_d.data(), accumulate, test.stream);
        loop.input_gradient(din_sizes.data(), dout_sizes.data(), weight_sizes.data(), accumulate, test.stream);
        check_same_product<Real>(own_din.values(), library_din.values(), din_sizes.values(), N, "input gradient",
                                 accumulate ? din : Doubles());

        auto own_weight = test.tensor<float>(before), library_weight = test.tensor<float>(before),
             gradient_sizes = test.tensor<float>(sizes_of(before));
        grouped_weight_gradient(own_weight.data(), dout_d.data(), in_d.data(), shape, accumulate, test.stream);
        loop.weight_gradient(library_weight.data(), dout_d.data(), in_d.data(), accumulate, test.stream);
        loop.weight_gradient(gradient_sizes.data(), dout_sizes.data(), in_sizes.data(), accumulate, test.stream);
        check_same_product<float>(own_weight.values(), library_weight.values(), gradient_sizes.values(), most,
                                  "weight gradient");
    }
}

}   // namespace

TEST_CASE_TEMPLATE("experts: the grouped kernel gives what a library call for each expert does", Real, float, bf16) {
    const std::vector<std::vector<int>> loads = {
        {0, 1, 65, 0, 7},    // empty ones between others; a tile and one row more
        {0, 0, 130, 0},      // all rows go to one expert
        {64, 128, 64},       // whole tiles
        {3, 200, 31, 0},     // very uneven, the last empty
        {1, 1, 1, 1, 1, 1}   // a row each
    };
    for (const std::vector<int>& groups : loads) {
        for (const auto& [N, K] : {std::pair(64, 128), std::pair(72, 40), std::pair(24, 136), std::pair(5, 67)})
            check_against_library<Real>(groups, N, K);
    }
}
