// Computes the exponential function of the kernels.
//
// bf16 builds use the hardware's instruction (relative error about 2^-21 (1 + |x|), far below bf16's rounding). fp32
// builds use the polynomial below, with an error of at most 2 units in the last place, the same on every machine and
// free of branches, so that compilers vectorise loops over it.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "llmc/kernels/ptx/ptx.cuh"

constexpr float kLog2E = 1.44269504f;

// Returns x log2(e), rounded: never contracted with a following addition.
__device__ __forceinline__ float times_log2_e(float x) { return __fmul_rn(x, kLog2E); }

// Returns e^x: x = n ln 2 + r with |r| <= ln 2 / 2, e^x = 2^n e^r; coefficients of Cephes' expf (Moshier). Counts e^x
// as 0 below -87 (denormal numbers) and as infinite above 88; NaN gives NaN.
__device__ __forceinline__ float exp_fp32(float x) {
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
    const float shifted = fmaf(x, 1.44269504f, 12582912.0f);
    const float n = shifted - 12582912.0f;
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    const float power = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
    float y = p * power;
    y = x > 88.0f ? __uint_as_float(0x7f800000u) : y;
    return x < -87.0f ? 0.0f : y;
}

// Returns e^x as precisely as values stored in Real deserve.
template <class Real>
__device__ __forceinline__ float exp_for(float x) {
    if constexpr (std::is_same_v<Real, float>)
        return exp_fp32(x);
    else if constexpr (exp2_is_an_instruction)
        return exp2_approximate(times_log2_e(x));
    else
        return __expf(x);
}

// Computes e^(x - reference), as precisely, for many x and one reference. In bf16 builds it takes one multiplication
// and addition before the hardware's 2^x. The error there has an additional part of 2^-24 |reference|, by the same
// factor for every x; the result is 0 if the reference times log2(e) is infinite.
template <class Real>
class ExpRelativeTo {
public:
    __device__ __forceinline__ explicit ExpRelativeTo(float reference)
        : reference_(scales_before ? times_log2_e(reference) : reference) {}
    __device__ __forceinline__ float operator()(float x) const {
        if constexpr (scales_before)
            return exp2_approximate(fmaf(x, kLog2E, -reference_));
        else
            return exp_for<Real>(x - reference_);
    }
    // Returns the factor that converts a sum relative to `other` into one relative to this reference: one if both are
    // equal.
    __device__ __forceinline__ float from(float other) const {
        const float difference = ExpRelativeTo(other).reference_ - reference_;
        if constexpr (scales_before)
            return exp2_approximate(difference);
        else
            return exp_for<Real>(difference);
    }

private:
    static constexpr bool scales_before = exp2_is_an_instruction && !std::is_same_v<Real, float>;
    float reference_;
};

// Returns 1 / (1 + e^-x), as precisely.
template <class Real>
__device__ __forceinline__ float sigmoid_for(float x) {
    if constexpr (std::is_same_v<Real, float>)
        return 1.0f / (1.0f + exp_fp32(-x));
    else
        return __fdividef(1.0f, 1.0f + exp_for<Real>(-x));
}
