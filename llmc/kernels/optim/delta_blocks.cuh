// Compresses what replicas of local steps exchange: the delta of each element since the last outer step, in
// blocks of 8 or 2 bits (rounded_blocks.cuh).
//
// A block is of the type Int8Block or Int2Block. What rounding leaves out of a block is kept, and added to the
// element's next delta. All is computed in a fixed order, so replicas that have the same blocks come to the same bits.
#pragma once

#include "llmc/kernels/optim/rounded_blocks.cuh"

// Writes blocks of begin - weights + error, (count), and to error what rounding leaves out.
template <class Block>
void compress_deltas(Block* blocks, std::int64_t block_count, float* error, const float* weights, const float* begin,
                     std::int64_t count, cudaStream_t stream);

// Writes the mean of `replicas` pieces of `block_count` blocks each, (count), and adds what rounding leaves out of
// their sum to error, (count).
template <class Block>
void average_deltas(Block* mean, const Block* pieces, std::int64_t block_count, int replicas, float* error,
                    std::int64_t count, cudaStream_t stream);

// Computes weights = begin - blocks, (count).
template <class Block>
void apply_deltas(float* weights, const float* begin, const Block* blocks, std::int64_t count, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

// A block of threads works on one block of the elements, the last of which `count` may cut.
struct DeltaBlock {
    std::int64_t first;
    int elements;
    __device__ explicit DeltaBlock(std::int64_t count)
        : first(static_cast<std::int64_t>(blockIdx.x) * kRoundedBlock),
          elements(count <= first                  ? 0
                   : count - first < kRoundedBlock ? static_cast<int>(count - first)
                                                   : kRoundedBlock) {}
};

template <class Block>
__global__ void __launch_bounds__(kRoundingThreads)
    compress_deltas_kernel(Block* blocks, float* error, const float* weights, const float* begin, std::int64_t count) {
    const DeltaBlock here(count);
    round_block(
        blocks[blockIdx.x], here.elements,
        [&](int i) { return begin[here.first + i] - weights[here.first + i] + error[here.first + i]; },
        [&](int i, float rest) { error[here.first + i] = rest; });
}

template <class Block>
__global__ void __launch_bounds__(kRoundingThreads)
    average_deltas_kernel(Block* mean, const Block* pieces, std::int64_t block_count, int replicas, float* error,
                          std::int64_t count) {
    const DeltaBlock here(count);
    const float share = 1.0f / static_cast<float>(replicas);
    round_block(
        mean[blockIdx.x], here.elements,
        [&](int i) {
            float sum = 0;
            for (int r = 0; r < replicas; r++) sum += pieces[r * block_count + blockIdx.x].at(i);
            return share * sum;
        },
        [&](int i, float rest) { error[here.first + i] += static_cast<float>(replicas) * rest; });
}

template <class Block>
__global__ void __launch_bounds__(kRoundingThreads)
    apply_deltas_kernel(float* weights, const float* begin, const Block* blocks, std::int64_t count) {
    const DeltaBlock here(count);
    for (int i = static_cast<int>(threadIdx.x); i < here.elements; i += static_cast<int>(blockDim.x)) {
        weights[here.first + i] = begin[here.first + i] - blocks[blockIdx.x].at(i);
    }
}

template <class Block>
void compress_deltas(Block* blocks, std::int64_t block_count, float* error, const float* weights, const float* begin,
                     std::int64_t count, cudaStream_t stream) {
    if (block_count == 0) return;
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
    Launch where{dim3(static_cast<unsigned>(block_count)), loop_threads(kRoundingThreads), 0, stream};
    where.writes(blocks, block_count * static_cast<std::int64_t>(sizeof(Block)));
    if (count > 0) where.reads(weights, bytes).reads(begin, bytes).reads(error, bytes).writes(error, bytes);
    launch(compress_deltas_kernel<Block>, where, blocks, error, weights, begin, count);
}

template <class Block>
void average_deltas(Block* mean, const Block* pieces, std::int64_t block_count, int replicas, float* error,
                    std::int64_t count, cudaStream_t stream) {
    if (block_count == 0) return;
    const std::int64_t bytes = block_count * static_cast<std::int64_t>(sizeof(Block)),
                       errors = count * static_cast<std::int64_t>(sizeof(float));
    Launch where{dim3(static_cast<unsigned>(block_count)), loop_threads(kRoundingThreads), 0, stream};
    where.reads(pieces, replicas * bytes).writes(mean, bytes);
    if (count > 0) where.reads(error, errors).writes(error, errors);
    launch(average_deltas_kernel<Block>, where, mean, pieces, block_count, replicas, error, count);
}

template <class Block>
void apply_deltas(float* weights, const float* begin, const Block* blocks, std::int64_t count, cudaStream_t stream) {
    if (count == 0) return;
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(float));
    Launch where{dim3(static_cast<unsigned>(rounded_blocks(count))), loop_threads(kRoundingThreads), 0, stream};
    where.reads(begin, bytes).writes(weights, bytes);
    where.reads(blocks, rounded_blocks(count) * static_cast<std::int64_t>(sizeof(Block)));
    launch(apply_deltas_kernel<Block>, where, weights, begin, blocks, count);
}
