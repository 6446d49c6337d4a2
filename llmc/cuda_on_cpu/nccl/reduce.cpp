#include "llmc/cuda_on_cpu/nccl/reduce.h"

namespace host {

namespace {

struct Bf16 {   // only storage; arithmetic is fp32
    std::uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(Bf16 x) {
    std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}
template <class T>
inline T widen(T x) {
    return x;
}

template <class T, class Wide>
inline T narrow(Wide x) {
    if constexpr (std::is_same_v<T, Bf16>) {
        std::uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        if ((bits & 0x7fffffffu) > 0x7f800000u)
            return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};   // not a number
        return {static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
    } else {
        return x;
    }
}

// Elements of a block that fits the nearest cache, so that every contribution is read once.
constexpr std::size_t block_elements = 2048;

template <class T, class Combine>
void reduce_with(void* out, const std::vector<const void*>& contributions, std::size_t count, Combine combine) {
    using Wide = decltype(widen(T{}));
    Wide sum[block_elements];
    for (std::size_t begin = 0; begin < count; begin += block_elements) {
        const std::size_t n = std::min(block_elements, count - begin);
        const T* first = static_cast<const T*>(contributions[0]) + begin;
        for (std::size_t i = 0; i < n; i++) sum[i] = widen(first[i]);
        for (std::size_t r = 1; r < contributions.size(); r++) {
            const T* next = static_cast<const T*>(contributions[r]) + begin;
            for (std::size_t i = 0; i < n; i++) sum[i] = combine(sum[i], widen(next[i]));
        }
        T* result = static_cast<T*>(out) + begin;
        for (std::size_t i = 0; i < n; i++) result[i] = narrow<T>(sum[i]);
    }
}

template <class T>
void reduce_type(void* out, const std::vector<const void*>& contributions, std::size_t count, ncclRedOp_t op) {
    if (op == ncclSum) return reduce_with<T>(out, contributions, count, [](auto a, auto b) { return a + b; });
    if (op == ncclMax) return reduce_with<T>(out, contributions, count, [](auto a, auto b) { return a < b ? b : a; });
    return reduce_with<T>(out, contributions, count, [](auto a, auto b) { return b < a ? b : a; });
}

}   // namespace

std::size_t size_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8: return 1;
        case ncclBfloat16: return 2;
        case ncclInt32:
        case ncclUint32:
        case ncclFloat32: return 4;
        case ncclInt64:
        case ncclUint64:
        case ncclFloat64: return 8;
        default: return 0;
    }
}

const char* name_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8: return "int8";
        case ncclUint8: return "uint8";
        case ncclInt32: return "int32";
        case ncclUint32: return "uint32";
        case ncclInt64: return "int64";
        case ncclUint64: return "uint64";
        case ncclFloat16: return "fp16";
        case ncclFloat32: return "fp32";
        case ncclFloat64: return "fp64";
        case ncclBfloat16: return "bf16";
        default: return "?";
    }
}

const char* name_of(ncclRedOp_t op) {
    switch (op) {
        case ncclSum: return "sum";
        case ncclProd: return "product";
        case ncclMax: return "max";
        case ncclMin: return "min";
        case ncclAvg: return "mean";
        default: return "?";
    }
}

bool can_reduce(ncclDataType_t type, ncclRedOp_t op) {
    return size_of(type) > 0 && (op == ncclSum || op == ncclMax || op == ncclMin);
}

void reduce(void* out, const std::vector<const void*>& contributions, std::size_t count, ncclDataType_t type,
            ncclRedOp_t op) {
    switch (type) {
        case ncclInt8: return reduce_type<std::int8_t>(out, contributions, count, op);
        case ncclUint8: return reduce_type<std::uint8_t>(out, contributions, count, op);
        case ncclInt32: return reduce_type<std::int32_t>(out, contributions, count, op);
        case ncclUint32: return reduce_type<std::uint32_t>(out, contributions, count, op);
        case ncclInt64: return reduce_type<std::int64_t>(out, contributions, count, op);
        case ncclUint64: return reduce_type<std::uint64_t>(out, contributions, count, op);
        case ncclFloat32: return reduce_type<float>(out, contributions, count, op);
        case ncclFloat64: return reduce_type<double>(out, contributions, count, op);
        case ncclBfloat16: return reduce_type<Bf16>(out, contributions, count, op);
        default: return;
    }
}

}   // namespace host
