// Computes attention of new tokens over all tokens before them, for text generation.
//
// The cache has a row for each token so far, of the heads of k and then of v (grouped queries: attention.h). The row of
// token p sees the keys of tokens 0 .. p:
//     out_p = sum_j softmax_j(<q_p, k_j> / sqrt(HS)) v_j
// Keys are taken kCachedKeys at a time, and the sums so far are rescaled when a larger score comes (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018): no row of scores is stored. The sums of a row do not
// depend on how many rows are computed at once.
//
// Meant for one sequence and few rows. A whole prompt works too, but slower than attention.h.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <limits>

#include "llmc/base/dtype.h"
#include "llmc/base/error.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/attention/attention_mask.h"
#include "llmc/kernels/exp.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/reduce.cuh"
#include "llmc/kernels/vec.cuh"

template <class Real>
struct CachedAttention {
    Real* out;               // (rows, NH, HS)
    const Real* q;           // (rows, NH, HS), of the new rows
    std::int64_t q_stride;   // elements from one row of q to the next
    const Real* kv;          // (first + rows, 2, NH / group, HS): all tokens that are kept
    int first, rows;         // the new rows are tokens first .. first + rows - 1 of them
    int NH, HS;              // HS a multiple of 8, at most kLargestHead
    int group = 1;           // heads of q that share one of k and v
    // (rows): the first key that each new row sees, for a sliding window; null: all of them from the first on.
    const int* first_keys = nullptr;

    // Returns the mask of the new rows over all tokens so far.
    __host__ __device__ AttentionMask mask() const { return {rows, first + rows, first, first_keys}; }
};

// Runs asynchronously on `stream`. Throws Error(usage) for an HS that does not fit.
template <class Real>
void cached_attention(const CachedAttention<Real>& args, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

constexpr int kCachedThreads = 128;
constexpr int kCachedKeys = 256;   // scores that exist at once

// Grid (NH, rows): a block computes one head of one row. Each thread sums eight channels of the output over some of the
// keys; the partial sums of the threads are then added in a fixed order.
template <class Real>
__global__ void __launch_bounds__(kCachedThreads) cached_attention_kernel(CachedAttention<Real> a, float scale) {
    __shared__ float scaled_query[kLargestHead], scores[kCachedKeys];
    alignas(16) __shared__ float sums[kCachedThreads * 8];
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    const int eights = a.HS / 8, groups = max(1, threads / eights);
    const std::int64_t row = std::int64_t{a.NH} * a.HS, kv_row = row / a.group, token = 2 * kv_row;
    const int query = static_cast<int>(blockIdx.y);
    const AttentionMask mask = a.mask();
    const int end = mask.end(query);
    const Real* const head = a.q + query * a.q_stride + static_cast<std::int64_t>(blockIdx.x) * a.HS;
    const Real* const kv_head = a.kv + static_cast<std::int64_t>(blockIdx.x) / a.group * a.HS;
    const PacketExtent extent{a.HS};

    for (int eight = thread; eight < eights; eight += threads) {
        const Vec8<float> q = to_floats(load8(head, eight * 8, extent));
#pragma unroll
        for (int c = 0; c < 8; c++) scaled_query[eight * 8 + c] = q[c] * scale;
    }
    for (int unit = thread; unit < groups * eights; unit += threads) store_packets(&sums[unit * 8], Vec8<float>{});

    float largest = -std::numeric_limits<float>::infinity(), total = 0.0f;
    for (int begin = mask.begin(query); begin < end; begin += kCachedKeys) {
        const int count = min(kCachedKeys, end - begin);
        const Real* const keys = kv_head + begin * token;
        const Real* const values = keys + kv_row;
        __syncthreads();   // the query is loaded, and the scores of the previous keys have been read
        float own_largest = largest;
        for (int j = thread; j < count; j += threads) {
            Vec8<float> dot = {};
            for (int eight = 0; eight < eights; eight++) {
                const Vec8<float> k = to_floats(load8(keys + j * token, eight * 8, extent));
#pragma unroll
                for (int c = 0; c < 8; c++) dot[c] = fmaf(scaled_query[eight * 8 + c], k[c], dot[c]);
            }
            scores[j] = sum8(dot);
            own_largest = fmaxf(own_largest, scores[j]);
        }
        const float now_largest = block_max(own_largest);
        const float kept = exp_for<Real>(largest - now_largest);   // rescales the sums so far
        float own_total = 0.0f;
        for (int j = thread; j < count; j += threads) own_total += scores[j] = exp_for<Real>(scores[j] - now_largest);
        total = total * kept + block_sum(own_total);
        largest = now_largest;

        for (int unit = thread; unit < groups * eights; unit += threads) {
            const int eight = unit % eights;
            Vec8<float> sum = load_packets<8>(&sums[unit * 8]);
#pragma unroll
            for (int c = 0; c < 8; c++) sum[c] *= kept;
            for (int j = unit / eights; j < count; j += groups) {
                const Vec8<float> v = to_floats(load8(values + j * token, eight * 8, extent));
                const float weight = scores[j];
#pragma unroll
                for (int c = 0; c < 8; c++) sum[c] = fmaf(weight, v[c], sum[c]);
            }
            store_packets(&sums[unit * 8], sum);
        }
    }
    __syncthreads();
    Real* const out = a.out + query * row + static_cast<std::int64_t>(blockIdx.x) * a.HS;
    for (int eight = thread; eight < eights; eight += threads) {
        Vec8<float> sum = {};
        for (int group = 0; group < groups; group++) {
            const Vec8<float> part = load_packets<8>(&sums[(group * eights + eight) * 8]);
#pragma unroll
            for (int c = 0; c < 8; c++) sum[c] += part[c];
        }
#pragma unroll
        for (int c = 0; c < 8; c++) sum[c] /= total;
        store8(out, eight * 8, extent, round_to<Real>(sum));
    }
}

template <class Real>
void cached_attention(const CachedAttention<Real>& args, cudaStream_t stream) {
    if (args.rows == 0) return;
    if (args.HS % 8 != 0 || args.HS < 8 || args.HS > kLargestHead) {
        throw Error(ErrorKind::usage,
                    text("heads of ", args.HS, " channels: writing handles multiples of 8 up to ", kLargestHead),
                    "Use a model with other --channels / --heads.");
    }
    const std::size_t row_bytes = sizeof(Real) * args.NH * args.HS;
    Launch where(dim3(static_cast<unsigned>(args.NH), static_cast<unsigned>(args.rows)),
                 dim3(loop_threads(kCachedThreads)), 0, stream);
    const std::size_t rows = static_cast<std::size_t>(args.rows),
                      token_bytes = 2 * row_bytes / static_cast<std::size_t>(args.group);
    where.reads(args.q, sizeof(Real) * static_cast<std::size_t>(args.q_stride) * (rows - 1) + row_bytes,
                row_bytes * rows);
    where.reads(args.kv, token_bytes * static_cast<std::size_t>(args.first + args.rows));
    where.reads(args.first_keys, sizeof(int) * rows);
    where.writes(args.out, row_bytes * rows);
    launch(cached_attention_kernel<Real>, where, args, 1.0f / std::sqrt(static_cast<float>(args.HS)));
}
