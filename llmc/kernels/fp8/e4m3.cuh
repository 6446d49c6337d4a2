// Rounds numbers to e4m3, the fp8 of products (Micikevicius et al., "FP8 formats for deep learning", 2022, 2209.05433):
// a sign, four bits of exponent, three of mantissa. The largest is 448, the least normal 2^-6, the least 2^-9.
//
// A block of numbers has one scale, a power of two, by which its largest number comes close to 448. So an element times
// its scale is a bf16 number, and its rounding error depends on the scale only near zero.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

constexpr float kLargestE4m3 = 448.0f;
constexpr int kLargestFp8Exponent = 100;   // scales are 2^-100 .. 2^100: bf16 has room for all products with them

// Returns x as e4m3 has it: rounded to the nearest, ties to even; numbers beyond 448 become 448, infinities NaN.
__device__ __forceinline__ float round_to_e4m3(float x) {
    const float size = fminf(fabsf(x), kLargestE4m3);
    const std::uint32_t bits = __float_as_uint(size);
    const float normal = __uint_as_float((bits + 0x7ffff + (bits >> 20 & 1)) & 0xfff00000u);
    const float subnormal = rintf(size * 0x1p9f) * 0x1p-9f;
    const float rounded = copysignf(size < 0x1p-6f ? subnormal : normal, x);
    return fabsf(x) <= 0x1.fffffep127f ? rounded : __uint_as_float(0x7fc00000u);
}

// Returns the exponent of the least scale under which numbers of size `largest`, finite, are at most 448.
__device__ __forceinline__ int fp8_scale_exponent(float largest) {
    const std::uint32_t bits = __float_as_uint(largest);
    const int exponent = static_cast<int>(bits >> 23) - 127 - 8 + ((bits & 0x7fffff) > 0x600000 ? 1 : 0);
    return min(max(exponent, -kLargestFp8Exponent), kLargestFp8Exponent);
}

// Returns 2^exponent, within the range of normal numbers.
__device__ __forceinline__ float power_of_two(int exponent) {
    return __uint_as_float(static_cast<std::uint32_t>(exponent + 127) << 23);
}
