// Drops the assignments of tokens to experts that are over an expert's capacity, the later tokens' first, as in
// Lepikhin et al., "GShard", 2020, and Fedus et al., "Switch transformers", 2021. Assignments, offsets, `source` and
// `row_of` are those of router.cuh.
//
// Dropped assignments get the rows after all others, in the order of (expert, token): offsets[E] rows are kept. Who
// reads rows by offsets, as the grouped matmuls do, never sees a dropped one. Its weight counts as 0, and the weights
// of a token's other experts stay as they are.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "llmc/kernels/experts/router.cuh"

// Returns how many rows an expert takes: `factor` times its even share of tokens x K assignments, rounded up, but no
// more than there are tokens.
inline int expert_capacity(float factor, int tokens, int E, int K) {
    const double share = static_cast<double>(factor) * tokens * K / E;
    const double rows = std::ceil(share * (1 - 1e-7));   // in fp32, 1.1 x 100 is a little more than 110
    return static_cast<int>(std::min<double>(rows, tokens));
}

// Reorders what order_by_expert() wrote, with `all` (E + 1) as its offsets: writes offsets (E + 1) of the kept rows,
// source (rows K) and row_of (rows K).
inline void drop_over_capacity(std::int32_t* offsets, std::int32_t* source, std::int32_t* row_of,
                               const std::int32_t* all, const std::int32_t* index, int capacity, int rows, int E, int K,
                               cudaStream_t stream);

// Sets dweight (rows K) of dropped assignments to zero, and adds their number to *dropped unless that is null.
inline void forget_dropped(float* dweight, std::int32_t* dropped, const std::int32_t* offsets,
                           const std::int32_t* source, int rows, int E, int K, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

// Each thread moves one assignment; the first E + 1 threads write an offset too.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    drop_over_capacity_kernel(std::int32_t* offsets, std::int32_t* source, std::int32_t* row_of,
                              const std::int32_t* all, const std::int32_t* index, int capacity, int assignments,
                              int E) {
    const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
    const int expert = i < assignments ? index[i] : E;
    int kept = 0, kept_before = 0, kept_before_i = 0;   // sums over all experts, those below its own, those below i
    for (int e = 0; e < E; e++) {
        if (e == expert) kept_before = kept;
        if (e == i) kept_before_i = kept;
        kept += min(all[e + 1] - all[e], capacity);
    }
    if (i <= E) offsets[i] = i == E ? kept : kept_before_i;
    if (i >= assignments) return;
    const int place = row_of[i] - all[expert], dropped_before = all[expert] - kept_before;
    const int row = place < capacity ? kept_before + place : kept + dropped_before + place - capacity;
    row_of[i] = row;
    source[row] = i;
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    forget_dropped_kernel(float* dweight, std::int32_t* dropped, const std::int32_t* kept, const std::int32_t* source,
                          int assignments) {
    const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
    if (row == 0 && dropped != nullptr) *dropped += assignments - *kept;
    if (row >= *kept && row < assignments) dweight[source[row]] = 0;
}

inline void drop_over_capacity(std::int32_t* offsets, std::int32_t* source, std::int32_t* row_of,
                               const std::int32_t* all, const std::int32_t* index, int capacity, int rows, int E, int K,
                               cudaStream_t stream) {
    Launch where = router_launch(std::max(rows * K, E + 1), stream);
    where.reads(all, bytes_of(E + 1, 1)).reads(index, bytes_of(rows, K)).reads(row_of, bytes_of(rows, K));
    where.writes(offsets, bytes_of(E + 1, 1)).writes(source, bytes_of(rows, K)).writes(row_of, bytes_of(rows, K));
    launch(drop_over_capacity_kernel<kRouterThreads>, where, offsets, source, row_of, all, index, capacity, rows * K,
           E);
}

inline void forget_dropped(float* dweight, std::int32_t* dropped, const std::int32_t* offsets,
                           const std::int32_t* source, int rows, int E, int K, cudaStream_t stream) {
    if (rows == 0) return;
    Launch where = router_launch(std::int64_t{rows} * K, stream);
    where.reads(offsets + E, bytes_of(1, 1)).reads(source, bytes_of(rows, K));
    where.writes(dweight, bytes_of(rows, K));
    if (dropped != nullptr) where.reads(dropped, bytes_of(1, 1)).writes(dropped, bytes_of(1, 1));
    launch(forget_dropped_kernel<kRouterThreads>, where, dweight, dropped, offsets + E, source, rows * K);
}
