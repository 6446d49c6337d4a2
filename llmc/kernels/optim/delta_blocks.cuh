// Compresses what replicas of local steps exchange: of each element the way from where they set out to its weight, in
// blocks of 8 bits (rounded_blocks.cuh).
//
// What rounding leaves out of a block is kept, and added to the element's next way. All is computed in a fixed order,
// so replicas that have the same blocks come to the same bits.
#pragma once

#include "llmc/kernels/optim/rounded_blocks.cuh"

// Writes blocks of begin - weights + error, (count), and to error what rounding leaves out; elements past `count` are
// 0.
inline void compress_deltas(Int8Block* blocks, std::int64_t block_count, float* error, const float* weights,
                            const float* begin, std::int64_t count, cudaStream_t stream);

// Writes the mean of `replicas` pieces of `block_count` blocks each, and adds what rounding leaves out of their sum to
// error, (count), of the mean's elements.
inline void average_deltas(Int8Block* mean, const Int8Block* pieces, std::int64_t block_count, int replicas,
                           float* error, std::int64_t count, cudaStream_t stream);

// Computes weights = begin - blocks, (count).
inline void apply_deltas(float* weights, const float* begin, const Int8Block* blocks, std::int64_t count,
                         cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    compress_deltas_kernel(Int8Block* blocks, float* error, const float* weights, const float* begin,
                           std::int64_t count) {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRoundedBlock;
    round_block(
        blocks[blockIdx.x],
        [&](int i) { return first + i < count ? begin[first + i] - weights[first + i] + error[first + i] : 0.0f; },
        [&](int i, float rest) {
            if (first + i < count) error[first + i] = rest;
        });
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    average_deltas_kernel(Int8Block* mean, const Int8Block* pieces, std::int64_t block_count, int replicas,
                          float* error, std::int64_t count) {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRoundedBlock;
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
    apply_deltas_kernel(float* weights, const float* begin, const Int8Block* blocks, std::int64_t count) {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRoundedBlock;
    for (int i = static_cast<int>(threadIdx.x); i < kRoundedBlock && first + i < count;
         i += static_cast<int>(blockDim.x)) {
        weights[first + i] = begin[first + i] - blocks[blockIdx.x].at(i);
    }
}

inline void compress_deltas(Int8Block* blocks, std::int64_t block_count, float* error, const float* weights,
                            const float* begin, std::int64_t count, cudaStream_t stream) {
    if (block_count == 0) return;
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
    Launch where{dim3(static_cast<unsigned>(block_count)), loop_threads(kRoundingThreads), 0, stream};
    where.writes(blocks, block_count * static_cast<std::int64_t>(sizeof(Int8Block)));
    where.reads(weights, bytes).reads(begin, bytes).reads(error, bytes).writes(error, bytes);
    launch(compress_deltas_kernel<kRoundingThreads>, where, blocks, error, weights, begin, count);
}

inline void average_deltas(Int8Block* mean, const Int8Block* pieces, std::int64_t block_count, int replicas,
                           float* error, std::int64_t count, cudaStream_t stream) {
    if (block_count == 0) return;
    const std::int64_t bytes = block_count * static_cast<std::int64_t>(sizeof(Int8Block)),
                       errors = count * static_cast<std::int64_t>(sizeof(float));
    Launch where{dim3(static_cast<unsigned>(block_count)), loop_threads(kRoundingThreads), 0, stream};
    where.reads(pieces, replicas * bytes).writes(mean, bytes);
    if (count > 0) where.reads(error, errors).writes(error, errors);
    launch(average_deltas_kernel<kRoundingThreads>, where, mean, pieces, block_count, replicas, error, count);
}

inline void apply_deltas(float* weights, const float* begin, const Int8Block* blocks, std::int64_t count,
                         cudaStream_t stream) {
    if (count == 0) return;
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
    Launch where{dim3(static_cast<unsigned>(rounded_blocks(count))), loop_threads(kRoundingThreads), 0, stream};
    where.reads(begin, bytes).writes(weights, bytes);
    where.reads(blocks, rounded_blocks(count) * static_cast<std::int64_t>(sizeof(Int8Block)));
    launch(apply_deltas_kernel<kRoundingThreads>, where, weights, begin, blocks, count);
}
