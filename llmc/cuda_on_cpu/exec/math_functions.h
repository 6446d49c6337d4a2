// Arithmetic that CUDA offers to kernels and C++ does not: min and max, fast and rounded intrinsics, bits.
//
// The fast ones (__expf, __fdividef ...) are exact or nearly so here: a GPU's are a few units in the last place away,
// so nothing may depend on their last bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "llmc/cuda_on_cpu/exec/vector_types.h"

// ---- min and max: CUDA's overloads for mixed arguments, and fmin's treatment of NaN for floats

#define HOST_MIN_MAX(type)                                    \
    inline type min(type a, type b) { return b < a ? b : a; } \
    inline type max(type a, type b) { return a < b ? b : a; }
HOST_MIN_MAX(int)
HOST_MIN_MAX(unsigned int)
HOST_MIN_MAX(long)
HOST_MIN_MAX(unsigned long)
HOST_MIN_MAX(long long)
HOST_MIN_MAX(unsigned long long)
#undef HOST_MIN_MAX
#define HOST_MIN_MAX_MIXED(a_type, b_type, type)                                                    \
    inline type min(a_type a, b_type b) { return min(static_cast<type>(a), static_cast<type>(b)); } \
    inline type max(a_type a, b_type b) { return max(static_cast<type>(a), static_cast<type>(b)); }
HOST_MIN_MAX_MIXED(int, unsigned int, unsigned int)
HOST_MIN_MAX_MIXED(unsigned int, int, unsigned int)
HOST_MIN_MAX_MIXED(long, unsigned long, unsigned long)
HOST_MIN_MAX_MIXED(unsigned long, long, unsigned long)
HOST_MIN_MAX_MIXED(long long, unsigned long long, unsigned long long)
HOST_MIN_MAX_MIXED(unsigned long long, long long, unsigned long long)
#undef HOST_MIN_MAX_MIXED
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

// ---- single precision

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline float fdividef(float a, float b) { return a / b; }
inline float normcdff(float x) { return 0.5f * erfcf(x * -0.70710678118654752440f); }

// Returns e^x. Has no branches and calls, so that loops over it become vector instructions: x = n ln 2 + r with |r| <=
// ln 2 / 2, and e^x = 2^n e^r with Cephes' polynomial for e^r. At most 2 units in the last place; 0 below -87, infinite
// above 88.
__forceinline__ float __expf(float x) {
    const float shifted = fmaf(x, 1.44269504f, 12582912.0f);   // + 1.5 * 2^23: the integer n is in the low bits
    const float n = shifted - 12582912.0f;
    const float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));
    float p = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    const float y = p * std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3f800000u);
    return x < -87.0f ? 0.0f : x > 88.0f ? __builtin_inff() : y;
}
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline void __sincosf(float x, float* sine, float* cosine) { sincosf(x, sine, cosine); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x >= 0.0f ? (x <= 1.0f ? x : 1.0f) : 0.0f; }   // NaN becomes 0

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

// ---- conversions and bits

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

namespace host {
// Converts a rounded value to an integer; out of range gives the nearest limit, NaN gives 0.
template <class Integer>
inline Integer saturate(float rounded) {
    if (std::isnan(rounded)) return 0;
    if (rounded <= static_cast<float>(std::numeric_limits<Integer>::min())) return std::numeric_limits<Integer>::min();
    if (rounded >= static_cast<float>(std::numeric_limits<Integer>::max())) return std::numeric_limits<Integer>::max();
    return static_cast<Integer>(rounded);
}
}   // namespace host
inline int __float2int_rz(float x) { return host::saturate<int>(truncf(x)); }
inline int __float2int_rn(float x) { return host::saturate<int>(rintf(x)); }
inline int __float2int_rd(float x) { return host::saturate<int>(floorf(x)); }
inline int __float2int_ru(float x) { return host::saturate<int>(ceilf(x)); }
inline unsigned __float2uint_rz(float x) { return host::saturate<unsigned>(truncf(x)); }
inline unsigned __float2uint_rn(float x) { return host::saturate<unsigned>(rintf(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((std::uint64_t{a} * b) >> 32); }
inline int __mulhi(int a, int b) { return static_cast<int>((std::int64_t{a} * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>(((std::uint64_t{high} << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (shift & 31));
}
// Picks four of the eight bytes of (b, a), one per digit of the selector; a digit's bit 3 repeats the byte's sign.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    std::uint64_t bytes = std::uint64_t{b} << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned digit = selector >> (4 * i) & 0xfu;
        unsigned byte = static_cast<unsigned>(bytes >> (8 * (digit & 7u))) & 0xffu;
        if (digit & 8u) byte = byte & 0x80u ? 0xffu : 0u;
        result |= byte << (8 * i);
    }
    return result;
}
