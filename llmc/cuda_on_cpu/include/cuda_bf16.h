// Stand-in for CUDA's <cuda_bf16.h>: bfloat16 numbers, one and two at a time, with CUDA's names, conversions and
// roundings (to nearest even unless the name says otherwise; every NaN made from a float is 0x7fff).
//
// Arithmetic is done in fp32 and rounded once. For + - * / and square root that equals the single rounding of the
// hardware, because fp32 keeps more than twice bf16's digits; the fused multiply-add needs an extra step for that
// (bf16_fma).
#pragma once

#ifdef __CUDACC__
#error "llmc/cuda_on_cpu/include holds the CPU stand-ins of CUDA's headers: take it off nvcc's include path"
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "llmc/cuda_on_cpu/exec/vector_types.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};
struct alignas(4) __nv_bfloat162_raw {
    unsigned short x, y;
};

namespace host {

inline float bf16_bits_to_float(unsigned short bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even. Written without branches, so that loops over it become vector instructions.
inline unsigned short float_to_bf16_bits(float value) {
    std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<unsigned short>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
}

// Convert eight at once in one vector register each way, which compilers do not find by themselves when 16-bit and
// 32-bit elements meet.
using Halves8 = std::uint16_t __attribute__((vector_size(16)));
using Shorts8 = short __attribute__((vector_size(16)));
using Words8 = std::uint32_t __attribute__((vector_size(32)));
using Integers8 = std::int32_t __attribute__((vector_size(32)));   // signed: AVX2 has no other comparison
inline void bf16_bits_to_float8(const void* bits, float* values) {
    Halves8 halves;
    std::memcpy(&halves, bits, sizeof halves);
#if defined(__AVX2__) && !defined(__clang__)
    Words8 words =
        reinterpret_cast<Words8>(__builtin_ia32_pmovzxwd256(reinterpret_cast<Shorts8>(halves)));   // g++ 12 needs four
#else
    Words8 words = __builtin_convertvector(halves, Words8);
#endif
    words <<= 16;
    std::memcpy(values, &words, sizeof words);
}
inline void float_to_bf16_bits8(const float* values, void* bits) {
    Words8 words;
    std::memcpy(&words, values, sizeof words);
    const Words8 rounded = (words + 0x7fffu + ((words >> 16) & 1u)) >> 16;
    const Integers8 magnitude = reinterpret_cast<Integers8>(words & 0x7fffffffu);
    const Words8 not_a_number = reinterpret_cast<Words8>(magnitude > 0x7f800000);   // all bits, or none
    Halves8 halves = __builtin_convertvector((not_a_number & 0x7fffu) | (~not_a_number & rounded), Halves8);
    std::memcpy(bits, &halves, sizeof halves);
}

// Rounds in one direction: `away_if_positive` and `away_if_negative` tell if a number with a remainder moves away from
// zero.
inline unsigned short float_to_bf16_bits_directed(float value, bool away_if_positive, bool away_if_negative) {
    std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    bool negative = bits >> 31, exact = (bits & 0xffffu) == 0;
    bool away = negative ? away_if_negative : away_if_positive;
    return static_cast<unsigned short>((bits >> 16) + (away && !exact ? 1u : 0u));
}

// Returns the fp32 number that rounds to bf16 as the double itself would: truncated, with the last bit set if something
// was cut ("round to odd").
inline float double_to_float_odd(double value) {
    float nearest = static_cast<float>(value);
    if (static_cast<double>(nearest) == value || std::isnan(value) || std::isinf(nearest)) return nearest;
    float cut = std::fabs(static_cast<double>(nearest)) > std::fabs(value) ? std::nextafterf(nearest, 0.0f) : nearest;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(cut) | 1u);
}

// Returns a b + c rounded to odd at double precision: the product of two bf16 is exact, the error of the sum is known
// exactly.
inline float bf16_fma(float a, float b, float c) {
    double product = static_cast<double>(a) * b, addend = c;
    double sum = product + addend;
    if (!std::isfinite(sum)) return static_cast<float>(sum);
    double high = std::fabs(product) > std::fabs(addend) ? product : addend;
    double low = std::fabs(product) > std::fabs(addend) ? addend : product;
    double error = low - (sum - high);
    std::uint64_t bits = std::bit_cast<std::uint64_t>(sum);
    if (error != 0 && (bits & 1) == 0) bits += (error > 0) == (sum > 0) ? 1 : -1;
    return double_to_float_odd(std::bit_cast<double>(bits));
}

// Converts to an integer, towards zero; out of range goes to the nearest limit and NaN to 0, as on the GPU.
template <class Integer>
inline Integer float_to_integer_rz(float value) {
    constexpr double lowest = static_cast<double>(std::numeric_limits<Integer>::min());
    constexpr double highest = static_cast<double>(std::numeric_limits<Integer>::max());
    if (std::isnan(value)) return 0;
    if (value <= lowest) return std::numeric_limits<Integer>::min();
    if (value >= highest) return std::numeric_limits<Integer>::max();
    return static_cast<Integer>(value);
}

}   // namespace host

struct alignas(2) __nv_bfloat16 {
    __nv_bfloat16() = default;
    constexpr __nv_bfloat16(const __nv_bfloat16_raw& raw) : __x(raw.x) {}
    __nv_bfloat16(float value) : __x(host::float_to_bf16_bits(value)) {}
    __nv_bfloat16(double value) : __x(host::float_to_bf16_bits(host::double_to_float_odd(value))) {}
    __nv_bfloat16(short value) : __nv_bfloat16(static_cast<double>(value)) {}
    __nv_bfloat16(unsigned short value) : __nv_bfloat16(static_cast<double>(value)) {}
    __nv_bfloat16(int value) : __nv_bfloat16(static_cast<double>(value)) {}
    __nv_bfloat16(unsigned int value) : __nv_bfloat16(static_cast<double>(value)) {}
    __nv_bfloat16(long value) : __nv_bfloat16(from_integer(value)) {}
    __nv_bfloat16(unsigned long value) : __nv_bfloat16(from_integer(value)) {}
    __nv_bfloat16(long long value) : __nv_bfloat16(from_integer(value)) {}
    __nv_bfloat16(unsigned long long value) : __nv_bfloat16(from_integer(value)) {}

    operator __nv_bfloat16_raw() const { return {__x}; }
    operator float() const { return host::bf16_bits_to_float(__x); }   // exact
    operator signed char() const { return host::float_to_integer_rz<signed char>(*this); }
    operator unsigned char() const { return host::float_to_integer_rz<unsigned char>(*this); }
    operator char() const { return host::float_to_integer_rz<char>(*this); }
    operator short() const { return host::float_to_integer_rz<short>(*this); }
    operator unsigned short() const { return host::float_to_integer_rz<unsigned short>(*this); }
    operator int() const { return host::float_to_integer_rz<int>(*this); }
    operator unsigned int() const { return host::float_to_integer_rz<unsigned int>(*this); }
    operator long() const { return host::float_to_integer_rz<long>(*this); }
    operator unsigned long() const { return host::float_to_integer_rz<unsigned long>(*this); }
    operator long long() const { return host::float_to_integer_rz<long long>(*this); }
    operator unsigned long long() const { return host::float_to_integer_rz<unsigned long long>(*this); }
    constexpr operator bool() const { return (__x & 0x7fffu) != 0; }

protected:
    // 64-bit integers have more digits than a double: keep "something was cut" in the last bit.
    template <class Integer>
    static double from_integer(Integer value) {
        constexpr Integer exact_limit = Integer(1) << 52;
        bool small = value < exact_limit && (std::is_unsigned_v<Integer> || value > Integer(0) - exact_limit);
        if (small) return static_cast<double>(value);
        Integer cut = value & ~Integer(0xfff);
        return static_cast<double>(cut == value ? value : cut | Integer(0x1000));
    }
    unsigned short __x;
};
typedef __nv_bfloat16 nv_bfloat16;

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    constexpr __nv_bfloat162(const __nv_bfloat16& a, const __nv_bfloat16& b) : x(a), y(b) {}
    __nv_bfloat162(const __nv_bfloat162_raw& raw) : x(__nv_bfloat16_raw{raw.x}), y(__nv_bfloat16_raw{raw.y}) {}
    operator __nv_bfloat162_raw() const { return {__nv_bfloat16_raw(x).x, __nv_bfloat16_raw(y).x}; }
};
typedef __nv_bfloat162 nv_bfloat162;

#define HOST_BF16 inline __nv_bfloat16
#define HOST_BF162 inline __nv_bfloat162

// ---- bits
HOST_BF16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16_raw{bits}; }
HOST_BF16 __short_as_bfloat16(short bits) { return __nv_bfloat16_raw{static_cast<unsigned short>(bits)}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return __nv_bfloat16_raw(value).x; }
inline short __bfloat16_as_short(__nv_bfloat16 value) { return static_cast<short>(__nv_bfloat16_raw(value).x); }

// ---- conversions
HOST_BF16 __float2bfloat16(float value) { return value; }
HOST_BF16 __float2bfloat16_rn(float value) { return value; }
HOST_BF16 __float2bfloat16_rz(float value) {
    return __ushort_as_bfloat16(host::float_to_bf16_bits_directed(value, false, false));
}
HOST_BF16 __float2bfloat16_rd(float value) {
    return __ushort_as_bfloat16(host::float_to_bf16_bits_directed(value, false, true));
}
HOST_BF16 __float2bfloat16_ru(float value) {
    return __ushort_as_bfloat16(host::float_to_bf16_bits_directed(value, true, false));
}
HOST_BF16 __double2bfloat16(double value) { return value; }
HOST_BF16 __int2bfloat16_rn(int value) { return value; }
HOST_BF16 __uint2bfloat16_rn(unsigned int value) { return value; }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }
inline int __bfloat162int_rz(__nv_bfloat16 value) { return value; }
inline unsigned int __bfloat162uint_rz(__nv_bfloat16 value) { return value; }

HOST_BF162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
HOST_BF162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
HOST_BF162 __bfloat162bfloat162(__nv_bfloat16 value) { return {value, value}; }
HOST_BF162 __float2bfloat162_rn(float value) { return {value, value}; }
HOST_BF162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
HOST_BF162 __float22bfloat162_rn(float2 value) { return {value.x, value.y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 value) { return {value.x, value.y}; }
inline float __low2float(__nv_bfloat162 value) { return value.x; }
inline float __high2float(__nv_bfloat162 value) { return value.y; }
HOST_BF16 __low2bfloat16(__nv_bfloat162 value) { return value.x; }
HOST_BF16 __high2bfloat16(__nv_bfloat162 value) { return value.y; }
HOST_BF162 __low2bfloat162(__nv_bfloat162 value) { return {value.x, value.x}; }
HOST_BF162 __high2bfloat162(__nv_bfloat162 value) { return {value.y, value.y}; }
HOST_BF162 __lowhigh2highlow(__nv_bfloat162 value) { return {value.y, value.x}; }
HOST_BF162 __lows2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x, b.x}; }
HOST_BF162 __highs2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.y, b.y}; }

// ---- arithmetic
#define HOST_BF16_ARITHMETIC(name, name2, op)                                                                 \
    HOST_BF16 name(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) op float(b); }                         \
    HOST_BF16 name##_rn(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) op float(b); }                    \
    HOST_BF162 name2(__nv_bfloat162 a, __nv_bfloat162 b) { return {name(a.x, b.x), name(a.y, b.y)}; }         \
    HOST_BF162 name2##_rn(__nv_bfloat162 a, __nv_bfloat162 b) { return {name(a.x, b.x), name(a.y, b.y)}; }    \
    HOST_BF16 operator op(const __nv_bfloat16& a, const __nv_bfloat16& b) { return name(a, b); }              \
    inline __nv_bfloat16& operator op##=(__nv_bfloat16& a, const __nv_bfloat16& b) { return a = name(a, b); } \
    HOST_BF162 operator op(const __nv_bfloat162& a, const __nv_bfloat162& b) { return name2(a, b); }          \
    inline __nv_bfloat162& operator op##=(__nv_bfloat162& a, const __nv_bfloat162& b) { return a = name2(a, b); }
HOST_BF16_ARITHMETIC(__hadd, __hadd2, +)
HOST_BF16_ARITHMETIC(__hsub, __hsub2, -)
HOST_BF16_ARITHMETIC(__hmul, __hmul2, *)
HOST_BF16_ARITHMETIC(__hdiv, __h2div, /)
#undef HOST_BF16_ARITHMETIC

HOST_BF16 __hneg(__nv_bfloat16 a) { return __ushort_as_bfloat16(__bfloat16_as_ushort(a) ^ 0x8000u); }
HOST_BF16 __habs(__nv_bfloat16 a) { return __ushort_as_bfloat16(__bfloat16_as_ushort(a) & 0x7fffu); }
HOST_BF162 __hneg2(__nv_bfloat162 a) { return {__hneg(a.x), __hneg(a.y)}; }
HOST_BF162 __habs2(__nv_bfloat162 a) { return {__habs(a.x), __habs(a.y)}; }
HOST_BF16 operator-(const __nv_bfloat16& a) { return __hneg(a); }
HOST_BF16 operator+(const __nv_bfloat16& a) { return a; }
HOST_BF162 operator-(const __nv_bfloat162& a) { return __hneg2(a); }
HOST_BF162 operator+(const __nv_bfloat162& a) { return a; }

HOST_BF16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) { return host::bf16_fma(a, b, c); }
HOST_BF162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}

// ---- comparisons. A comparison with NaN is false, but for the `u` (unordered) ones and "not equal".
#define HOST_BF16_COMPARISON(name, op)                                                  \
    inline bool name(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) op float(b); } \
    inline bool operator op(const __nv_bfloat16& a, const __nv_bfloat16& b) { return name(a, b); }
HOST_BF16_COMPARISON(__heq, ==)
HOST_BF16_COMPARISON(__hneu, !=)
HOST_BF16_COMPARISON(__hgt, >)
HOST_BF16_COMPARISON(__hlt, <)
HOST_BF16_COMPARISON(__hge, >=)
HOST_BF16_COMPARISON(__hle, <=)
#undef HOST_BF16_COMPARISON
inline bool __hisnan(__nv_bfloat16 a) { return (__bfloat16_as_ushort(a) & 0x7fffu) > 0x7f80u; }
inline int __hisinf(__nv_bfloat16 a) {
    return __bfloat16_as_ushort(a) == 0xff80u ? -1 : __bfloat16_as_ushort(a) == 0x7f80u ? 1 : 0;
}
inline bool __hne(__nv_bfloat16 a, __nv_bfloat16 b) { return !__hisnan(a) && !__hisnan(b) && float(a) != float(b); }

// Returns the larger; the other operand if one is NaN. +0 counts as larger than -0.
HOST_BF16 __hmax(__nv_bfloat16 a, __nv_bfloat16 b) {
    if (__hisnan(a)) return __hisnan(b) ? __ushort_as_bfloat16(0x7fff) : b;
    if (__hisnan(b)) return a;
    if (float(a) == float(b)) return std::signbit(float(a)) ? b : a;
    return float(a) > float(b) ? a : b;
}
HOST_BF16 __hmin(__nv_bfloat16 a, __nv_bfloat16 b) {
    if (__hisnan(a)) return __hisnan(b) ? __ushort_as_bfloat16(0x7fff) : b;
    if (__hisnan(b)) return a;
    if (float(a) == float(b)) return std::signbit(float(a)) ? a : b;
    return float(a) < float(b) ? a : b;
}
HOST_BF162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
HOST_BF162 __hmin2(__nv_bfloat162 a, __nv_bfloat162 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }

// ---- functions
HOST_BF16 hsqrt(__nv_bfloat16 a) { return std::sqrt(float(a)); }
HOST_BF16 hrsqrt(__nv_bfloat16 a) { return 1.0 / std::sqrt(double(float(a))); }
HOST_BF16 hrcp(__nv_bfloat16 a) { return 1.0f / float(a); }
HOST_BF16 hexp(__nv_bfloat16 a) { return std::exp(float(a)); }
HOST_BF16 hexp2(__nv_bfloat16 a) { return std::exp2(float(a)); }
HOST_BF16 hlog(__nv_bfloat16 a) { return std::log(float(a)); }
HOST_BF16 hlog2(__nv_bfloat16 a) { return std::log2(float(a)); }
HOST_BF16 htanh(__nv_bfloat16 a) { return std::tanh(float(a)); }

#undef HOST_BF16
#undef HOST_BF162
