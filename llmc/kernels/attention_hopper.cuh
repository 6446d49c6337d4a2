// Building blocks of attention for sm_90a: the steps that order its warps, tiles in shared memory, one tile of softmax,
// and which block does which tile. The kernels are in attention_hopper_forward.cuh and attention_hopper_backward.cuh.
//
// Not yet run on a GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/kernels/attention_common.cuh"
#include "llmc/kernels/attention_mma.cuh"
#include "llmc/kernels/ptx_hopper.cuh"

// Of forward: everything that orders one warp after another, or an asynchronous instruction after others. Tests plant
// kernels that leave out one of them: each must show.
enum class HopperStep : std::uint8_t {
    barriers_fence,   // mbarriers are made before copies use them
    barriers_made,    // and before other threads do
    query_wait,       // q is here
    key_wait,         // a tile of k is here
    value_wait,       // a tile of v is here
    key_room,         // the tile of k that lay here has been read
    value_room,       // the tile of v that lay here has been read
    key_read,         // says so to the producer
    value_read,
    score_fence,   // registers are ready for q k^T
    score_commit,
    score_wait,   // q k^T is done
    sum_fence,    // registers are ready for p v
    sum_commit,
    sum_wait,        // p v is done
    turn_wait,       // it is this group's turn to multiply
    turn_pass,       // now the other group's
    staging_free,    // all warps of the group have read q
    staging_fence,   // what was staged is seen by the copy to global memory
    staging_full,    // and all of the group have staged theirs
    store_wait,      // the copy has read it
    count,
};
struct AllHopperSteps {
    __device__ static constexpr bool keeps(HopperStep) { return true; }
};

// Tensors as a kernel's copies see them: coordinates are channel, token, head, batch.
struct HopperForwardMaps {
    TensorMap q, k, v, out;   // out: where it is bf16
};

constexpr int HOPPER_PANEL = 64;   // channels of a panel: 128 bytes a row
constexpr int HOPPER_ROW_BYTES = 2 * HOPPER_PANEL;

// Which tile a block does, of queries (forward) or of keys (backward). Blocks start in the order of their numbers: the
// last tile first; and `together` heads before the next ones, as many as the second-level cache holds. In forward the
// last causal rows are the longest, so that short ones fill the end.
struct HopperPlace {
    int tile, head;   // head counts (B, NH)
};
__host__ __device__ inline HopperPlace hopper_place(int block, int tiles, int heads, int together) {
    const int first = block / (together * tiles) * together, here = min(together, heads - first);
    const int within = block - first * tiles;
    return {tiles - 1 - within / here, first + within % here};
}

// A place in the ring: tiles pass through the stages in turn.
template <int STAGES>
struct HopperRing {
    int stage = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// Sets scores of a group's 64 queries to -infinity where the query does not see the key. `row` and `pair` are the
// lane's first row of the group and first column of eight.
template <int HALF_N>
__device__ __forceinline__ void mask_scores(float (&scores)[HALF_N], int query, int first_key, int keys, int diagonal,
                                            int pair) {
#pragma unroll
    for (int i = 0; i < HALF_N; i++) {
        const int key = first_key + i / 4 * 8 + pair + i % 2;
        if (key >= keys || key > query + i / 2 % 2 * 8 + diagonal) scores[i] = -INFINITY;
    }
}

// One tile of online softmax: scores become exp(scale * score - largest of the row so far). What was summed before must
// still be multiplied by `rescale`. row_max is of unscaled scores; row_sum is of this lane's columns only.
template <int HALF_N>
__device__ __forceinline__ void online_softmax(float (&scores)[HALF_N], float (&row_max)[2], float (&row_sum)[2],
                                               float (&rescale)[2], float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float largest = row_max[half];
#pragma unroll
        for (int i = 2 * half; i < HALF_N; i += 4) largest = fmaxf(largest, fmaxf(scores[i], scores[i + 1]));
        largest = across_quad(largest, [](float a, float b) { return fmaxf(a, b); });
        const float reference = largest == -INFINITY ? 0.0f : largest * scale_log2;   // nothing seen yet: no inf - inf
        rescale[half] = exp2_approximate(row_max[half] * scale_log2 - reference);
        row_max[half] = largest;
        float sum = row_sum[half] * rescale[half];
#pragma unroll
        for (int i = 2 * half; i < HALF_N; i += 4)
#pragma unroll
            for (int e = i; e < i + 2; e++) {
                scores[e] = exp2_approximate(scores[e] * scale_log2 - reference);
                sum += scores[e];
            }
        row_sum[half] = sum;
    }
}

// Rounds scores to bf16 as left operands: weights[k] covers columns 16 k .. 16 k + 16.
template <int HALF_N>
__device__ __forceinline__ void pack_weights(std::uint32_t (&weights)[HALF_N / 8][4], const float (&scores)[HALF_N]) {
#pragma unroll
    for (int i = 0; i < HALF_N; i += 2) weights[i / 8][i / 2 % 4] = pack_bf16(scores[i], scores[i + 1]);
}

__device__ __forceinline__ void store_pair(float* target, float left, float right) {
    *reinterpret_cast<float2*>(target) = make_float2(left, right);
}
__device__ __forceinline__ void store_pair(bf16* target, float left, float right) {
    *reinterpret_cast<std::uint32_t*>(target) = pack_bf16(left, right);
}

// Each lane writes what it holds of 64 rows of sums, times `factor`. `row` and `channel` are its first ones; rows past
// the end and channels past HS are not written.
template <class O, int HALF_N>
__device__ __forceinline__ void store_fragment(HeadRows<O> rows, const float (&sums)[HALF_N], float factor, int row,
                                               int row_count, int channel, int HS) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int here = row + 8 * half;
        if (here >= row_count) continue;
        O* target = rows.data + here * rows.token + channel;
#pragma unroll
        for (int c = 0; c < HALF_N / 4; c++) {
            if (8 * c + channel >= HS) break;
            store_pair(target + 8 * c, sums[4 * c + 2 * half] * factor, sums[4 * c + 2 * half + 1] * factor);
        }
    }
}
