// 128-bit loads and stores, and a thread's unit of work: eight consecutive elements.
//
// A GPU moves the most bytes per instruction, and keeps the most bytes in flight, with 16-byte accesses. So every
// element-wise or row-wise kernel gives a thread eight consecutive elements at a time: one access in bf16, two in fp32.
// Eight in both keeps one source for both types, and is one AVX register of floats on a CPU.
//
// Any length and any alignment works: the host checks once whether all pointers of a launch can be read in packets
// (`packets_fit`); if not, and at the end of a range, `load8`/`store8` fall back to single elements.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "llmc/base/dtype.h"
#include "llmc/kernels/launch.cuh"

// N elements of T, moved as whole 16-byte packets.
template <class T, int N>
struct alignas(16) Vec {
    static_assert(N * sizeof(T) % 16 == 0, "a Vec is a whole number of 16-byte packets");
    static constexpr int size = N;
    static constexpr int packets = static_cast<int>(N * sizeof(T) / 16);
#ifdef __CUDACC__   // nvcc would keep each 16-bit element in a register of its own
    using Stored = std::conditional_t<sizeof(T) == 2, uint4, T>;
#else
    using Stored = T;
#endif
    Stored values[N * sizeof(T) / sizeof(Stored)];

    __device__ __forceinline__ T& operator[](int i) {
        if constexpr (std::is_same_v<Stored, T>)
            return values[i];
        else
            return reinterpret_cast<T*>(values)[i];
    }
    __device__ __forceinline__ const T& operator[](int i) const { return const_cast<Vec&>(*this)[i]; }
};

template <class T>
using Packed = Vec<T, static_cast<int>(16 / sizeof(T))>;   // one 128-bit access
template <class T>
using Vec8 = Vec<T, 8>;   // one thread's elements

// Load and store whole packets; `p` must be 16-byte aligned. Compilers turn the copy of the struct into the widest
// accesses: 128 bits each on a GPU, one AVX register on a CPU (two halves would stall the next wide read).
template <int N, class T>
__device__ __forceinline__ Vec<T, N> load_packets(const T* p) {
    return *reinterpret_cast<const Vec<T, N>*>(p);
}

template <int N, class T>
__device__ __forceinline__ void store_packets(T* p, const Vec<T, N>& v) {
    *reinterpret_cast<Vec<T, N>*>(p) = v;
}

// Copies eight elements unconverted, in words: with 16-bit elements, nvcc would store one at a time.
template <class T>
__device__ __forceinline__ void copy8(T* to, const T* from) {
    constexpr int words = static_cast<int>(8 * sizeof(T) / sizeof(float));
    store_packets(reinterpret_cast<float*>(to), load_packets<words>(reinterpret_cast<const float*>(from)));
}

// Loads a packet that is used once: marked to leave the caches first, so that it does not evict data that is read
// again.
template <class T>
__device__ __forceinline__ Packed<T> load_packet_streaming(const T* p) {
    Packed<T> result;
    *reinterpret_cast<int4*>(&result) = __ldcs(reinterpret_cast<const int4*>(p));
    return result;
}

template <class T>
__device__ __forceinline__ void store_packet_streaming(T* p, const Packed<T>& v) {
    __stcs(reinterpret_cast<int4*>(p), *reinterpret_cast<const int4*>(&v));
}

// Length of a range or row, and whether its elements can be moved in packets.
struct Extent {
    std::int64_t count;
    bool packets;
};

// Extent known at compile time: packets only, count a multiple of eight. Kernels that keep much in registers are
// compiled for it, because the general Extent costs them registers.
struct PacketExtent {
    std::int64_t count;
};

// Calls body(extent), which loads and stores elements i .. i+7 of any number of tensors: with a PacketExtent if they
// are whole packets, else with the Extent. On a GPU a thread's loads are under way together only inside such a body: a
// load8 that chooses for itself waits for its loads where the two branches join.
template <class Body>
__device__ __forceinline__ void with_known_extent(std::int64_t i, Extent extent, Body body) {
    if (extent.packets && i + 8 <= extent.count) [[likely]] {
        body(PacketExtent{extent.count});
    } else {
        body(extent);
    }
}

// stream: used once (a hint, for types of which eight elements are one packet).
enum class Cache { keep, stream };

template <Cache cache = Cache::keep, class T>
__device__ __forceinline__ Vec8<T> load8(const T* p, std::int64_t i, PacketExtent) {
    if constexpr (cache == Cache::stream && Vec8<T>::packets == 1)
        return load_packet_streaming(p + i);
    else
        return load_packets<8>(p + i);
}

// Loads elements i .. i+7 of a range; those at or beyond the end read as zero.
template <Cache cache = Cache::keep, class T>
__device__ __forceinline__ Vec8<T> load8(const T* p, std::int64_t i, Extent extent) {
    if (extent.packets && i + 8 <= extent.count) [[likely]] {
        return load8<cache>(p, i, PacketExtent{extent.count});
    }
    Vec8<T> result;
#pragma unroll
    for (int k = 0; k < 8; k++) result[k] = i + k < extent.count ? p[i + k] : static_cast<T>(0.0f);
    return result;
}

template <Cache cache = Cache::keep, class T>
__device__ __forceinline__ void store8(T* p, std::int64_t i, PacketExtent, const Vec8<T>& v) {
    if constexpr (cache == Cache::stream && Vec8<T>::packets == 1)
        store_packet_streaming(p + i, v);
    else
        store_packets(p + i, v);
}

// Stores elements i .. i+7, leaving out those at or beyond the end.
template <Cache cache = Cache::keep, class T>
__device__ __forceinline__ void store8(T* p, std::int64_t i, Extent extent, const Vec8<T>& v) {
    if (extent.packets && i + 8 <= extent.count) [[likely]] {
        store8<cache>(p, i, PacketExtent{extent.count}, v);
        return;
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if (i + k < extent.count) p[i + k] = v[k];
    }
}

// Kernels compute on eight floats: to_floats converts loaded elements, round_to converts elements to store. A loop over
// both element types at once would be the same on a GPU, but on a CPU half as wide at best: compilers want elements of
// one size. On a GPU, bf16 elements stay two in a word: nvcc gives elements that are named one by one a register each.
template <class T>
__device__ __forceinline__ Vec8<float> to_floats(const Vec8<T>& v) {
    if constexpr (std::is_same_v<T, float>) {
        return v;
    } else if constexpr (vector_conversions_exist) {
        return widened8<Vec8<float>>(v);
    } else {
        Vec8<float> result;
#ifdef __CUDACC__
        const unsigned words[4] = {v.values[0].x, v.values[0].y, v.values[0].z, v.values[0].w};
#pragma unroll
        for (int k = 0; k < 8; k++)
            result[k] = __uint_as_float(k % 2 == 0 ? words[k / 2] << 16 : words[k / 2] & 0xffff0000u);
#endif
        return result;
    }
}
template <class T>
__device__ __forceinline__ Vec8<T> round_to(const Vec8<float>& v) {
    if constexpr (std::is_same_v<T, float>) {
        return v;
    } else if constexpr (vector_conversions_exist) {
        return narrowed8<Vec8<T>>(v);
    } else {
        Vec8<T> result;
#ifdef __CUDACC__   // two by one instruction
        auto* const pairs = reinterpret_cast<__nv_bfloat162*>(&result);
#pragma unroll
        for (int i = 0; i < 4; i++) pairs[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
#endif
        return result;
    }
}

// Returns a + b, each sum rounded once.
template <class T>
__device__ __forceinline__ Vec8<T> add8(const Vec8<T>& a, const Vec8<T>& b) {
    const Vec8<float> x = to_floats(a), y = to_floats(b);
    Vec8<float> sum;
#pragma unroll
    for (int k = 0; k < 8; k++) sum[k] = x[k] + y[k];
    return round_to<T>(sum);
}

// Return the sum and the largest of eight, as trees: short chains of dependent operations, and vectors on a CPU. max8
// may ignore NaN; sum8 does not.
template <class Real>
__device__ __forceinline__ Real sum8(const Vec8<Real>& v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
__device__ __forceinline__ float max8(const Vec8<float>& v) {
    return larger(larger(larger(v[0], v[4]), larger(v[2], v[6])), larger(larger(v[1], v[5]), larger(v[3], v[7])));
}

// Returns true if every pointer can be read in packets of eight elements (null pointers, for optional operands, can).
template <class... T>
bool packets_fit(const T*... pointers) {
    return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

// Returns the extent of rows of C elements: packets if every row of every pointer begins at a packet.
template <class... T>
Extent row_extent(std::int64_t C, const T*... pointers) {
    return {C, C % 8 == 0 && packets_fit(pointers...)};
}

// Calls launch_with(extent), with a PacketExtent if all elements are in packets.
template <class LaunchWith>
void with_extent_type(Extent extent, LaunchWith launch_with) {
    if (extent.packets)
        launch_with(PacketExtent{extent.count});
    else
        launch_with(extent);
}
