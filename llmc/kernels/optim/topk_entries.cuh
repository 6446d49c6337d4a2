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

// Likewise of begin - weights + momentum error: how far weights went, and what was left out of that before.
inline void pick_largest_deltas(TopkEntry* entries, const TopkChunks& how, float* error, const float* weights,
                                const float* begin, float momentum, cudaStream_t stream);

// Writes to sum, (shard), the sum of one shard's entries of all ranks, in their order, where rank r's begin at
// r * stride.
inline void add_entries(float* sum, const TopkEntry* received, int ranks, const TopkChunks& how, cudaStream_t stream);

// Writes begin - the mean of the entries of all ranks to weights, likewise.
inline void add_mean_delta(float* weights, const float* begin, const TopkEntry* received, int ranks,
                           const TopkChunks& how, cudaStream_t stream);

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

// Return what entries are picked of.
struct GradientAndError {
    const float *gradient, *error;
    __device__ float operator()(std::int64_t i) const { return gradient[i] + error[i]; }
};
struct WayAndError {
    const float *weights, *begin, *error;
    float momentum;
    __device__ float operator()(std::int64_t i) const { return fmaf(momentum, error[i], begin[i] - weights[i]); }
};

// Write what entries add up to.
struct StoreSum {
    float* sum;
    __device__ void operator()(std::int64_t i, float value) const { sum[i] = value; }
};
struct StoreWeights {
    float* weights;
    const float* begin;
    float share;   // 1 / ranks
    __device__ void operator()(std::int64_t i, float sum) const { weights[i] = fmaf(-share, sum, begin[i]); }
};

template <int kThreads, class Value>
__global__ void __launch_bounds__(kThreads)
    pick_largest_kernel(TopkEntry* all_entries, TopkChunks how, float* error, Value value) {
    __shared__ float values[kTopkChunk];
    __shared__ std::uint32_t magnitudes[kTopkChunk];
    __shared__ int larger[kThreads], equal[kThreads];   // than the threshold, of each thread
    const TopkChunk here(how);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    for (int i = thread; i < here.elements; i += threads) {
        values[i] = value(here.first + i);
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

template <int kThreads, class Store>
__global__ void __launch_bounds__(kThreads)
    add_entries_kernel(Store store, const TopkEntry* received, int ranks, TopkChunks how) {
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
    for (int i = thread; i < here.elements; i += threads) store(here.first + i, sums[i]);
}

// Returns the launch that picks the entries, without what the values are read from.
inline Launch picking(const TopkEntry* entries, const TopkChunks& how, const float* error, cudaStream_t stream) {
    const std::int64_t bytes = how.shards * how.shard * static_cast<std::int64_t>(sizeof(float));
    Launch where{dim3(static_cast<unsigned>(how.shards * how.chunks)), loop_threads(kTopkThreads), 0, stream};
    where.reads(error, bytes).writes(error, bytes);
    where.writes(entries, ((how.shards - 1) * how.stride + how.of_shard()) * sizeof(TopkEntry));
    return where;
}

// Returns the launch that adds them up, without what it writes.
inline Launch adding(const TopkEntry* received, int ranks, const TopkChunks& how, cudaStream_t stream) {
    Launch where{dim3(static_cast<unsigned>(how.chunks)), loop_threads(kTopkThreads), 0, stream};
    where.reads(received, ((ranks - 1) * how.stride + how.of_shard()) * sizeof(TopkEntry));
    return where;
}

inline void pick_largest(TopkEntry* entries, const TopkChunks& how, float* error, const float* gradient,
                         cudaStream_t stream) {
    if (how.shard == 0) return;
    Launch where = picking(entries, how, error, stream);
    where.reads(gradient, how.shards * how.shard * sizeof(float));
    launch(pick_largest_kernel<kTopkThreads, GradientAndError>, where, entries, how, error,
           GradientAndError{gradient, error});
}

inline void pick_largest_deltas(TopkEntry* entries, const TopkChunks& how, float* error, const float* weights,
                                const float* begin, float momentum, cudaStream_t stream) {
    if (how.shard == 0) return;
    Launch where = picking(entries, how, error, stream);
    const std::int64_t bytes = how.shards * how.shard * static_cast<std::int64_t>(sizeof(float));
    where.reads(weights, bytes).reads(begin, bytes);
    launch(pick_largest_kernel<kTopkThreads, WayAndError>, where, entries, how, error,
           WayAndError{weights, begin, error, momentum});
}

inline void add_entries(float* sum, const TopkEntry* received, int ranks, const TopkChunks& how, cudaStream_t stream) {
    if (how.shard == 0) return;
    Launch where = adding(received, ranks, how, stream);
    where.writes(sum, how.shard * sizeof(float));
    launch(add_entries_kernel<kTopkThreads, StoreSum>, where, StoreSum{sum}, received, ranks, how);
}

inline void add_mean_delta(float* weights, const float* begin, const TopkEntry* received, int ranks,
                           const TopkChunks& how, cudaStream_t stream) {
    if (how.shard == 0) return;
    Launch where = adding(received, ranks, how, stream);
    where.reads(begin, how.shard * sizeof(float)).writes(weights, how.shard * sizeof(float));
    launch(add_entries_kernel<kTopkThreads, StoreWeights>, where,
           StoreWeights{weights, begin, 1.0f / static_cast<float>(ranks)}, received, ranks, how);
}
