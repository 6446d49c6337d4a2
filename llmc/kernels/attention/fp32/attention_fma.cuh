// Computes attention with fp32 multiply-adds: exact, for PRECISION=fp32 and for bf16 where there are no tensor cores.
//
// Flash attention: a block keeps 64 rows (24 of large heads) of the score matrix and streams the other side past them
// in tiles, so the score matrix exists only tile by tile in registers. Forward keeps the running maximum and sum of
// each row and rescales (online softmax, Milakov and Gimelshein 2018); backward recomputes the probabilities from lse.
// Backward is two kernels, one keeping queries (dq) and one keeping keys (dk, dv), so that no gradient is shared
// between blocks: no atomics, and every sum has one fixed order. DOCUMENTS: with masks of documents; tiles that no
// query sees are skipped.
//
// The work of a block of 128 threads, all tiles in fp32 whatever T is:
//     thread (y, x) = (threadIdx.x / 16, threadIdx.x % 16) owns rows y + 8 i (i < rows / 8) and columns x + 16 j of
//     every product; the 16 threads of a row are half a warp, so row sums are 4 shuffles and a tile of probabilities
//     written for the next product needs no barrier beyond its warp.
// Rows of tiles in shared memory are padded by 4 floats: the pitch is then an odd multiple of 4, and eight threads that
// read 16 bytes of eight adjacent rows touch every bank once.
#pragma once

#include <cuda_runtime.h>

#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/attention/attention_common.cuh"
#include "llmc/kernels/launch.cuh"

// Tile sizes for a head size padded to D channels (channels from HS to D are zero).
template <int D>
struct FmaTile {
    static_assert(D % 16 == 0 && D <= kLargestHead, "each thread owns D / 16 channels of a row");
    static constexpr int threads = 128;
    static constexpr int rows = D <= 128 ? 64 : 24;                    // kept
    static constexpr int columns = D <= 64 ? 64 : D <= 96 ? 32 : 16;   // streamed
    static constexpr int row_slots = rows / 8;                         // owned by one thread
    static constexpr int column_slots = columns / 16;
    static constexpr int channel_slots = D / 16;
    static constexpr int pitch = D + 4;               // elements between rows of D channels
    static constexpr int score_pitch = columns + 4;   // elements between rows of scores

    static constexpr int forward_bytes = 4 * ((rows + columns) * pitch + rows * score_pitch);
    static constexpr int backward_bytes = 4 * (2 * (rows + columns) * pitch + rows * score_pitch);
    static_assert(backward_bytes <= 99 * 1024, "what sm_86, sm_89 and sm_120 give a block, the least since sm_80");
};

// Fills a (COUNT, D) tile with rows first .. first + COUNT; rows from `end` on and channels from HS on become zero.
template <int COUNT, int D, class T>
__device__ void load_tile(float* tile, HeadRows<const T> source, int first, int end, int HS) {
    for (int index = threadIdx.x; index < COUNT * (D / 4); index += FmaTile<D>::threads) {
        int row = index / (D / 4), channel = index % (D / 4) * 4;
        float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (first + row < end && channel < HS) value = load_four(source.data + (first + row) * source.token + channel);
        *reinterpret_cast<float4*>(tile + row * FmaTile<D>::pitch + channel) = value;
    }
}

// Computes scores[i][j] = <row y + 8 i of kept (rows, D), row x + 16 j of streamed (columns, D)>
template <int D, int UNROLL = D == 32 ? 1 : 2>
__device__ void dot_products(float (&scores)[FmaTile<D>::row_slots][FmaTile<D>::column_slots], const float* kept,
                             const float* streamed) {
    using Tile = FmaTile<D>;
    const float* kept_row = kept + threadIdx.x / 16 * Tile::pitch;
    const float* streamed_row = streamed + threadIdx.x % 16 * Tile::pitch;
#pragma unroll
    for (int i = 0; i < Tile::row_slots; i++)
#pragma unroll
        for (int j = 0; j < Tile::column_slots; j++) scores[i][j] = 0.0f;
#pragma unroll UNROLL
    for (int channel = 0; channel < D; channel += 4) {
        float4 b[Tile::column_slots];
#pragma unroll
        for (int j = 0; j < Tile::column_slots; j++) b[j] = load_four(streamed_row + 16 * j * Tile::pitch + channel);
#pragma unroll
        for (int i = 0; i < Tile::row_slots; i++) {
            float4 a = load_four(kept_row + 8 * i * Tile::pitch + channel);
#pragma unroll
            for (int j = 0; j < Tile::column_slots; j++) {
                scores[i][j] += a.x * b[j].x;
                scores[i][j] += a.y * b[j].y;
                scores[i][j] += a.z * b[j].z;
                scores[i][j] += a.w * b[j].w;
            }
        }
    }
}

// Writes this thread's part of a (rows, columns) tile of scores to shared memory, for its own warp to read.
template <int D>
__device__ void store_scores(float* tile, const float (&scores)[FmaTile<D>::row_slots][FmaTile<D>::column_slots]) {
    using Tile = FmaTile<D>;
    int y = threadIdx.x / 16, x = threadIdx.x % 16;
    __syncwarp();   // the tile's old scores have been read
#pragma unroll
    for (int i = 0; i < Tile::row_slots; i++)
#pragma unroll
        for (int j = 0; j < Tile::column_slots; j++) tile[(y + 8 * i) * Tile::score_pitch + x + 16 * j] = scores[i][j];
    __syncwarp();
}

// Adds sums[i][c] += sum over columns j of tile[y + 8 i][j] * streamed[j][x + 16 c]: (rows, columns) x (columns, D)
template <int D>
__device__ void accumulate(float (&sums)[FmaTile<D>::row_slots][FmaTile<D>::channel_slots], const float* tile,
                           const float* streamed) {
    using Tile = FmaTile<D>;
    const float* tile_row = tile + threadIdx.x / 16 * Tile::score_pitch;
    const float* channels = streamed + threadIdx.x % 16;
#pragma unroll 1
    for (int column = 0; column < Tile::columns; column += 4) {
        float4 weights[Tile::row_slots];
#pragma unroll
        for (int i = 0; i < Tile::row_slots; i++) weights[i] = load_four(tile_row + 8 * i * Tile::score_pitch + column);
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int c = 0; c < Tile::channel_slots; c++) {
                float value = channels[(column + k) * Tile::pitch + 16 * c];
#pragma unroll
                for (int i = 0; i < Tile::row_slots; i++) {
                    const float4& w = weights[i];
                    sums[i][c] += (k == 0 ? w.x : k == 1 ? w.y : k == 2 ? w.z : w.w) * value;
                }
            }
        }
    }
}

// Writes sums[i][c] * factor[i] as rows first + y + 8 i (below `end`) and channels x + 16 c (below HS).
template <int D, class O>
__device__ void store_rows(HeadRows<O> target, const float (&sums)[FmaTile<D>::row_slots][FmaTile<D>::channel_slots],
                           const float (&factor)[FmaTile<D>::row_slots], int first, int end, int HS) {
    using Tile = FmaTile<D>;
    int y = threadIdx.x / 16, x = threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < Tile::row_slots; i++) {
        int row = first + y + 8 * i;
        if (row >= end) continue;
#pragma unroll
        for (int c = 0; c < Tile::channel_slots; c++) {
            int channel = x + 16 * c;
            if (channel < HS) target.data[row * target.token + channel] = static_cast<O>(sums[i][c] * factor[i]);
        }
    }
}

// Combines the values of the 16 threads that share a row.
template <class Combine>
__device__ float across_row(float value, Combine combine) {
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

// Does online softmax on one tile: turns scores (in units of log 2, -infinity where masked) into probabilities relative
// to the row's new maximum, and rescales the sums made with the old maximum. `row_sum` covers this thread's columns
// only.
template <int D>
__device__ void softmax_tile(float (&scores)[FmaTile<D>::row_slots][FmaTile<D>::column_slots],
                             float (&row_max)[FmaTile<D>::row_slots], float (&row_sum)[FmaTile<D>::row_slots],
                             float (&sums)[FmaTile<D>::row_slots][FmaTile<D>::channel_slots]) {
    using Tile = FmaTile<D>;
#pragma unroll
    for (int i = 0; i < Tile::row_slots; i++) {
        float largest = row_max[i];
#pragma unroll
        for (int j = 0; j < Tile::column_slots; j++) largest = fmaxf(largest, scores[i][j]);
        largest = across_row(largest, [](float a, float b) { return fmaxf(a, b); });
        float reference = largest == -INFINITY ? 0.0f : largest;   // nothing seen yet: avoid -inf - -inf
        float rescale = exp2f(row_max[i] - reference);
        row_max[i] = largest;
        row_sum[i] *= rescale;
#pragma unroll
        for (int j = 0; j < Tile::column_slots; j++) {
            scores[i][j] = exp2f(scores[i][j] - reference);
            row_sum[i] += scores[i][j];
        }
#pragma unroll
        for (int c = 0; c < Tile::channel_slots; c++) sums[i][c] *= rescale;
    }
}

// Grid (query tiles, NH, B). Shared: q (rows, D), then k or v (columns, D), then probabilities (rows, columns).
template <class T, class O, int D, bool DOCUMENTS = false>
__global__ void __launch_bounds__(FmaTile<D>::threads) attention_forward_fma(AttentionForward<T, O> a) {
    using Tile = FmaTile<D>;
    DYNAMIC_SHARED(float, q_tile);
    float* kv_tile = q_tile + Tile::rows * Tile::pitch;
    float* probabilities = kv_tile + Tile::columns * Tile::pitch;
    const AttentionShape& shape = a.shape;
    int batch = blockIdx.z, head = blockIdx.y, y = threadIdx.x / 16, x = threadIdx.x % 16;
    int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::rows;   // longest causal rows start first
    int last_query = min(first_query + Tile::rows, shape.Tq) - 1;
    const AttentionMask mask = attention_mask<DOCUMENTS>(shape, batch);
    const int keys = mask.end(last_query);
    float scale_log2 = shape.scale * LOG2_E;
    HeadRows<const T> k = key_rows(a.k, shape, batch, head), v = key_rows(a.v, shape, batch, head);

    float sums[Tile::row_slots][Tile::channel_slots] = {}, row_max[Tile::row_slots], row_sum[Tile::row_slots] = {};
#pragma unroll
    for (int i = 0; i < Tile::row_slots; i++) row_max[i] = -INFINITY;
    load_tile<Tile::rows, D>(q_tile, head_rows(a.q, batch, head), first_query, shape.Tq, shape.HS);
    const int begin = mask.begin(first_query) / Tile::columns * Tile::columns;
    for (int first_key = begin; first_key < keys; first_key += Tile::columns) {
        __syncthreads();   // the previous tile of v has been read
        load_tile<Tile::columns, D>(kv_tile, k, first_key, keys, shape.HS);
        __syncthreads();
        float scores[Tile::row_slots][Tile::column_slots];
        // For 128 channels one step at a time: registers are scarce there.
        dot_products<D, D == 128 || D == 32 ? 1 : 2>(scores, q_tile, kv_tile);
        __syncthreads();
        load_tile<Tile::columns, D>(kv_tile, v, first_key, keys, shape.HS);
#pragma unroll
        for (int i = 0; i < Tile::row_slots; i++) {
            const KeyRange seen = mask.seen_by(first_query + y + 8 * i);
#pragma unroll
            for (int j = 0; j < Tile::column_slots; j++) {
                scores[i][j] = seen.has(first_key + x + 16 * j) ? scores[i][j] * scale_log2 : -INFINITY;
            }
        }
        softmax_tile<D>(scores, row_max, row_sum, sums);
        store_scores<D>(probabilities, scores);
        __syncthreads();
        accumulate<D>(sums, probabilities, kv_tile);
    }

    float factor[Tile::row_slots];
#pragma unroll
    for (int i = 0; i < Tile::row_slots; i++) {
        float total = across_row(row_sum[i], [](float left, float right) { return left + right; });
        factor[i] = total > 0.0f ? 1.0f / total : 0.0f;
        int query = first_query + y + 8 * i;
        if (x == 0 && query < shape.Tq) {
            a.lse[(std::int64_t{batch} * shape.NH + head) * shape.Tq + query] =
                total > 0.0f ? (row_max[i] + log2f(total)) * LN_2 : -INFINITY;
        }
    }
    store_rows<D>(head_rows(a.out, batch, head), sums, factor, first_query, shape.Tq, shape.HS);
}

// Computes dq of a tile of queries. Grid (query tiles, NH, B). Shared: q, dout (rows, D), k, v (columns, D), dscores
// (rows, columns).
template <class T, class G, int D, bool GROUPED = false, bool DOCUMENTS = false>
__global__ void __launch_bounds__(FmaTile<D>::threads) attention_backward_queries_fma(AttentionBackward<T, G> a) {
    using Tile = FmaTile<D>;
    DYNAMIC_SHARED(float, q_tile);
    float* dout_tile = q_tile + Tile::rows * Tile::pitch;
    float* k_tile = dout_tile + Tile::rows * Tile::pitch;
    float* v_tile = k_tile + Tile::columns * Tile::pitch;
    float* dscores_tile = v_tile + Tile::columns * Tile::pitch;
    const AttentionShape& shape = a.shape;
    int batch = blockIdx.z, head = blockIdx.y, y = threadIdx.x / 16, x = threadIdx.x % 16;
    int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::rows;
    int last_query = min(first_query + Tile::rows, shape.Tq) - 1;
    const AttentionMask mask = attention_mask<DOCUMENTS>(shape, batch);
    const int keys = mask.end(last_query);
    float scale_log2 = shape.scale * LOG2_E;
    const int kv_head = GROUPED ? key_head(shape, head) : head;   // D = 128 has no registers for a division
    HeadRows<const T> k = head_rows(a.k, batch, kv_head), v = head_rows(a.v, batch, kv_head);

    float sums[Tile::row_slots][Tile::channel_slots] = {};
    float lse_log2[Tile::row_slots], delta[Tile::row_slots];
#pragma unroll
    for (int i = 0; i < Tile::row_slots; i++) {
        int query = min(first_query + y + 8 * i, last_query);   // rows past the end repeat the last, never stored
        std::int64_t row = (std::int64_t{batch} * shape.NH + head) * shape.Tq + query;
        lse_log2[i] = a.lse[row] * LOG2_E;
        delta[i] = a.delta[row];
    }
    load_tile<Tile::rows, D>(q_tile, head_rows(a.q, batch, head), first_query, shape.Tq, shape.HS);
    load_tile<Tile::rows, D>(dout_tile, head_rows(a.dout, batch, head), first_query, shape.Tq, shape.HS);
    const int begin = mask.begin(first_query) / Tile::columns * Tile::columns;
    for (int first_key = begin; first_key < keys; first_key += Tile::columns) {
        __syncthreads();   // the previous tiles have been read
        load_tile<Tile::columns, D>(k_tile, k, first_key, keys, shape.HS);
        load_tile<Tile::columns, D>(v_tile, v, first_key, keys, shape.HS);
        __syncthreads();
        float scores[Tile::row_slots][Tile::column_slots], dprobabilities[Tile::row_slots][Tile::column_slots];
        // registers are scarce; masks of documents change no bit, so as many without them
        constexpr int channels_at_once = GROUPED || D > 64 ? 1 : 2;
        dot_products<D, channels_at_once>(scores, q_tile, k_tile);
        dot_products<D, channels_at_once>(dprobabilities, dout_tile, v_tile);
#pragma unroll
        for (int i = 0; i < Tile::row_slots; i++) {
            const KeyRange seen = mask.seen_by(first_query + y + 8 * i);
#pragma unroll
            for (int j = 0; j < Tile::column_slots; j++) {
                float probability =
                    seen.has(first_key + x + 16 * j) ? exp2f(scores[i][j] * scale_log2 - lse_log2[i]) : 0.0f;
                scores[i][j] = probability * (dprobabilities[i][j] - delta[i]);
            }
        }
        store_scores<D>(dscores_tile, scores);
        accumulate<D>(sums, dscores_tile, k_tile);
    }
    float factor[Tile::row_slots];
#pragma unroll
    for (int i = 0; i < Tile::row_slots; i++) factor[i] = shape.scale;
    store_rows<D>(head_rows(a.dq, batch, head), sums, factor, first_query, shape.Tq, shape.HS);
}

// Computes dk and dv of a tile of keys, over the heads of queries that share them. Grid (key tiles, kv heads, B).
// Shared: k, v (rows, D), q, dout (columns, D), one tile (rows, columns) for the transposed probabilities, then the
// transposed dscores.
template <class T, class G, int D, bool DOCUMENTS = false>
__global__ void __launch_bounds__(FmaTile<D>::threads) attention_backward_keys_fma(AttentionBackward<T, G> a) {
    using Tile = FmaTile<D>;
    DYNAMIC_SHARED(float, k_tile);
    float* v_tile = k_tile + Tile::rows * Tile::pitch;
    float* q_tile = v_tile + Tile::rows * Tile::pitch;
    float* dout_tile = q_tile + Tile::columns * Tile::pitch;
    float* scores_tile = dout_tile + Tile::columns * Tile::pitch;
    const AttentionShape& shape = a.shape;
    int batch = blockIdx.z, kv_head = blockIdx.y, y = threadIdx.x / 16, x = threadIdx.x % 16;
    int first_key =
        static_cast<int>(blockIdx.x) * Tile::rows;   // the first keys are seen by most queries: they start first
    const AttentionMask mask = attention_mask<DOCUMENTS>(shape, batch);
    const int begin = mask.first_query(first_key), end = mask.query_end(first_key + Tile::rows);
    float scale_log2 = shape.scale * LOG2_E;
    float dk[Tile::row_slots][Tile::channel_slots] = {}, dv[Tile::row_slots][Tile::channel_slots] = {};
    load_tile<Tile::rows, D>(k_tile, head_rows(a.k, batch, kv_head), first_key, shape.Tk, shape.HS);
    load_tile<Tile::rows, D>(v_tile, head_rows(a.v, batch, kv_head), first_key, shape.Tk, shape.HS);
    for (int head = kv_head * shape.group; head < (kv_head + 1) * shape.group; head++) {
        HeadRows<const T> q = head_rows(a.q, batch, head), dout = head_rows(a.dout, batch, head);
        std::int64_t statistics = (std::int64_t{batch} * shape.NH + head) * shape.Tq;
        for (int first_query = begin; first_query < end; first_query += Tile::columns) {
            __syncthreads();   // the previous tiles have been read
            load_tile<Tile::columns, D>(q_tile, q, first_query, shape.Tq, shape.HS);
            load_tile<Tile::columns, D>(dout_tile, dout, first_query, shape.Tq, shape.HS);
            __syncthreads();
            float scores[Tile::row_slots][Tile::column_slots], dscores[Tile::row_slots][Tile::column_slots];
            dot_products<D>(scores, k_tile, q_tile);
            dot_products<D>(dscores, v_tile, dout_tile);
#pragma unroll
            for (int j = 0; j < Tile::column_slots; j++) {
                int query = first_query + x + 16 * j;
                std::int64_t row = statistics + min(query, shape.Tq - 1);
                float lse_log2 = a.lse[row] * LOG2_E, delta = a.delta[row];
                const KeyRange seen = query < shape.Tq ? mask.seen_by(query) : KeyRange{};
#pragma unroll
                for (int i = 0; i < Tile::row_slots; i++) {
                    scores[i][j] = seen.has(first_key + y + 8 * i) ? exp2f(scores[i][j] * scale_log2 - lse_log2) : 0.0f;
                    dscores[i][j] = scores[i][j] * (dscores[i][j] - delta);
                }
            }
            store_scores<D>(scores_tile, scores);
            accumulate<D>(dv, scores_tile, dout_tile);
            store_scores<D>(scores_tile, dscores);
            accumulate<D>(dk, scores_tile, q_tile);
        }
    }
    float dk_factor[Tile::row_slots], dv_factor[Tile::row_slots];
#pragma unroll
    for (int i = 0; i < Tile::row_slots; i++) {
        dk_factor[i] = shape.scale;
        dv_factor[i] = 1.0f;
    }
    store_rows<D>(head_rows(a.dk, batch, kv_head), dk, dk_factor, first_key, shape.Tk, shape.HS);
    store_rows<D>(head_rows(a.dv, batch, kv_head), dv, dv_factor, first_key, shape.Tk, shape.HS);
}
