// Master weights in two halves: the upper 16 bits of an fp32 master are its bf16 parameter, the lower 16 bits are kept
// beside it (--master-weights compact).
//
// The parameter is its master rounded to nearest, a tie away from zero. Then the upper half is one unit larger exactly
// where the lower half, taken as a signed number, is negative, and their sum gives the master back.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "llmc/base/dtype.h"

// Returns bits whose upper half is x rounded to bf16, a tie away from zero; NaN stay NaN, beside any lower half.
__host__ __device__ inline std::uint32_t rounded_bits(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fff0000u : bits + 0x8000u;
}
__host__ __device__ inline bf16 round_half_away(float x) {
    return std::bit_cast<bf16>(static_cast<std::uint16_t>(rounded_bits(x) >> 16));
}

// Returns the parameter of a master.
template <class Real>
__host__ __device__ inline Real parameter_of(float master) {
    if constexpr (std::is_same_v<Real, bf16>) {
        return round_half_away(master);
    } else {
        return master;
    }
}

// Returns the lower half, as bits in a bf16: never a number.
__host__ __device__ inline bf16 lower_half(float x) {
    return std::bit_cast<bf16>(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x)));
}

// Returns the master of round_half_away(x) and lower_half(x): x.
__host__ __device__ inline float joined(bf16 rounded, bf16 lower) {
    const auto upper = std::bit_cast<std::uint16_t>(rounded);
    const std::int32_t rest = std::bit_cast<std::int16_t>(lower);
    return std::bit_cast<float>((std::uint32_t{upper} << 16) + static_cast<std::uint32_t>(rest));
}
