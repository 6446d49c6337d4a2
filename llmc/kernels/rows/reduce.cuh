// Reduces over the lanes of a warp and the threads of a block, in a fixed order: the result depends on the values
// alone, bit for bit, and every thread gets it.
//
// All lanes of a warp (threads of a block) must call these together. A block's size is 1 or a multiple of 32. A block
// reduction is a barrier: no thread returns before all have called it, and afterwards all see what any thread had
// written before. (A warp reduction is no barrier.) Calls may follow one another.
#pragma once

#include <cuda_runtime.h>

#include <limits>
#include <type_traits>

#include "llmc/kernels/launch.cuh"

// `neutral` stands for missing values: combining it changes nothing.
struct ReduceSum {
    template <class T>
    __device__ T operator()(T a, T b) const {
        return a + b;
    }
    template <class T>
    __device__ static T neutral() {
        return T(0);
    }
};
// Takes the maximum as fmaxf does: a number wins over NaN.
struct ReduceMax {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
    __device__ double operator()(double a, double b) const { return fmax(a, b); }
    __device__ int operator()(int a, int b) const { return a > b ? a : b; }
    template <class T>
    __device__ static T neutral() {
        constexpr T lowest =
            std::is_integral_v<T> ? std::numeric_limits<T>::lowest() : -std::numeric_limits<T>::infinity();
        return lowest;
    }
};

// T: float, double or an integer. The order is that of the xor butterfly over distances 16, 8, 4, 2, 1.
template <class T>
__device__ inline T warp_sum(T value CALLER) {
    return warp_butterfly(value, ReduceSum() CALLER_HERE);
}

__device__ inline unsigned block_thread() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
__device__ inline unsigned block_threads() { return blockDim.x * blockDim.y * blockDim.z; }

// Reduces each warp first, then the warps' results by one butterfly in every warp.
template <class T, class Op>
__device__ inline T block_reduce_by_warps(T value, Op op) {
    __shared__ T of_warps[32];
    unsigned lane = block_thread() % 32, warp = block_thread() / 32, warps = block_threads() / 32;
    if (warps == 1) __syncwarp();   // shuffles alone do not order memory
    value = warp_butterfly(value, op);
    if (warps == 1) return value;
    __syncthreads();   // of_warps may still be read for the previous call
    if (lane == 0) of_warps[warp] = value;
    __syncthreads();
    return warp_butterfly(lane < warps ? of_warps[lane] : Op::template neutral<T>(), op);
}

template <class T, class Op>
__device__ inline T block_reduce(T value, Op op CALLER) {
    if (block_threads() == 1) return value;
    if constexpr (block_butterfly_exists)
        return block_butterfly(value, op CALLER_HERE);   // a CPU's shorter way to the same bits
    else
        return block_reduce_by_warps(value, op);
}

// T: float, double or an integer.
template <class T>
__device__ inline T block_sum(T value CALLER) {
    return block_reduce(value, ReduceSum() CALLER_HERE);
}
template <class T>
__device__ inline T block_max(T value CALLER) {
    return block_reduce(value, ReduceMax() CALLER_HERE);
}
