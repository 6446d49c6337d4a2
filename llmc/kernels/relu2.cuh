// Computes squared ReLU (So et al., "Primer: searching for efficient transformers for language modeling", 2021):
//   relu2(x) = max(0, x)^2, with the slope 2 max(0, x)
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/base/dtype.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/vec.cuh"

// Computes out[i] = relu2(in[i]) for n elements; `out` may be `in`.
template <class Real>
void relu2_forward(Real* out, const Real* in, std::int64_t n, cudaStream_t stream);

// Computes din[i] = dout[i] * relu2'(in[i]) for n elements; `din` may be `dout`.
template <class Real>
void relu2_backward(Real* din, const Real* dout, const Real* in, std::int64_t n, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

// Returns max(0, x), or not-a-number for one.
__device__ __forceinline__ float relu_of(float x) { return x < 0 ? 0.0f : x; }

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads) relu2_forward_kernel(Real* out, const Real* in, Extent extent) {
    std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    with_known_extent(i, extent, [&](auto known) {
        Vec8<float> x = to_floats(load8(in, i, known));
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = relu_of(x[k]) * relu_of(x[k]);
        store8(out, i, known, round_to<Real>(x));
    });
}

template <class Real>
void relu2_forward(Real* out, const Real* in, std::int64_t n, cudaStream_t stream) {
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.reads(in, n * sizeof(Real)).writes(out, n * sizeof(Real));
    launch(relu2_forward_kernel<Real>, where, out, in, Extent{n, packets_fit(out, in)});
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    relu2_backward_kernel(Real* din, const Real* dout, const Real* in, Extent extent) {
    std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    with_known_extent(i, extent, [&](auto known) {
        const Vec8<float> x = to_floats(load8(in, i, known)), d = to_floats(load8(dout, i, known));
        Vec8<float> gradient;
#pragma unroll
        for (int k = 0; k < 8; k++) gradient[k] = 2.0f * d[k] * relu_of(x[k]);
        store8(din, i, known, round_to<Real>(gradient));
    });
}

template <class Real>
void relu2_backward(Real* din, const Real* dout, const Real* in, std::int64_t n, cudaStream_t stream) {
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.reads(in, n * sizeof(Real)).reads(dout, n * sizeof(Real)).writes(din, n * sizeof(Real));
    launch(relu2_backward_kernel<Real>, where, din, dout, in, Extent{n, packets_fit(din, dout, in)});
}
