// Elementary functions and conversions that compilers turn into vector instructions: no branches, no calls, no tables.
// For the stand-ins of CUDA's libraries (cuBLASLt's epilogues, cuDNN's softmax); kernels have CUDA's own functions.
#pragma once

#include <bit>
#include <cstdint>

namespace host {

// Returns e^x to about 2 units in the last place: x = n ln2 + r with |r| <= ln2/2, then 2^n times a polynomial in r
// (Cephes' expf). Zero below -87.3 (also at -infinity), about 1e38 at most.
inline float vector_exp(float x) {
    float clamped = x < -87.3f ? -87.3f : (x > 88.3f ? 88.3f : x);
    float n = __builtin_rintf(clamped * 1.44269504f);
    float r = clamped - n * 0.693359375f;   // ln2 in two parts, so that r is exact
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    float power = std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
    return x < -87.3f ? 0.0f : p * power;
}

inline float vector_sigmoid(float x) { return 1.0f / (1.0f + vector_exp(-x)); }

// Returns GELU by the tanh approximation; (1 + tanh(y)) / 2 is sigmoid(2y), which loses no digits where tanh is near
// -1.
inline float vector_gelu(float x) { return x * vector_sigmoid(1.5957691216f * (x + 0.044715f * x * x * x)); }

inline float vector_gelu_derivative(float x) {
    float e = vector_exp(-1.5957691216f * (x + 0.044715f * x * x * x));
    float s = 1.0f / (1.0f + e);   // 1 - s is e s
    return s + x * (e * s) * s * 1.5957691216f * (1.0f + 0.134145f * x * x);
}

// Widens bf16, which is the upper half of an fp32 number.
inline float widen(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }
inline float widen(float x) { return x; }

// Rounds to nearest, ties to even; NaN stays NaN.
inline std::uint16_t narrow_to_bf16(float x) {
    std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    std::uint32_t quiet = bits | 0x00400000u;
    return static_cast<std::uint16_t>(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16);
}

inline void narrow(float x, float* out) { *out = x; }
inline void narrow(float x, std::uint16_t* out) { *out = narrow_to_bf16(x); }

}   // namespace host
