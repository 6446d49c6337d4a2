// Adds one buffer to another: sum[i] += x[i], in fp32, rounded to the sum's type once. Copies gradients that are
// applied later.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "llmc/base/dtype.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/vec.cuh"

// Adds x (n) to sum (n).
template <class Real>
void accumulate(Real* sum, const Real* x, std::int64_t n, cudaStream_t stream);

// Copies x (n) to out (n). Writes NaN instead if no float holds loss[0], so that later nothing takes them for
// gradients.
inline void copy_delayed(float* out, const float* x, std::int64_t n, const double* loss, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads) accumulate_kernel(Real* sum, const Real* x, Extent extent) {
    const std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    with_known_extent(i, extent,
                      [&](auto known) { store8(sum, i, known, add8(load8(sum, i, known), load8(x, i, known))); });
}

template <class Real>
void accumulate(Real* sum, const Real* x, std::int64_t n, cudaStream_t stream) {
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.reads(x, n * sizeof(Real)).writes(sum, n * sizeof(Real));
    launch(accumulate_kernel<Real>, where, sum, x, Extent{n, packets_fit(sum, x)});
}

inline __global__ void __launch_bounds__(kElementwiseThreads)
    copy_delayed_kernel(float* out, const float* x, const double* loss, Extent extent) {
    const std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    const bool is_finite = fabs(*loss) <= FLT_MAX;
    with_known_extent(i, extent, [&](auto known) {
        Vec8<float> values = load8(x, i, known);
#pragma unroll
        for (int k = 0; k < 8; k++) values[k] = is_finite ? values[k] : NAN;
        store8(out, i, known, values);
    });
}

inline void copy_delayed(float* out, const float* x, std::int64_t n, const double* loss, cudaStream_t stream) {
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.reads(x, n * sizeof(float)).reads(loss, sizeof(double)).writes(out, n * sizeof(float));
    launch(copy_delayed_kernel, where, out, x, loss, Extent{n, packets_fit(out, x)});
}
