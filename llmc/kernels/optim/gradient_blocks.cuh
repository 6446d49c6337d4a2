// Sums gradients over ranks in rounded blocks (rounded_blocks.cuh), with error feedback.
//
// A tensor is cut into a shard for each rank (shard_blocks.h). A rank rounds all of it, each shard from a new block on,
// and sends each shard to its owner, who adds up the blocks of all ranks in their order. Where all need the sum the
// owner rounds it once more for all, itself included, so all ranks have the same bits. A block is of the type Int8Block
// or Bf16Block.
#pragma once

#include <algorithm>

#include "llmc/kernels/optim/rounded_blocks.cuh"

// Writes blocks of gradient + error, (elements), and to error what rounding leaves out, which is not finite where
// a number is not.
template <class Block>
void compress_gradients(Block* blocks, const ShardBlocks& how, float* error, const float* gradient,
                        cudaStream_t stream);

// Writes to sum, (shard), the sum of one shard's blocks of all ranks, where rank r's begin at r * stride.
template <class Block>
void sum_blocks(float* sum, const Block* received, const ShardBlocks& how, cudaStream_t stream);

// Writes blocks of the same sum, of shard `rank`, and adds what rounding leaves out to that shard of error, (elements).
template <class Block>
void round_sum(Block* out, const Block* received, const ShardBlocks& how, std::int64_t rank, float* error,
               cudaStream_t stream);

// Writes the numbers that blocks stand for to gradient, (elements).
template <class Block>
void expand_blocks(float* gradient, const Block* blocks, const ShardBlocks& how, cudaStream_t stream);

// Zeroes error (n) if *skip is not 0.
inline void drop_error(float* error, std::int64_t n, const int* skip, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

// A launch has one block of threads for each block of elements, of one shard or of all.
struct ShardBlock {
    std::int64_t index, first, end;   // block; its first element, and where the shard's elements end
    __device__ ShardBlock(const ShardBlocks& how, std::int64_t blocks)
        : index(blockIdx.x / blocks * how.stride + blockIdx.x % blocks),
          first(blockIdx.x / blocks * how.shard + blockIdx.x % blocks * kRoundedBlock),
          end((blockIdx.x / blocks + 1) * how.shard) {
        if (end > how.elements) end = how.elements;
    }
};

template <class Block>
__device__ float sum_at(const Block* received, const ShardBlocks& how, int i) {
    float sum = 0;
    for (std::int64_t r = 0; r < how.ranks; r++) sum += received[r * how.stride + blockIdx.x].at(i);
    return sum;
}

template <class Block>
__global__ void __launch_bounds__(kRoundingThreads)
    compress_gradients_kernel(Block* blocks, ShardBlocks how, std::int64_t of_shard, float* error,
                              const float* gradient) {
    const ShardBlock here(how, of_shard);
    round_block(
        blocks[here.index],
        [&](int i) { return here.first + i < here.end ? gradient[here.first + i] + error[here.first + i] : 0.0f; },
        [&](int i, float rest) {
            if (here.first + i < here.end) error[here.first + i] = rest;
        });
}

template <class Block>
__global__ void __launch_bounds__(kRoundingThreads)
    sum_blocks_kernel(float* sum, const Block* received, ShardBlocks how) {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRoundedBlock;
    for (int i = static_cast<int>(threadIdx.x); i < kRoundedBlock && first + i < how.shard;
         i += static_cast<int>(blockDim.x)) {
        sum[first + i] = sum_at(received, how, i);
    }
}

template <class Block>
__global__ void __launch_bounds__(kRoundingThreads)
    round_sum_kernel(Block* out, const Block* received, ShardBlocks how, float* error, std::int64_t held) {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRoundedBlock;
    round_block(
        out[blockIdx.x], [&](int i) { return sum_at(received, how, i); },
        [&](int i, float rest) {
            if (first + i < held) error[first + i] += rest;
        });
}

template <class Block>
__global__ void __launch_bounds__(kRoundingThreads)
    expand_blocks_kernel(float* gradient, const Block* blocks, ShardBlocks how, std::int64_t of_shard) {
    const ShardBlock here(how, of_shard);
    for (int i = static_cast<int>(threadIdx.x); i < kRoundedBlock && here.first + i < here.end;
         i += static_cast<int>(blockDim.x)) {
        gradient[here.first + i] = blocks[here.index].at(i);
    }
}

inline __global__ void __launch_bounds__(kRoundingThreads)
    drop_error_kernel(float* error, std::int64_t n, const int* skip) {
    if (*skip == 0) return;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
        error[i] = 0;
    }
}

inline Launch for_blocks(std::int64_t blocks, cudaStream_t stream) {
    return {dim3(static_cast<unsigned>(blocks)), loop_threads(kRoundingThreads), 0, stream};
}

// Returns the bytes from a tensor's first block to its last one's end.
template <class Block>
std::int64_t bytes_of_blocks(const ShardBlocks& how) {
    return ((how.ranks - 1) * how.stride + how.of_shard()) * static_cast<std::int64_t>(sizeof(Block));
}

template <class Block>
void compress_gradients(Block* blocks, const ShardBlocks& how, float* error, const float* gradient,
                        cudaStream_t stream) {
    if (how.shard == 0) return;
    const std::int64_t bytes = how.elements * static_cast<std::int64_t>(sizeof(float));
    Launch where = for_blocks(how.ranks * how.of_shard(), stream);
    where.reads(gradient, bytes).reads(error, bytes).writes(error, bytes).writes(blocks, bytes_of_blocks<Block>(how));
    launch(compress_gradients_kernel<Block>, where, blocks, how, how.of_shard(), error, gradient);
}

template <class Block>
void sum_blocks(float* sum, const Block* received, const ShardBlocks& how, cudaStream_t stream) {
    if (how.shard == 0) return;
    Launch where = for_blocks(how.of_shard(), stream);
    where.reads(received, bytes_of_blocks<Block>(how));
    where.writes(sum, how.shard * static_cast<std::int64_t>(sizeof(float)));
    launch(sum_blocks_kernel<Block>, where, sum, received, how);
}

template <class Block>
void round_sum(Block* out, const Block* received, const ShardBlocks& how, std::int64_t rank, float* error,
               cudaStream_t stream) {
    if (how.shard == 0) return;
    const std::int64_t held = how.held(rank), bytes = held * static_cast<std::int64_t>(sizeof(float));
    float* const of_rank = error + how.first(rank);
    Launch where = for_blocks(how.of_shard(), stream);
    where.reads(received, bytes_of_blocks<Block>(how)).reads(of_rank, bytes).writes(of_rank, bytes);
    where.writes(out, how.of_shard() * static_cast<std::int64_t>(sizeof(Block)));
    launch(round_sum_kernel<Block>, where, out, received, how, of_rank, held);
}

template <class Block>
void expand_blocks(float* gradient, const Block* blocks, const ShardBlocks& how, cudaStream_t stream) {
    if (how.shard == 0) return;
    Launch where = for_blocks(how.ranks * how.of_shard(), stream);
    where.reads(blocks, bytes_of_blocks<Block>(how));
    where.writes(gradient, how.elements * static_cast<std::int64_t>(sizeof(float)));
    launch(expand_blocks_kernel<Block>, where, gradient, blocks, how, how.of_shard());
}

inline void drop_error(float* error, std::int64_t n, const int* skip, cudaStream_t stream) {
    if (n == 0) return;
    constexpr std::int64_t most = 1024;   // blocks: nearly always they only look at `skip`
    Launch where = for_blocks(std::min(rounded_blocks(n), most), stream);
    where.reads(skip, sizeof(int)).writes(error, n * static_cast<std::int64_t>(sizeof(float)));
    launch(drop_error_kernel, where, error, n, skip);
}
