// Building blocks of attention on tensor cores (sm_80 and later): tiles of bf16 in shared memory, products of tiles,
// and results back to global memory. The kernels are in attention_mma_forward.cuh and attention_mma_backward.cuh.
//
// Every product is done by warps of m16n8k16 instructions. A warp keeps M blocks of 16 rows of one operand ("kept") and
// meets tiles of the other ("streamed"):
//     scores (16 M, N 8) = kept (16 M, D) x streamed (N 8, D)^T              both read from shared memory
//     sums   (16 M, D)  += weights (16 M, N 8) x streamed (N 8, D)           weights stay in registers
// The accumulators of the first product have the layout that the second one wants of its left operand, so scores become
// weights without leaving the registers: only exp, masking and rounding to bf16 lie between.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "llmc/kernels/attention/attention_common.cuh"
#include "llmc/kernels/ptx/ptx.cuh"
#include "llmc/kernels/ptx/shared_tile.cuh"

// Starts the copy of rows first .. first + ROWS of a head into a tile. Rows from `end` on and channels from HS on are
// zeros. The caller commits.
template <int ROWS, int D, int THREADS>
__device__ __forceinline__ void load_tile_async(SharedAddress tile, HeadRows<const bf16> source, int first, int end,
                                                int HS) {
    constexpr int chunks = SwizzledTile<D>::chunks;
    const bf16* first_row = source.data + first * source.token;
    int stride = static_cast<int>(source.token);   // within a tile 32 bits are enough and half the registers
#pragma unroll 2                                   // more would keep the addresses of all copies in registers at once
    for (int i = 0; i < ceil_div(ROWS * chunks, THREADS); i++) {
        int index = static_cast<int>(threadIdx.x) + i * THREADS;
        if (index >= ROWS * chunks) continue;
        int row = index / chunks, chunk = index % chunks;
        bool valid = first + row < end && chunk * 8 < HS;
        cp_async_16(tile + SwizzledTile<D>::offset(row, chunk), first_row + (valid ? row * stride + chunk * 8 : 0),
                    valid);
    }
}

// Starts the copies of `ROWS` lse, then as many delta, of queries first .. of a head (`head` counts them in (B, NH)),
// zeros from query Tq on. One thread copies one number: they need no alignment. The caller commits.
template <int ROWS, int THREADS>
__device__ __forceinline__ void load_statistics_async(SharedAddress target, const float* lse, const float* delta,
                                                      std::int64_t head, int first, int Tq) {
#pragma unroll
    for (int i = 0; i < ceil_div(2 * ROWS, THREADS); i++) {
        int index = static_cast<int>(threadIdx.x) + i * THREADS, query = first + index % ROWS;
        if (index >= 2 * ROWS) continue;
        const float* source = (index < ROWS ? lse : delta) + head * Tq + min(query, Tq - 1);
        cp_async_4(target + 4 * index, source, query < Tq);
    }
}

// Computes scores[m][n] = kept rows 16 m .. x streamed rows 8 n .., over D channels. `kept` is the warp's first row, a
// multiple of 16 rows into its tile. Per 16 channels: M + N / 2 loads for M N instructions. UNROLL bounds how many such
// steps the compiler interleaves: fewer where registers are short.
template <int D, int UNROLL = D / 16, int M, int N>
__device__ __forceinline__ void multiply_transposed(float (&scores)[M][N][4], SharedAddress kept,
                                                    SharedAddress streamed) {
    using Tile = SwizzledTile<D>;
    int lane = threadIdx.x % 32;
    SharedAddress kept_lane = kept + Tile::offset(lane % 16, lane / 16);
    SharedAddress streamed_lane = streamed + Tile::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) scores[m][n][e] = 0.0f;
#pragma unroll UNROLL
    for (int step = 0; step < D / 16; step++) {
        std::uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) ldmatrix_x4(a[m], Tile::at_pair(kept_lane, step) + Tile::bytes(16 * m));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            std::uint32_t b[4];   // channels 0-7 and 8-15 of rows 8 n .., then of rows 8 (n + 1) ..
            ldmatrix_x4(b, Tile::at_pair(streamed_lane, step) + Tile::bytes(8 * n));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_m16n8k16(scores[m][n], a[m], b[0], b[1]);
                mma_m16n8k16(scores[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Sets scores to -infinity where the query does not see the key. Rows are the warp's queries from first_query, columns
// keys from first_key; with TRANSPOSED rows are keys and columns queries. DOCUMENTS: the mask reads memory, once a
// query.
template <bool TRANSPOSED, bool DOCUMENTS, int M, int N>
__device__ __forceinline__ void mask_scores(float (&scores)[M][N][4], const AttentionMask& mask, int first_query,
                                            int first_key) {
    int lane = threadIdx.x % 32;
    constexpr int query_blocks = TRANSPOSED ? N : M, key_blocks = TRANSPOSED ? M : N;
#pragma unroll
    for (int block = 0; block < query_blocks; block++)
#pragma unroll
        for (int i = 0; i < 2; i++) {   // the two queries of a block that this lane has
            int query = first_query + (TRANSPOSED ? 8 * block + lane % 4 * 2 + i : 16 * block + lane / 4 + 8 * i);
            const KeyRange seen = DOCUMENTS ? mask.seen_by(query) : KeyRange{};
#pragma unroll
            for (int keys = 0; keys < key_blocks; keys++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    int key = first_key + (TRANSPOSED ? 16 * keys + lane / 4 + 8 * j : 8 * keys + lane % 4 * 2 + j);
                    float& score = TRANSPOSED ? scores[keys][block][2 * j + i] : scores[block][keys][2 * i + j];
                    if (DOCUMENTS ? !seen.has(key) : !mask.sees(query, key)) score = -INFINITY;
                }
        }
}

// Returns lse in units of log 2, for p = 2^(score - lse). A query that sees nothing has only scores of -infinity: with
// 0 instead of its lse all of its p are 0, not NaN.
__device__ __forceinline__ float finite_lse_log2(float lse) { return lse == -INFINITY ? 0.0f : lse * LOG2_E; }

// Rounds scores to bf16 as left operands: weights[m][k] covers columns 16 k .. 16 k + 16 of block m.
template <int M, int N>
__device__ __forceinline__ void pack_weights(std::uint32_t (&weights)[M][N / 2][4], const float (&scores)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int k = 0; k < N / 2; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float(&from)[4] = scores[m][2 * k + e / 2];
                weights[m][k][e] = pack_bf16(from[e % 2 * 2], from[e % 2 * 2 + 1]);
            }
}

// Adds weights[m] x streamed to sums[m][c] for channels 8 c .. 8 c + 8, of the D that a row of `streamed` has. Per 16
// rows: C / 2 loads for M C instructions.
template <int D, int M, int K, int C>
__device__ __forceinline__ void accumulate_weighted(float (&sums)[M][C][4], const std::uint32_t (&weights)[M][K][4],
                                                    SharedAddress streamed) {
    static_assert(C <= D / 8);
    using Tile = SwizzledTile<D>;
    int lane = threadIdx.x % 32;
    SharedAddress streamed_lane = streamed + Tile::offset(lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int c = 0; c < C; c += 2) {
            std::uint32_t b[4];   // rows 0-7 and 8-15 of channels 8 c .., then of channels 8 (c + 1) ..
            ldmatrix_x4_transposed(b, Tile::at_pair(streamed_lane, c / 2) + Tile::bytes(16 * k));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_m16n8k16(sums[m][c], weights[m][k], b[0], b[1]);
                mma_m16n8k16(sums[m][c + 1], weights[m][k], b[2], b[3]);
            }
        }
    }
}

// Writes a warp's rows first .. first + 16 M (below `end`) of sums * factor. bf16 goes through `staging` (16 M rows of
// shared memory that only this warp uses), so that memory is written in 16-byte pieces of whole rows.
template <int D, int M, class G>
__device__ __forceinline__ void store_sums(HeadRows<G> target, const float (&sums)[M][D / 8][4],
                                           const float (&factor)[M][2], int first, int end, int HS,
                                           unsigned char* staging) {
    int lane = threadIdx.x % 32, row_in_block = lane / 4, pair = lane % 4 * 2;
    G* first_row = target.data + first * target.token;
    int stride = static_cast<int>(target.token);
    if constexpr (std::is_same_v<G, float>) {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = 16 * m + 8 * half + row_in_block;
                if (first + row >= end) continue;
#pragma unroll
                for (int c = 0; c < D / 8; c++) {
                    if (8 * c >= HS) break;
                    float2 value =
                        make_float2(sums[m][c][2 * half] * factor[m][half], sums[m][c][2 * half + 1] * factor[m][half]);
                    *reinterpret_cast<float2*>(first_row + row * stride + 8 * c + pair) = value;
                }
            }
    } else {
        using Tile = SwizzledTile<D>;
        __syncwarp();   // the rows staged before have been read
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = 16 * m + 8 * half + row_in_block;
#pragma unroll
                for (int c = 0; c < D / 8; c++) {
                    std::uint32_t packed =
                        pack_bf16(sums[m][c][2 * half] * factor[m][half], sums[m][c][2 * half + 1] * factor[m][half]);
                    *reinterpret_cast<std::uint32_t*>(staging + Tile::offset(row, c) + 2 * pair) = packed;
                }
            }
        __syncwarp();
        for (int index = lane; index < 16 * M * Tile::chunks; index += 32) {
            int row = index / Tile::chunks, chunk = index % Tile::chunks;
            if (first + row >= end || 8 * chunk >= HS) continue;
            *reinterpret_cast<uint4*>(first_row + row * stride + 8 * chunk) =
                *reinterpret_cast<const uint4*>(staging + Tile::offset(row, chunk));
        }
    }
}

// Combines the values of the 4 lanes that share a row of an accumulator.
template <class Combine>
__device__ __forceinline__ float across_quad(float value, Combine combine) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return combine(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
