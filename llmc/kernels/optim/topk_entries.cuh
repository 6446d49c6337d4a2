// Sums the largest elements of gradients over ranks (Aji and Heafield, "Sparse communication for distributed gradient
// descent", 2017), with error feedback (Stich et al., "Sparsified SGD with memory", 2018).
//
// A tensor is cut into chunks of 1,024 elements (topk_chunks.h). Of each a rank picks as many as may travel, those of
// the largest magnitude, of equal ones the first. The smallest magnitude that is picked is found by bisection: numbers
// that are not negative have the order of their bits, and NaN comes after all of them.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/optim/topk_chunks.h"
#include "llmc/kernels/rows/reduce.cuh"

// Writes the largest elements of gradient + error, (shards x shard), to entries, in the order of their indices, and to
// error the others, with 0 in the place of what is picked.
inline void pick_largest(TopkEntry* entries, const TopkChunks& how, float* error, const float* gradient,
                         cudaStream_t stream);

// Writes to sum, (shard), the sum of one shard's entries of all ranks, in their order, where rank r's begin at
// r * stride.
inline void add_entries(float* sum, const TopkEntry* received, int ranks, const TopkChunks& how, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

constexpr int kTopkThreads = 256;

// A launch has one block of threads for each chunk, of one shard or of all.
struct TopkChunk {
    std::int64_t first, first_entry;
    int elements, entries;
    __device__ explicit TopkChunk(const TopkChunks& how) {
        const std::int64_t shard = blockIdx.x / how.chunks, chunk = blockIdx.x % how.chunks;
        const bool is_last = chunk == how.chunks - 1;
        first = shard * how.shard + chunk * kTopkChunk;
        first_entry = shard * how.stride + chunk * how.of_chunk;
        elements = is_last ? how.last : kTopkChunk;
        entries = is_last ? how.of_last : how.of_chunk;
    }
};

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    pick_largest_kernel(TopkEntry* all_entries, TopkChunks how, float* error, const float* gradient) {
    __shared__ float values[kTopkChunk];
    __shared__ std::uint32_t magnitudes[kTopkChunk];
    __shared__ int larger[kThreads], equal[kThreads];   // than the threshold, of each thread
    const TopkChunk here(how);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    for (int i = thread; i < here.elements; i += threads) {
        values[i] = gradient[here.first + i] + error[here.first + i];
        magnitudes[i] = std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu;
    }
    __syncthreads();
    std::uint32_t threshold = 0;   // the largest that as many reach as are picked
    for (std::uint32_t bit = 1u << 30; bit != 0; bit >>= 1) {
        int reach = 0;
        for (int i = thread; i < here.elements; i += threads) reach += magnitudes[i] >= (threshold | bit);
        if (block_sum(reach) >= here.entries) threshold |= bit;
    }

    const int share = ceil_div(here.elements, threads);   // adjacent elements of a thread
    const int begin = min(thread * share, here.elements), end = min(begin + share, here.elements);
    int own_larger = 0, own_equal = 0;
    for (int i = begin; i < end; i++) {
        own_larger += magnitudes[i] > threshold;
        own_equal += magnitudes[i] == threshold;
    }
    larger[thread] = own_larger, equal[thread] = own_equal;
    int places = here.entries - block_sum(own_larger);   // for those that equal the threshold
    int entry = 0;
    for (int t = 0; t < thread; t++) {
        const int picked = min(equal[t], places);
        places -= picked;
        entry += larger[t] + picked;
    }
    TopkEntry* const entries = all_entries + here.first_entry;
    for (int i = begin; i < end; i++) {
        const bool picks = magnitudes[i] > threshold || (magnitudes[i] == threshold && places-- > 0);
        if (picks) entries[entry++] = {i, values[i]};
        error[here.first + i] = picks ? 0.0f : values[i];
    }
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    add_entries_kernel(float* sum, const TopkEntry* received, int ranks, TopkChunks how) {
    __shared__ float sums[kTopkChunk];
    const TopkChunk here(how);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    for (int i = thread; i < here.elements; i += threads) sums[i] = 0;
    for (int r = 0; r < ranks; r++) {
        __syncthreads();   // the entries of the rank before are added
        const TopkEntry* const entries = received + r * how.stride + here.first_entry;
        for (int e = thread; e < here.entries; e += threads) sums[entries[e].index] += entries[e].value;
    }
    __syncthreads();
    for (int i = thread; i < here.elements; i += threads) sum[here.first + i] = sums[i];
}

inline void pick_largest(TopkEntry* entries, const TopkChunks& how, float* error, const float* gradient,
                         cudaStream_t stream) {
    if (how.shard == 0) return;
    const std::int64_t bytes = how.shards * how.shard * static_cast<std::int64_t>(sizeof(float));
    Launch where{dim3(static_cast<unsigned>(how.shards * how.chunks)), loop_threads(kTopkThreads), 0, stream};
    where.reads(gradient, bytes).reads(error, bytes).writes(error, bytes);
    where.writes(entries, ((how.shards - 1) * how.stride + how.of_shard()) * sizeof(TopkEntry));
    launch(pick_largest_kernel<kTopkThreads>, where, entries, how, error, gradient);
}

inline void add_entries(float* sum, const TopkEntry* received, int ranks, const TopkChunks& how, cudaStream_t stream) {
    if (how.shard == 0) return;
    Launch where{dim3(static_cast<unsigned>(how.chunks)), loop_threads(kTopkThreads), 0, stream};
    where.reads(received, ((ranks - 1) * how.stride + how.of_shard()) * sizeof(TopkEntry));
    where.writes(sum, how.shard * sizeof(float));
    launch(add_entries_kernel<kTopkThreads>, where, sum, received, ranks, how);
}
