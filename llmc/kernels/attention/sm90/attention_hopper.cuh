// Building blocks of attention for sm_90a: tiles in shared memory, one tile of softmax, and the assignment of tiles to
// blocks. The kernels are in attention_hopper_forward.cuh and attention_hopper_backward.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/kernels/attention/attention_common.cuh"
#include "llmc/kernels/attention/sm80/attention_mma.cuh"
#include "llmc/kernels/ptx/hopper_ring.cuh"
#include "llmc/kernels/ptx/ptx_hopper.cuh"
#include "llmc/kernels/ptx/transpose_in_quad.cuh"

// Tensor maps for a kernel's TMA copies: coordinates are channel, token, head, batch.
struct HopperForwardMaps {
    TensorMap q, k, v, out;   // out: only where it is bf16
};

constexpr int HOPPER_PANEL = 64;   // channels of a panel: 128 bytes a row
constexpr int HOPPER_ROW_BYTES = 2 * HOPPER_PANEL;

// Tile that a block computes: of queries (forward) or of keys (backward). Blocks start in the order of their numbers:
// the last tile first, and `together` heads, as many as the L2 cache holds, before the next ones. In forward the last
// tiles of a causal mask take longest, so they start first and short ones fill the end.
struct HopperTile {
    int tile, head;   // head counts (B, NH)
};
__host__ __device__ inline HopperTile hopper_tile(int block, int tiles, int heads, int together) {
    const int first = block / (together * tiles) * together, here = min(together, heads - first);
    const int within = block - first * tiles;
    return {tiles - 1 - within / here, first + within % here};
}

// Sets scores of a group's 64 queries to -infinity where the query does not see the key. `query` is the lane's first
// query and `pair` its first column of eight.
template <int HALF_N>
__device__ __forceinline__ void mask_scores(float (&scores)[HALF_N], const AttentionMask& mask, int query,
                                            int first_key, int pair) {
#pragma unroll
    for (int i = 0; i < HALF_N; i++) {
        if (!mask.sees(query + i / 2 % 2 * 8, first_key + i / 4 * 8 + pair + i % 2)) scores[i] = -INFINITY;
    }
}

// Does online softmax on one tile: scores become exp(scale * (score - largest of the row so far)). The caller must
// still multiply the sums so far by `rescale`. row_max is of unscaled scores; row_sum covers this lane's columns only.
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

// Writes a warp's part of sums, times `factor`. `row` is the lane's first row, `channel` the warp's first channel; rows
// past the end and channels past HS are not written. fp32: each lane writes its pairs, so four lanes write a sector of
// 32 bytes.
template <int HALF_N>
__device__ __forceinline__ void store_fragment(HeadRows<float> rows, const float (&sums)[HALF_N], float factor, int row,
                                               int row_count, int channel, int HS) {
    const int first = channel + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int here = row + 8 * half;
        if (here >= row_count) continue;
        float* target = rows.data + here * rows.token + first;
#pragma unroll
        for (int c = 0; c < HALF_N / 4; c++) {
            if (8 * c + first >= HS) break;
            *reinterpret_cast<float2*>(target + 8 * c) =
                make_float2(sums[4 * c + 2 * half] * factor, sums[4 * c + 2 * half + 1] * factor);
        }
    }
}
// bf16: four lanes exchange values, so that each writes 16 bytes and the four write 64 adjacent bytes.
template <int HALF_N>
__device__ __forceinline__ void store_fragment(HeadRows<bf16> rows, const float (&sums)[HALF_N], float factor, int row,
                                               int row_count, int channel, int HS) {
    static_assert(HALF_N % 16 == 0);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int here = row + 8 * half;
#pragma unroll
        for (int i = 0; i < HALF_N; i += 16) {   // 32 channels
            std::uint32_t pieces[4];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int pair = i + 4 * c + 2 * half;
                pieces[c] = pack_bf16(sums[pair] * factor, sums[pair + 1] * factor);
            }
            transpose_in_quad(pieces);
            const int first = channel + 2 * i + static_cast<int>(threadIdx.x) % 4 * 8;
            if (here < row_count && first < HS)
                *reinterpret_cast<uint4*>(rows.data + here * rows.token + first) =
                    make_uint4(pieces[0], pieces[1], pieces[2], pieces[3]);
        }
    }
}
