// Computes GELU with the tanh approximation (Hendrycks and Gimpel, 2016), as GPT-2 uses it:
//   gelu(x) = x/2 (1 + tanh(u)),  u = sqrt(2/pi) (x + 0.044715 x^3)
// It is computed as x s with s = 1 / (1 + e^(-2u)), which is the same and needs one exponential: cheap enough to stay
// limited by memory, and without the cancellation of 1 + tanh(u) for very negative u.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/base/dtype.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/exp.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/vec.cuh"

// Computes out[i] = gelu(in[i]) for n elements; `out` may be `in`.
template <class Real>
void gelu_forward(Real* out, const Real* in, std::int64_t n, cudaStream_t stream);

// Computes din[i] = dout[i] * gelu'(in[i]) for n elements; `din` may be `dout`.
template <class Real>
void gelu_backward(Real* din, const Real* dout, const Real* in, std::int64_t n, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

constexpr float kGeluScale = 1.5957691216f;   // 2 sqrt(2/pi)
constexpr float kGeluCubic = 0.044715f;

// True where 2^x is one instruction and precise enough: the constants of e^(-2u) are then multiplied into one
// polynomial.
template <class Real>
constexpr bool kGeluByExp2 = exp2_is_an_instruction && !std::is_same_v<Real, float>;

// Returns s = 1 / (1 + e^(-2u)).
template <class Real>
__device__ __forceinline__ float gelu_sigmoid(float x) {
    if constexpr (kGeluByExp2<Real>) {
        constexpr float linear = -kGeluScale * kLog2E, cubic = linear * kGeluCubic;
        return __fdividef(1.0f, 1.0f + exp2_approximate(x * fmaf(x * x, cubic, linear)));
    } else {
        return sigmoid_for<Real>(kGeluScale * x * fmaf(kGeluCubic * x, x, 1.0f));
    }
}

template <class Real>
__device__ __forceinline__ float gelu_of(float x) {
    return x * gelu_sigmoid<Real>(x);
}

// Returns gelu'(x) = s + x s (1 - s) 2u', with 2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
template <class Real>
__device__ __forceinline__ float gelu_slope(float x) {
    const float s = gelu_sigmoid<Real>(x);
    if constexpr (kGeluByExp2<Real>) {
        return fmaf(x * fmaf(x * x, 3.0f * kGeluScale * kGeluCubic, kGeluScale), fmaf(-s, s, s), s);
    } else {
        const float slope_of_2u = kGeluScale * fmaf(3.0f * kGeluCubic * x, x, 1.0f);
        return fmaf(x * slope_of_2u, s * (1.0f - s), s);
    }
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads) gelu_forward_kernel(Real* out, const Real* in, Extent extent) {
    std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    with_known_extent(i, extent, [&](auto known) {
        Vec8<float> x = to_floats(load8(in, i, known));
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = gelu_of<Real>(x[k]);
        store8(out, i, known, round_to<Real>(x));
    });
}

template <class Real>
void gelu_forward(Real* out, const Real* in, std::int64_t n, cudaStream_t stream) {
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.reads(in, n * sizeof(Real)).writes(out, n * sizeof(Real));
    launch(gelu_forward_kernel<Real>, where, out, in, Extent{n, packets_fit(out, in)});
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    gelu_backward_kernel(Real* din, const Real* dout, const Real* in, Extent extent) {
    std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    with_known_extent(i, extent, [&](auto known) {
        const Vec8<float> x = to_floats(load8(in, i, known)), d = to_floats(load8(dout, i, known));
        Vec8<float> gradient;
#pragma unroll
        for (int k = 0; k < 8; k++) gradient[k] = d[k] * gelu_slope<Real>(x[k]);
        store8(din, i, known, round_to<Real>(gradient));
    });
}

template <class Real>
void gelu_backward(Real* din, const Real* dout, const Real* in, std::int64_t n, cudaStream_t stream) {
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.reads(in, n * sizeof(Real)).reads(dout, n * sizeof(Real)).writes(din, n * sizeof(Real));
    launch(gelu_backward_kernel<Real>, where, din, dout, in, Extent{n, packets_fit(din, dout, in)});
}
