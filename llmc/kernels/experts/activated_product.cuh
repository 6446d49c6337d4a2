// First matmul of experts with the activation in its end: it writes what backward reads, hidden (M, N), and beside it
// the second matmul's input, so that nothing reads hidden again in forward.
#pragma once

#include "llmc/kernels/experts/expert_rows.cuh"
#include "llmc/kernels/experts/grouped_matmul.cuh"

// Computes hidden = in weight^T as grouped_forward does, and activated (M, F), to the bit what expert_activation makes
// of hidden. `activation.in` is `hidden`.
template <class Real>
void grouped_forward_activated(Real* hidden, Real* activated, const Real* in, const Real* weight,
                               const GroupedShape& shape, const ExpertActivation<Real>& activation, cudaStream_t stream,
                               const GatheredRows& in_rows = {});

// ---------------------------------------------------------------------------------------------------------------------

// Forward product of the first matrices. If they are gated, its columns are four gates, the ups of the same four
// features, the next four gates and so on, so that a thread has both; the matrix and `hidden` have all gates first.
template <class Real, bool GATED>
struct ActivatedProduct : GroupedProduct<Along::sum, Along::sum, false, Real, Real, Real> {
    Real* activated;
    const float* row_weight;             // one per assignment
    const std::int32_t* assignment_of;   // null: row i's is i

    __device__ std::int64_t b_row(int n) const {
        return !GATED ? n : n / 8 * 4 + n % 4 + (n % 8 < 4 ? 0 : this->N / 2);
    }

    __device__ __forceinline__ void store(int m, int n, const Vec8<float>& sums) const {
        const float weight = row_weight[assignment_of == nullptr ? m : assignment_of[m]];
        const Vec8<Real> hidden = round_to<Real>(sums);
        const Vec8<float> x = to_floats(hidden);
        Vec8<float> result{};
        if constexpr (GATED) {
#pragma unroll
            for (int k = 0; k < 4; k++) result[k] = x[k] * (sigmoid_for<Real>(x[k]) * x[k + 4]) * weight;
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++) result[k] = gelu_of<Real>(x[k]) * weight;
        }
        const Vec8<Real> rounded = round_to<Real>(result);
        const std::int64_t row = m, columns = this->N;
        if constexpr (GATED) {
            const std::int64_t F = columns / 2, feature = n / 2;
            store_half(this->out + row * columns + feature, hidden, 0);
            store_half(this->out + row * columns + F + feature, hidden, 1);
            store_half(activated + row * F + feature, rounded, 0);
        } else {
            store_packets(this->out + row * columns + n, hidden);
            store_packets(activated + row * columns + n, rounded);
        }
    }

    void declare_more(Launch& where) const {
        const auto rows = static_cast<std::size_t>(this->M);
        where.reads(row_weight, sizeof(float) * rows).reads(assignment_of, sizeof(std::int32_t) * rows);
        where.writes(activated, sizeof(Real) * rows * static_cast<std::size_t>(GATED ? this->N / 2 : this->N));
    }

private:
    // Stores the first or the second four of eight elements by one access.
    __device__ __forceinline__ static void store_half(Real* to, const Vec8<Real>& from, int part) {
        struct alignas(4 * sizeof(Real)) Four {
            Real values[4];
        };
        *reinterpret_cast<Four*>(to) = reinterpret_cast<const Four*>(&from)[part];
    }
};

template <bool GATED, class Real>
ActivatedProduct<Real, GATED> activated_product(Real* hidden, Real* activated, const Real* in, const Real* weight,
                                                const GroupedShape& shape, const ExpertActivation<Real>& activation,
                                                const GatheredRows& in_rows = {}) {
    ENSURE(activation.F % 8 == 0 && shape.N == activation.F * (GATED ? 2 : 1) && activation.in == hidden,
           "experts of width ", activation.F, " whose first matrices have ", shape.N, " rows");
    return {forward_product(hidden, in, weight, shape, in_rows), activated, activation.weight, activation.source};
}

template <class Real>
void grouped_forward_activated(Real* hidden, Real* activated, const Real* in, const Real* weight,
                               const GroupedShape& shape, const ExpertActivation<Real>& activation, cudaStream_t stream,
                               const GatheredRows& in_rows) {
    auto run = [&]<bool GATED>(std::bool_constant<GATED>) {
        launch_grouped(activated_product<GATED>(hidden, activated, in, weight, shape, activation, in_rows), stream);
    };
    activation.gated ? run(std::true_type()) : run(std::false_type());
}
