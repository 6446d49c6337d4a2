// Compresses what replicas of local steps exchange: of each element the way from where they set out to its weight, in
// blocks of 256 whole numbers of 8 bits with a scale in fp32.
//
// What rounding leaves out of a block is kept, and added to the element's next way (error feedback: Seide et al.,
// "1-bit stochastic gradient descent", 2014). All is computed in a fixed order, so replicas that have the same blocks
// come to the same bits.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>

#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/reduce.cuh"

constexpr int kDeltaBlock = 256;   // elements

struct DeltaBlock {
    float scale;   // infinite if a value is not finite: then the block's elements are not
    std::int8_t values[kDeltaBlock];
    __device__ float at(int i) const { return static_cast<float>(values[i]) * scale; }
};
static_assert(sizeof(DeltaBlock) % sizeof(std::int32_t) == 0);   // travels as whole numbers of 32 bits

inline std::int64_t delta_blocks(std::int64_t elements) { return (elements + kDeltaBlock - 1) / kDeltaBlock; }

// Writes blocks of begin - weights + error, (count), and to error what rounding leaves out; elements past `count` are
// 0.
inline void compress_deltas(DeltaBlock* blocks, std::int64_t block_count, float* error, const float* weights,
                            const float* begin, std::int64_t count, cudaStream_t stream);

// Writes the mean of `replicas` pieces of `block_count` blocks each, and adds what rounding leaves out of their sum to
// error, (count), of the mean's elements.
inline void average_deltas(DeltaBlock* mean, const DeltaBlock* pieces, std::int64_t block_count, int replicas,
                           float* error, std::int64_t count, cudaStream_t stream);

// Computes weights = begin - blocks, (count).
inline void apply_deltas(float* weights, const float* begin, const DeltaBlock* blocks, std::int64_t count,
                         cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

constexpr int kDeltaThreads = 256;

// Rounds value(i) of a block's elements to `out`, and calls left(i, rest).
template <class Value, class Left>
__device__ void round_block(DeltaBlock& out, Value&& value, Left&& left) {
    float most = 0;
    for (int i = static_cast<int>(threadIdx.x); i < kDeltaBlock; i += static_cast<int>(blockDim.x)) {
        const float x = fabsf(value(i));
        most = fmaxf(most, x <= FLT_MAX ? x : INFINITY);   // NaN too
    }
    const float scale = block_max(most) / 127.0f;
    const float inverse = scale > 0 && scale <= FLT_MAX ? 1.0f / scale : 0.0f;
    if (threadIdx.x == 0) out.scale = scale;
    for (int i = static_cast<int>(threadIdx.x); i < kDeltaBlock; i += static_cast<int>(blockDim.x)) {
        const float x = value(i);
        const float whole =
            inverse > 0 && inverse <= FLT_MAX ? fminf(fmaxf(rintf(x * inverse), -127.0f), 127.0f) : 0.0f;
        out.values[i] = static_cast<std::int8_t>(whole);
        left(i, fmaf(-whole, scale, x));
    }
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    compress_deltas_kernel(DeltaBlock* blocks, float* error, const float* weights, const float* begin,
                           std::int64_t count) {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kDeltaBlock;
    round_block(
        blocks[blockIdx.x],
        [&](int i) { return first + i < count ? begin[first + i] - weights[first + i] + error[first + i] : 0.0f; },
        [&](int i, float rest) {
            if (first + i < count) error[first + i] = rest;
        });
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    average_deltas_kernel(DeltaBlock* mean, const DeltaBlock* pieces, std::int64_t block_count, int replicas,
                          float* error, std::int64_t count) {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kDeltaBlock;
    const float share = 1.0f / static_cast<float>(replicas);
    round_block(
        mean[blockIdx.x],
        [&](int i) {
            float sum = 0;
            for (int r = 0; r < replicas; r++) sum += pieces[r * block_count + blockIdx.x].at(i);
            return share * sum;
        },
        [&](int i, float rest) {
            if (first + i < count) error[first + i] += static_cast<float>(replicas) * rest;
        });
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    apply_deltas_kernel(float* weights, const float* begin, const DeltaBlock* blocks, std::int64_t count) {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kDeltaBlock;
    for (int i = static_cast<int>(threadIdx.x); i < kDeltaBlock && first + i < count;
         i += static_cast<int>(blockDim.x)) {
        weights[first + i] = begin[first + i] - blocks[blockIdx.x].at(i);
    }
}

inline void compress_deltas(DeltaBlock* blocks, std::int64_t block_count, float* error, const float* weights,
                            const float* begin, std::int64_t count, cudaStream_t stream) {
    if (block_count == 0) return;
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
    Launch where{dim3(static_cast<unsigned>(block_count)), loop_threads(kDeltaThreads), 0, stream};
    where.writes(blocks, block_count * static_cast<std::int64_t>(sizeof(DeltaBlock)));
    where.reads(weights, bytes).reads(begin, bytes).reads(error, bytes).writes(error, bytes);
    launch(compress_deltas_kernel<kDeltaThreads>, where, blocks, error, weights, begin, count);
}

inline void average_deltas(DeltaBlock* mean, const DeltaBlock* pieces, std::int64_t block_count, int replicas,
                           float* error, std::int64_t count, cudaStream_t stream) {
    if (block_count == 0) return;
    const std::int64_t bytes = block_count * static_cast<std::int64_t>(sizeof(DeltaBlock)),
                       errors = count * static_cast<std::int64_t>(sizeof(float));
    Launch where{dim3(static_cast<unsigned>(block_count)), loop_threads(kDeltaThreads), 0, stream};
    where.reads(pieces, replicas * bytes).writes(mean, bytes);
    if (count > 0) where.reads(error, errors).writes(error, errors);
    launch(average_deltas_kernel<kDeltaThreads>, where, mean, pieces, block_count, replicas, error, count);
}

inline void apply_deltas(float* weights, const float* begin, const DeltaBlock* blocks, std::int64_t count,
                         cudaStream_t stream) {
    if (count == 0) return;
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
    Launch where{dim3(static_cast<unsigned>(delta_blocks(count))), loop_threads(kDeltaThreads), 0, stream};
    where.reads(begin, bytes).writes(weights, bytes);
    where.reads(blocks, delta_blocks(count) * static_cast<std::int64_t>(sizeof(DeltaBlock)));
    launch(apply_deltas_kernel<kDeltaThreads>, where, weights, begin, blocks, count);
}
