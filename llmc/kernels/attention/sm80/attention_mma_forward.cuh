// Forward attention on tensor cores, bf16 in, fp32 sums.
//
// A block of 4 warps keeps 128 queries, 32 a warp (above D = 128: half as many), and streams keys and values in tiles
// of 64 (from D = 128 on: 32, with documents 16) through a ring of buffers filled by asynchronous copies
// (FlashAttention-2, Dao 2023, algorithm 1). Tiles of keys that no query of the block sees are never loaded; a warp
// whose own queries see nothing of a tile skips it; only tiles of which it sees a part are masked.
#pragma once

#include "llmc/kernels/attention/sm80/attention_mma.cuh"

template <int D, bool DOCUMENTS = false>
struct MmaForwardTile {
    static constexpr int threads = 128, warps = 4;
    static constexpr int blocks = D <= 128 ? 2 : 1;       // blocks of 16 queries per warp
    static constexpr int queries = warps * blocks * 16;   // kept: 128 or 64
    // streamed; more would spill registers at D = 128
    static constexpr int keys = D <= 96 ? 64 : DOCUMENTS ? 16 : 32;
    static constexpr int stages = 2;
    static constexpr int query_bytes = SwizzledTile<D>::bytes(queries);
    static constexpr int key_bytes = SwizzledTile<D>::bytes(keys);
    static constexpr int shared_bytes = query_bytes + stages * 2 * key_bytes;   // D = 128: 64 KiB
};
static_assert(MmaForwardTile<128>::shared_bytes == 64 * 1024 && fits_twice(MmaForwardTile<128>::shared_bytes));
static_assert(MmaForwardTile<256>::shared_bytes == 96 * 1024 && fits_twice(MmaForwardTile<256>::shared_bytes));

// Does online softmax on one tile, in place: scores become exp(scale * (score - largest of the row so far)), and the
// sums so far are rescaled to it. row_max is of unscaled scores; row_sum covers this lane's columns only.
template <int D, int M, int N>
__device__ __forceinline__ void online_softmax(float (&scores)[M][N][4], float (&row_max)[M][2], float (&row_sum)[M][2],
                                               float (&sums)[M][D / 8][4], float scale_log2) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float largest = row_max[m][half];
#pragma unroll
            for (int n = 0; n < N; n++)
                largest = fmaxf(largest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
            largest = across_quad(largest, [](float a, float b) { return fmaxf(a, b); });
            float reference = largest == -INFINITY ? 0.0f : largest * scale_log2;   // nothing seen yet: no -inf - -inf
            float rescale = exp2_approximate(row_max[m][half] * scale_log2 - reference);
            row_max[m][half] = largest;
            float sum = row_sum[m][half] * rescale;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    scores[m][n][e] = exp2_approximate(scores[m][n][e] * scale_log2 - reference);
                    sum += scores[m][n][e];
                }
            row_sum[m][half] = sum;
#pragma unroll
            for (int c = 0; c < D / 8; c++) {
                sums[m][c][2 * half] *= rescale;
                sums[m][c][2 * half + 1] *= rescale;
            }
        }
}

// Grid (query tiles, NH, B). Shared: q (queries, D), then `stages` of k (keys, D), then of v (keys, D). scale > 0.
template <class O, int D, bool DOCUMENTS = false>
__global__ void __launch_bounds__(MmaForwardTile<D, DOCUMENTS>::threads, 2)
    attention_forward_mma(AttentionForward<bf16, O> a) {
    using Tile = MmaForwardTile<D, DOCUMENTS>;
    constexpr int M = Tile::blocks, N = Tile::keys / 8;
    DYNAMIC_SHARED(unsigned char, shared);
    const AttentionShape& shape = a.shape;
    int batch = blockIdx.z, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::queries;   // longest causal rows start first
    const AttentionMask mask = attention_mask<DOCUMENTS>(shape, batch);
    int keys = mask.end(min(first_query + Tile::queries, shape.Tq) - 1);
    int begin = mask.begin(first_query) / Tile::keys, end = (keys + Tile::keys - 1) / Tile::keys;   // tiles
    int warp_query = first_query + warp * 16 * M;
    float scale_log2 = shape.scale * LOG2_E;
    HeadRows<const bf16> k = key_rows(a.k, shape, batch, head), v = key_rows(a.v, shape, batch, head);
    unsigned char* warp_rows = shared + SwizzledTile<D>::bytes(warp * 16 * M);
    SharedAddress q_tile = shared_address(shared), k_tiles = q_tile + Tile::query_bytes;
    SharedAddress v_tiles = k_tiles + Tile::stages * Tile::key_bytes, q_rows = shared_address(warp_rows);

    auto load_keys = [&](int tile) {   // one copy group per tile, empty past the last, so that waits can count groups
        if (tile < end) {
            int stage = tile % Tile::stages;
            load_tile_async<Tile::keys, D, Tile::threads>(k_tiles + stage * Tile::key_bytes, k, tile * Tile::keys, keys,
                                                          shape.HS);
            load_tile_async<Tile::keys, D, Tile::threads>(v_tiles + stage * Tile::key_bytes, v, tile * Tile::keys, keys,
                                                          shape.HS);
        }
        cp_async_commit();
    };
    load_tile_async<Tile::queries, D, Tile::threads>(q_tile, head_rows(a.q, batch, head), first_query, shape.Tq,
                                                     shape.HS);
#pragma unroll
    for (int tile = 0; tile < Tile::stages - 1; tile++) load_keys(begin + tile);

    float sums[M][D / 8][4] = {}, row_max[M][2], row_sum[M][2] = {};
#pragma unroll
    for (int m = 0; m < M; m++) row_max[m][0] = row_max[m][1] = -INFINITY;
    for (int tile = begin; tile < end; tile++) {
        cp_async_wait<Tile::stages - 2>();
        __syncthreads();   // this tile is here, and the previous one has been read: its buffer may be filled
        load_keys(tile + Tile::stages - 1);
        int first_key = tile * Tile::keys, stage = tile % Tile::stages;
        const ScoreTile score_tile{warp_query, 16 * M, first_key, Tile::keys};
        if (mask.sees_none(score_tile)) continue;   // nothing here for this warp
        float scores[M][N][4];
        // with documents fewer steps at once: registers are scarce
        multiply_transposed<D, DOCUMENTS ? 2 : D / 16>(scores, q_rows, k_tiles + stage * Tile::key_bytes);
        if (!mask.sees_all(score_tile)) mask_scores<false, DOCUMENTS>(scores, mask, warp_query, first_key);
        online_softmax<D>(scores, row_max, row_sum, sums, scale_log2);
        std::uint32_t weights[M][N / 2][4];
        pack_weights(weights, scores);
        accumulate_weighted<D>(sums, weights, v_tiles + stage * Tile::key_bytes);
    }

    float factor[M][2];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = across_quad(row_sum[m][half], [](float left, float right) { return left + right; });
            factor[m][half] = total > 0.0f ? 1.0f / total : 0.0f;
            int query = warp_query + 16 * m + 8 * half + lane / 4;
            if (lane % 4 == 0 && query < shape.Tq) {
                a.lse[(std::int64_t{batch} * shape.NH + head) * shape.Tq + query] =
                    total > 0.0f ? row_max[m][half] * shape.scale + logf(total) : -INFINITY;
            }
        }
    if (begin >= end) {   // the copy of q is still under way into the rows used for staging
        cp_async_wait<0>();
        __syncthreads();
    }
    store_sums<D>(head_rows(a.out, batch, head), sums, factor, warp_query, shape.Tq, shape.HS, warp_rows);
}
