// First matmul of experts with the activation in its end, against the two kernels that do one each.
#include "llmc/kernels/experts/activated_product.cuh"
#include "llmc/kernels/experts/grouped_testing.h"

namespace {

using Index = std::size_t;

template <class Kernel, bool GATED>
void check_activated(const std::vector<int>& groups, int F, int K, bool gathers) {
    using Real = typename Kernel::Real;
    INFO("width ", F, ", ", K, " channels, gated ", GATED, ", gathered ", gathers);
    KernelTest test;
    const std::vector<int> offsets = offsets_of(groups);
    const int chosen = 2, rows = offsets.back() + chosen, tokens = rows / chosen, N = (GATED ? 2 : 1) * F;
    REQUIRE(tokens * chosen == rows);
    const Index M = static_cast<Index>(rows), grouped = static_cast<Index>(offsets.back()), n_ = static_cast<Index>(N),
                k_ = static_cast<Index>(K), f_ = static_cast<Index>(F);
    auto in = test.random<Real>(M * k_, 1, 1), weight = test.random<Real>(groups.size() * n_ * k_, 0.2, 2);
    auto row_weight = test.random<float>(M, 1, 3);
    const DeviceBuffer<int> offsets_d = test.ints(offsets), source_d = test.ints(mixed_source(tokens, chosen));
    const GroupedShape shape{static_cast<int>(groups.size()), rows, N, K, offsets_d.data()};
    const GatheredRows in_rows = gathers ? GatheredRows{source_d.data(), tokens, chosen} : GatheredRows();
    auto hidden = test.output<Real>(M * n_), activated = test.output<Real>(M * f_);
    auto hidden_apart = test.output<Real>(M * n_), activated_apart = test.output<Real>(M * f_);
    auto activation = [&](const Real* of) {   // rows that have travelled have their weights beside them
        return ExpertActivation<Real>{of, row_weight.data(), gathers ? source_d.data() : nullptr, rows, F, GATED};
    };
    run<Kernel>(activated_product<GATED>(hidden.data(), activated.data(), in.data(), weight.data(), shape,
                                         activation(hidden.data()), in_rows),
                test.stream);
    run<Kernel>(forward_product(hidden_apart.data(), in.data(), weight.data(), shape, in_rows), test.stream);
    expert_activation(activated_apart.data(), activation(hidden_apart.data()), test.stream);
    CHECK(same_bits(hidden, hidden_apart));
    const std::vector<Real> together = activated.raw(), apart = activated_apart.raw();
    CHECK(std::memcmp(together.data(), apart.data(), sizeof(Real) * grouped * f_) == 0);
    const Doubles values = activated.values();   // rows of no group are not written
    CHECK(std::all_of(values.begin() + static_cast<std::ptrdiff_t>(grouped * f_), values.end(),
                      [](double x) { return x == rounded<Real>(777.0); }));
}

template <class Kernel, bool GATED>
void check_widths() {
    for (const auto& [F, K] : {std::pair(24, 40), std::pair(72, 136), std::pair(136, 64)}) {
        check_activated<Kernel, GATED>({0, 1, 13, 0, 130}, F, K, true);   // empty groups, a tile and more
        check_activated<Kernel, GATED>({0, 3, 33, 0}, F, K, false);
    }
}

}   // namespace

TEST_CASE_TEMPLATE("experts: activated in the matmul's end, the same bits as apart", Kernel, FmaFloat, FmaBf16,
                   TensorCores) {
    check_widths<Kernel, false>();
    check_widths<Kernel, true>();
}
