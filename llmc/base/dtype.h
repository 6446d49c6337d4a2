// The element types the program stores and computes with.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

enum class DType : std::uint8_t { fp32, bf16, int32, uint16 };

using bf16 = __nv_bfloat16;   // after the enumerator of the same name, which would shadow it

constexpr std::size_t size_of(DType type) {
    switch (type) {
        case DType::fp32: return 4;
        case DType::bf16: return 2;
        case DType::int32: return 4;
        case DType::uint16: return 2;
    }
    return 0;
}

constexpr const char* name_of(DType type) {
    switch (type) {
        case DType::fp32: return "fp32";
        case DType::bf16: return "bf16";
        case DType::int32: return "int32";
        case DType::uint16: return "uint16";
    }
    return "?";
}

template <class T> struct DTypeOf;
template <> struct DTypeOf<float> { static constexpr DType value = DType::fp32; };
template <> struct DTypeOf<bf16> { static constexpr DType value = DType::bf16; };
template <> struct DTypeOf<std::int32_t> { static constexpr DType value = DType::int32; };
template <> struct DTypeOf<std::uint16_t> { static constexpr DType value = DType::uint16; };
template <class T> constexpr DType dtype_of = DTypeOf<T>::value;
