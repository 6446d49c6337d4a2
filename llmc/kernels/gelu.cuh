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

// Computes s = 1 / (1 + e^(-2u)) of N values, one step of all after the other: a step takes several cycles, and
// compilers keep the order where registers are short.
template <class Real, int N>
__device__ __forceinline__ void gelu_sigmoids(float (&s)[N], const float (&x)[N]) {
    if constexpr (kGeluByExp2<Real>) {
        constexpr float linear = -kGeluScale * kLog2E, cubic = linear * kGeluCubic;
#pragma unroll
        for (int k = 0; k < N; k++) s[k] = x[k] * x[k];
#pragma unroll
        for (int k = 0; k < N; k++) s[k] = fmaf(s[k], cubic, linear);
#pragma unroll
        for (int k = 0; k < N; k++) s[k] *= x[k];
#pragma unroll
        for (int k = 0; k < N; k++) s[k] = exp2_approximate(s[k]);
#pragma unroll
        for (int k = 0; k < N; k++) s[k] += 1.0f;
#pragma unroll
        for (int k = 0; k < N; k++) s[k] = __fdividef(1.0f, s[k]);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) s[k] = sigmoid_for<Real>(kGeluScale * x[k] * fmaf(kGeluCubic * x[k], x[k], 1.0f));
    }
}

// Computes gelu(x) of N values.
template <class Real, int N>
__device__ __forceinline__ void gelu_of(float (&gelu)[N], const float (&x)[N]) {
    float s[N];
    gelu_sigmoids<Real>(s, x);
#pragma unroll
    for (int k = 0; k < N; k++) gelu[k] = x[k] * s[k];
}

// Computes gelu'(x) = s + x s (1 - s) 2u' of N values, with 2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
template <class Real, int N>
__device__ __forceinline__ void gelu_slopes(float (&slope)[N], const float (&x)[N]) {
    float s[N];
    gelu_sigmoids<Real>(s, x);
    if constexpr (kGeluByExp2<Real>) {
#pragma unroll
        for (int k = 0; k < N; k++) slope[k] = x[k] * x[k];
#pragma unroll
        for (int k = 0; k < N; k++) slope[k] = x[k] * fmaf(slope[k], 3.0f * kGeluScale * kGeluCubic, kGeluScale);
#pragma unroll
        for (int k = 0; k < N; k++) slope[k] = fmaf(slope[k], fmaf(-s[k], s[k], s[k]), s[k]);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float slope_of_2u = kGeluScale * fmaf(3.0f * kGeluCubic * x[k], x[k], 1.0f);
            slope[k] = fmaf(x[k] * slope_of_2u, s[k] * (1.0f - s[k]), s[k]);
        }
    }
}

// Compute both of one value.
template <class Real>
__device__ __forceinline__ float gelu_of(float x) {
    const float one[1] = {x};
    float gelu[1];
    gelu_of<Real>(gelu, one);
    return gelu[0];
}
template <class Real>
__device__ __forceinline__ float gelu_slope(float x) {
    const float one[1] = {x};
    float slope[1];
    gelu_slopes<Real>(slope, one);
    return slope[0];
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
