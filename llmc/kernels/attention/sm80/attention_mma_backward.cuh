// Backward attention on tensor cores, bf16 in, fp32 sums, without atomics: one kernel keeps queries and sums dq over
// the keys, the other keeps keys and sums dk and dv over the queries. Both recompute the probabilities p from lse:
//     p = exp(scale q k - lse)      dp = dout v      ds = p (dp - delta)      dq = scale ds k
//                                                    dv = p^T dout            dk = scale ds^T q
// Seven products where atomics would need five; in exchange every sum has one fixed order. Kernels for grouped queries,
// and for masks of documents, are instances of their own (SCARCE): the others have no register to spare.
#pragma once

#include "llmc/kernels/attention/sm80/attention_mma.cuh"

// Keeps q and dout of 128 queries, 32 a warp (above D = 128: half as many); streams k and v. The tile of keys shrinks
// with D so that the sums of dq (32 x D a warp: D registers a thread) and the two score tiles (twice `keys` registers)
// fit.
template <int D, bool SCARCE = false>
struct MmaQueriesTile {
    static constexpr int threads = 128, warps = 4;
    static constexpr int blocks = D <= 128 ? 2 : 1;                                       // 16-query blocks per warp
    static constexpr int queries = warps * blocks * 16;                                   // kept: 128 or 64
    static constexpr int keys = D <= 64 ? 64 : D > 128 || (SCARCE && D > 96) ? 16 : 32;   // streamed
    static constexpr int stages = 2;
    static constexpr int query_bytes = SwizzledTile<D>::bytes(queries);
    static constexpr int key_bytes = SwizzledTile<D>::bytes(keys);
    static constexpr int statistic_bytes = queries * 4;   // lse or delta
    static constexpr int shared_bytes =
        2 * query_bytes + 2 * statistic_bytes + stages * 2 * key_bytes;   // D = 128: 97 KiB
};
static_assert(MmaQueriesTile<128>::shared_bytes == 97 * 1024 && fits_twice(MmaQueriesTile<128>::shared_bytes));
static_assert(MmaQueriesTile<256>::shared_bytes <= 99 * 1024);   // the limit per block on sm_86, sm_89 and sm_120

// Keeps k and v; streams q and dout with their lse and delta. Two sums of D channels: two blocks of 16 keys a warp fit
// the registers up to D = 64, one up to 128. Above, two warps share a block of 16 keys: both make its scores, and each
// sums half the channels.
template <int D, bool SCARCE = false>
struct MmaKeysTile {
    static constexpr int threads = 128, warps = 4;
    static constexpr int sharing = D <= 128 ? 1 : 2;             // warps that share keys
    static constexpr int channels = D / sharing;                 // channels that a warp sums
    static constexpr int blocks = D <= 64 ? 2 : 1;               // blocks of 16 keys per warp
    static constexpr int keys = warps / sharing * blocks * 16;   // kept: 128, 64 or 32
    static constexpr int queries = D <= 64 ? SCARCE ? 16 : 32 : D <= 96 ? 64 : D <= 128 ? 48 : 16;   // streamed
    static constexpr int stages = 2;
    static constexpr int key_bytes = SwizzledTile<D>::bytes(keys);
    static constexpr int query_bytes = SwizzledTile<D>::bytes(queries);
    static constexpr int statistic_bytes = queries * 4;                         // lse or delta
    static constexpr int stage_bytes = 2 * query_bytes + 2 * statistic_bytes;   // q, dout, lse, delta
    static constexpr int shared_bytes = 2 * key_bytes + stages * stage_bytes;   // D = 128: 80.75 KiB
};
static_assert(MmaKeysTile<128>::shared_bytes == 323 * 256 && fits_twice(MmaKeysTile<128>::shared_bytes));
static_assert(fits_twice(MmaKeysTile<256>::shared_bytes));

// Computes dq of a tile of queries. Grid (query tiles, NH, B). Shared: q, dout (queries, D), lse, delta (queries), then
// `stages` of k and v (keys, D). scale > 0.
template <class G, int D, bool GROUPED = false, bool DOCUMENTS = false>
__global__ void __launch_bounds__(MmaQueriesTile<D, GROUPED || DOCUMENTS>::threads, 2)
    attention_backward_queries_mma(AttentionBackward<bf16, G> a) {
    using Tile = MmaQueriesTile<D, GROUPED || DOCUMENTS>;
    constexpr int M = Tile::blocks, N = Tile::keys / 8;
    DYNAMIC_SHARED(unsigned char, shared);
    const AttentionShape& shape = a.shape;
    int batch = blockIdx.z, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::queries;   // longest causal rows start first
    int last_query = min(first_query + Tile::queries, shape.Tq) - 1;
    const AttentionMask mask = attention_mask<DOCUMENTS>(shape, batch);
    int keys = mask.end(last_query);
    int begin = mask.begin(first_query) / Tile::keys, end = (keys + Tile::keys - 1) / Tile::keys;   // tiles
    int warp_query = first_query + warp * 16 * M;
    float scale_log2 = shape.scale * LOG2_E;
    const int kv_head = GROUPED ? key_head(shape, head) : head;
    HeadRows<const bf16> k = head_rows(a.k, batch, kv_head), v = head_rows(a.v, batch, kv_head);
    unsigned char* warp_rows = shared + SwizzledTile<D>::bytes(warp * 16 * M);
    SharedAddress q_tile = shared_address(shared), dout_tile = q_tile + Tile::query_bytes;
    SharedAddress statistics = dout_tile + Tile::query_bytes, q_rows = shared_address(warp_rows);
    SharedAddress stages = statistics + 2 * Tile::statistic_bytes;
    const float* lse =
        reinterpret_cast<const float*>(shared + 2 * Tile::query_bytes) + warp * 16 * M;   // for the warp's rows
    const float* delta = lse + Tile::queries;

    auto load_keys = [&](int tile) {   // one copy group per tile, empty past the last, so that waits can count groups
        if (tile < end) {
            SharedAddress stage = stages + tile % Tile::stages * 2 * Tile::key_bytes;
            load_tile_async<Tile::keys, D, Tile::threads>(stage, k, tile * Tile::keys, keys, shape.HS);
            load_tile_async<Tile::keys, D, Tile::threads>(stage + Tile::key_bytes, v, tile * Tile::keys, keys,
                                                          shape.HS);
        }
        cp_async_commit();
    };
    load_tile_async<Tile::queries, D, Tile::threads>(q_tile, head_rows(a.q, batch, head), first_query, shape.Tq,
                                                     shape.HS);
    load_tile_async<Tile::queries, D, Tile::threads>(dout_tile, head_rows(a.dout, batch, head), first_query, shape.Tq,
                                                     shape.HS);
    load_statistics_async<Tile::queries, Tile::threads>(statistics, a.lse, a.delta,
                                                        std::int64_t{batch} * shape.NH + head, first_query, shape.Tq);
#pragma unroll
    for (int tile = 0; tile < Tile::stages - 1; tile++) load_keys(begin + tile);

    float sums[M][D / 8][4] = {};
    for (int tile = begin; tile < end; tile++) {
        cp_async_wait<Tile::stages - 2>();
        __syncthreads();   // this tile is here, and the previous one has been read: its buffer may be filled
        load_keys(tile + Tile::stages - 1);
        int first_key = tile * Tile::keys;
        const ScoreTile score_tile{warp_query, 16 * M, first_key, Tile::keys};
        if (mask.sees_none(score_tile)) continue;   // nothing here for this warp
        SharedAddress k_tile = stages + tile % Tile::stages * 2 * Tile::key_bytes, v_tile = k_tile + Tile::key_bytes;
        float scores[M][N][4], dscores[M][N][4];
        multiply_transposed<D, GROUPED || DOCUMENTS ? 1 : 2>(scores, q_rows, k_tile);   // more spills on sm_100
        multiply_transposed<D, GROUPED || DOCUMENTS ? 1 : 2>(dscores, q_rows + Tile::query_bytes, v_tile);
        if (!mask.sees_all(score_tile)) mask_scores<false, DOCUMENTS>(scores, mask, warp_query, first_key);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = 16 * m + 8 * half + lane / 4;
                float lse_log2 = finite_lse_log2(lse[row]), delta_of_row = delta[row];
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++) {
                        float p = exp2_approximate(scores[m][n][e] * scale_log2 - lse_log2);
                        dscores[m][n][e] = p * (dscores[m][n][e] - delta_of_row);
                    }
            }
        std::uint32_t weights[M][N / 2][4];
        pack_weights(weights, dscores);
        accumulate_weighted<D>(sums, weights, k_tile);
    }
    if (begin >= end) {   // the copy of q is still under way into the rows used for staging
        cp_async_wait<0>();
        __syncthreads();
    }
    float factor[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) factor[m][0] = factor[m][1] = shape.scale;
    store_sums<D>(head_rows(a.dq, batch, head), sums, factor, warp_query, shape.Tq, shape.HS, warp_rows);
}

// Computes dk and dv of a tile of keys, over the heads of q that share them. Grid (key tiles, kv heads, B). Shared: k,
// v (keys, D), then `stages` of q, dout (queries, D), lse, delta (queries). Scores are transposed: rows are keys,
// columns queries. scale > 0.
template <class G, int D, bool GROUPED = false, bool DOCUMENTS = false>
__global__ void __launch_bounds__(MmaKeysTile<D, GROUPED || DOCUMENTS>::threads, 2)
    attention_backward_keys_mma(AttentionBackward<bf16, G> a) {
    using Tile = MmaKeysTile<D, GROUPED || DOCUMENTS>;
    constexpr int M = Tile::blocks, N = Tile::queries / 8;
    DYNAMIC_SHARED(unsigned char, shared);
    const AttentionShape& shape = a.shape;
    int batch = blockIdx.z, kv_head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first_key =
        static_cast<int>(blockIdx.x) * Tile::keys;   // the first keys are seen by most queries: they start first
    const AttentionMask mask = attention_mask<DOCUMENTS>(shape, batch);
    int begin = mask.first_query(first_key), end = mask.query_end(first_key + Tile::keys);
    int tiles = max(0, end - begin + Tile::queries - 1) / Tile::queries;
    int warp_key = first_key + warp / Tile::sharing * 16 * M;
    const int first_channel = warp % Tile::sharing * Tile::channels;   // first channel that the warp sums
    float scale_log2 = shape.scale * LOG2_E;
    const int group = GROUPED ? shape.group : 1;
    int head = kv_head * group;
    unsigned char* warp_rows = shared + SwizzledTile<D>::bytes(warp / Tile::sharing * 16 * M);
    SharedAddress k_tile = shared_address(shared), v_tile = k_tile + Tile::key_bytes,
                  k_rows = shared_address(warp_rows);
    unsigned char* stages = shared + 2 * Tile::key_bytes;

    auto load_queries =
        [&](int tile) {   // one copy group per tile, empty past the last, so that waits can count groups
            if (tile < tiles) {
                SharedAddress stage = shared_address(stages) + tile % Tile::stages * Tile::stage_bytes;
                int first_query = begin + tile * Tile::queries;
                load_tile_async<Tile::queries, D, Tile::threads>(stage, head_rows(a.q, batch, head), first_query,
                                                                 shape.Tq, shape.HS);
                load_tile_async<Tile::queries, D, Tile::threads>(
                    stage + Tile::query_bytes, head_rows(a.dout, batch, head), first_query, shape.Tq, shape.HS);
                load_statistics_async<Tile::queries, Tile::threads>(stage + 2 * Tile::query_bytes, a.lse, a.delta,
                                                                    std::int64_t{batch} * shape.NH + head, first_query,
                                                                    shape.Tq);
            }
            cp_async_commit();
        };
    load_tile_async<Tile::keys, D, Tile::threads>(k_tile, head_rows(a.k, batch, kv_head), first_key, shape.Tk,
                                                  shape.HS);
    load_tile_async<Tile::keys, D, Tile::threads>(v_tile, head_rows(a.v, batch, kv_head), first_key, shape.Tk,
                                                  shape.HS);
    float dk[M][Tile::channels / 8][4] = {}, dv[M][Tile::channels / 8][4] = {};
    for (; head < (kv_head + 1) * group; head++) {
        if (head > kv_head * group) __syncthreads();   // the last tiles of the head before have been read
#pragma unroll
        for (int tile = 0; tile < Tile::stages - 1; tile++) load_queries(tile);
        for (int tile = 0; tile < tiles; tile++) {
            cp_async_wait<Tile::stages - 2>();
            __syncthreads();   // this tile is here, and the previous one has been read: its buffer may be filled
            load_queries(tile + Tile::stages - 1);
            int first_query = begin + tile * Tile::queries;
            const ScoreTile score_tile{first_query, Tile::queries, warp_key, 16 * M};
            if (mask.sees_none(score_tile)) continue;   // nothing here for this warp
            unsigned char* stage = stages + tile % Tile::stages * Tile::stage_bytes;
            SharedAddress q_tile = shared_address(stage), dout_tile = q_tile + Tile::query_bytes;
            const float* lse = reinterpret_cast<const float*>(stage + 2 * Tile::query_bytes);
            const float* delta = lse + Tile::queries;
            float scores[M][N][4], dscores[M][N][4];
            multiply_transposed<D, GROUPED || DOCUMENTS ? 1 : 2>(scores, k_rows, q_tile);   // more spills on sm_100
            multiply_transposed<D, GROUPED || DOCUMENTS ? 1 : 2>(dscores, k_rows + Tile::key_bytes, dout_tile);
            // columns past the end have q = dout = lse = delta = 0: they add nothing and need no mask
            if (!mask.sees_all(score_tile)) mask_scores<true, DOCUMENTS>(scores, mask, first_query, warp_key);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int column = 8 * n + lane % 4 * 2 + e % 2;
                    float lse_log2 = finite_lse_log2(lse[column]), delta_of_column = delta[column];
#pragma unroll
                    for (int m = 0; m < M; m++) {
                        scores[m][n][e] = exp2_approximate(scores[m][n][e] * scale_log2 - lse_log2);
                        dscores[m][n][e] = scores[m][n][e] * (dscores[m][n][e] - delta_of_column);
                    }
                }
            std::uint32_t weights[M][N / 2][4];
            pack_weights(weights, scores);
            accumulate_weighted<D>(dv, weights, dout_tile + 2 * first_channel);
            pack_weights(weights, dscores);
            accumulate_weighted<D>(dk, weights, q_tile + 2 * first_channel);
        }
    }
    // the copy of k is still under way into the rows used for staging, or another warp reads them
    if (tiles == 0) cp_async_wait<0>();
    if (tiles == 0 || Tile::sharing > 1) __syncthreads();
    float dk_factor[M][2], dv_factor[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
        dk_factor[m][0] = dk_factor[m][1] = shape.scale;
        dv_factor[m][0] = dv_factor[m][1] = 1.0f;
    }
    HeadRows<G> dk_rows = head_rows(a.dk, batch, kv_head), dv_rows = head_rows(a.dv, batch, kv_head);
    dk_rows.data += first_channel, dv_rows.data += first_channel;
    unsigned char* staging = warp_rows + SwizzledTile<Tile::channels>::bytes(warp % Tile::sharing * 16 * M);
    const int channels = shape.HS - first_channel;
    store_sums<Tile::channels>(dk_rows, dk, dk_factor, warp_key, shape.Tk, channels, staging);
    store_sums<Tile::channels>(dv_rows, dv, dv_factor, warp_key, shape.Tk, channels, staging);
}
