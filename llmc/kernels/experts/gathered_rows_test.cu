// Grouped products whose rows are gathered where they are loaded, against double loops and against copied rows.
#include <limits>

#include "llmc/kernels/experts/expert_rows.cuh"
#include "llmc/kernels/experts/grouped_matmul.cuh"
#include "llmc/kernels/experts/grouped_testing.h"

namespace {

using Index = std::size_t;

template <class Kernel, class Gradient>
void check_gathered(const std::vector<int>& groups, int chosen, int N, int K) {
    using Real = typename Kernel::Real;
    INFO(N, " x ", K, ", ", groups.size(), " groups of ", groups.front(), " ... ", groups.back(), " rows, ", chosen,
         " choices");
    KernelTest test;
    const std::vector<int> offsets = offsets_of(groups);
    const int rows = offsets.back() + chosen, tokens = rows / chosen, most = *std::ranges::max_element(groups);
    REQUIRE(tokens * chosen == rows);
    const std::vector<int> source = mixed_source(tokens, chosen);
    const Index M = static_cast<Index>(rows), T = static_cast<Index>(tokens), G = groups.size(),
                n_ = static_cast<Index>(N), k_ = static_cast<Index>(K);
    Doubles in = random_values<Real>(T * k_, 1, 1), dout = random_values<Real>(T * n_, 1, 2);
    const Doubles weight = random_values<Real>(G * n_ * k_, 1, 3), ordered_in = random_values<Real>(M * k_, 1, 4),
                  ordered_dout = random_values<Real>(M * n_, 1, 5), before = random_values<Gradient>(G * n_ * k_, 1, 6);
    // nobody may read the token that no group has
    std::fill_n(in.begin(), k_, std::numeric_limits<double>::quiet_NaN());
    std::fill_n(dout.begin(), n_, std::numeric_limits<double>::quiet_NaN());
    Expected out(M * n_), din(M * k_), dweight_of_in(G * n_ * k_), dweight_of_dout(G * n_ * k_),
        dweight_of_both(G * n_ * k_);
    for (Index g = 0; g < G; g++) {
        for (auto m = static_cast<Index>(offsets[g]); m < static_cast<Index>(offsets[g + 1]); m++) {
            const Index token = static_cast<Index>(source[m] / chosen);
            for (Index n = 0; n < n_; n++) {
                for (Index k = 0; k < k_; k++) {
                    const Index w = (g * n_ + n) * k_ + k;
                    const double x = in[token * k_ + k], d = dout[token * n_ + n];
                    out.add(m * n_ + n, x * weight[w]);
                    din.add(m * k_ + k, d * weight[w]);
                    dweight_of_in.add(w, ordered_dout[m * n_ + n] * x);
                    dweight_of_dout.add(w, d * ordered_in[m * k_ + k]);
                    dweight_of_both.add(w, d * x);
                }
            }
        }
    }
    auto untouched = [&](Index width) {   // rows of no group
        Doubles values(M * width, 0.0);
        const Index n = static_cast<Index>(chosen) * width;
        std::fill_n(values.end() - static_cast<std::ptrdiff_t>(n), n, 777.0);
        return values;
    };

    const DeviceBuffer<int> offsets_d = test.ints(offsets), source_d = test.ints(source);
    const GroupedShape shape{static_cast<int>(G), rows, N, K, offsets_d.data()};
    const GatheredRows gathered{source_d.data(), tokens, chosen};
    auto in_d = test.tensor<Real>(in), dout_d = test.tensor<Real>(dout), weight_d = test.tensor<Real>(weight),
         ordered_in_d = test.tensor<Real>(ordered_in), ordered_dout_d = test.tensor<Real>(ordered_dout);
    auto out_d = test.output<Real>(M * n_), din_d = test.output<Real>(M * k_);
    auto of_in = test.tensor<Gradient>(before), of_dout = test.tensor<Gradient>(before),
         of_both = test.output<Gradient>(G * n_ * k_);
    run<Kernel>(forward_product(out_d.data(), in_d.data(), weight_d.data(), shape, gathered), test.stream);
    run<Kernel>(input_gradient_product(din_d.data(), dout_d.data(), weight_d.data(), shape, false, gathered),
                test.stream);
    run<Kernel>(weight_gradient_product(of_in.data(), ordered_dout_d.data(), in_d.data(), shape, true, {}, gathered),
                test.stream);
    run<Kernel>(weight_gradient_product(of_dout.data(), dout_d.data(), ordered_in_d.data(), shape, true, gathered),
                test.stream);
    run<Kernel>(weight_gradient_product(of_both.data(), dout_d.data(), in_d.data(), shape, false, gathered, gathered),
                test.stream);
    out.check(out_d, untouched(n_), K, "forward");
    din.check(din_d, untouched(k_), N, "input gradient");
    dweight_of_in.check(of_in, before, most, "weight gradient, `in` gathered");
    dweight_of_dout.check(of_dout, before, most, "weight gradient, `dout` gathered");
    dweight_of_both.check(of_both, {}, most, "weight gradient, both gathered");

    // the same bits as of rows that are copied first
    if (N % 8 != 0 || K % 8 != 0) return;   // gather_rows copies whole packets
    auto in_rows = test.output<Real>(M * k_), dout_rows = test.output<Real>(M * n_);
    gather_rows(in_rows.data(), in_d.data(), source_d.data(), rows, tokens, chosen, K, test.stream);
    gather_rows(dout_rows.data(), dout_d.data(), source_d.data(), rows, tokens, chosen, N, test.stream);
    auto out_again = test.output<Real>(M * n_), din_again = test.output<Real>(M * k_);
    auto dweight_again = test.output<Gradient>(G * n_ * k_);
    run<Kernel>(forward_product(out_again.data(), in_rows.data(), weight_d.data(), shape), test.stream);
    run<Kernel>(input_gradient_product(din_again.data(), dout_rows.data(), weight_d.data(), shape, false), test.stream);
    run<Kernel>(weight_gradient_product(dweight_again.data(), dout_rows.data(), in_rows.data(), shape, false),
                test.stream);
    CHECK(same_bits(out_again, out_d));
    CHECK(same_bits(din_again, din_d));
    CHECK(same_bits(dweight_again, of_both));
}

template <class Kernel, class Gradient>
void check_loads(int N, int K) {
    check_gathered<Kernel, Gradient>({0, 1, 13, 0, 130}, 2, N, K);   // empty groups, a tile and more
    check_gathered<Kernel, Gradient>({0, 0, 66, 0}, 3, N, K);        // all rows in one group
    check_gathered<Kernel, Gradient>({16, 32, 5, 0}, 1, N, K);       // every token in one group
}

}   // namespace

TEST_CASE_TEMPLATE("experts: gathered rows give what copied ones do", Kernel, FmaFloat, FmaBf16, TensorCores) {
    check_loads<Kernel, float>(24, 40);
    check_loads<Kernel, float>(136, 72);
    check_loads<Kernel, typename Kernel::Real>(72, 136);
    if constexpr (!Kernel::tensor_cores) check_loads<Kernel, float>(5, 67);
}
