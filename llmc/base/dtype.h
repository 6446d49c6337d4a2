// The element types the program stores and computes with.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "llmc/base/ensure.h"

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

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
    static constexpr DType value = DType::fp32;
};
template <>
struct DTypeOf<bf16> {
    static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<std::int32_t> {
    static constexpr DType value = DType::int32;
};
template <>
struct DTypeOf<std::uint16_t> {
    static constexpr DType value = DType::uint16;
};
template <class T>
constexpr DType dtype_of = DTypeOf<T>::value;

// Address of elements whose type is known at run time.
struct TypedPointer {
    void* data = nullptr;
    DType type = DType::fp32;

    TypedPointer() = default;
    TypedPointer(void* its_data, DType its_type) : data(its_data), type(its_type) {}
    template <class T>
    TypedPointer(T* typed) : data(typed), type(dtype_of<T>) {}
    TypedPointer operator+(std::int64_t elements) const {
        return {static_cast<std::byte*>(data) + elements * static_cast<std::int64_t>(size_of(type)), type};
    }
    // Returns the address, if T is the type: anything else is a bug.
    template <class T>
    T* as() const {
        ENSURE(type == dtype_of<T>, "elements of ", name_of(type), " taken as ", name_of(dtype_of<T>));
        return static_cast<T*>(data);
    }
};

// Calls use.operator()<G>() with the type of gradients, to launch what is a template on it. Gradients are fp32, or bf16
// where the parameters (Real) are: never narrower.
template <class Real, class Use>
decltype(auto) with_gradient_type(DType type, Use&& use) {
    if constexpr (std::is_same_v<Real, bf16>) {
        if (type == DType::bf16) return use.template operator()<bf16>();
    }
    ENSURE(type == DType::fp32, "no kernel is made for gradients of ", name_of(type), " here");
    return use.template operator()<float>();
}
