// Merges the results of several blocks of keys: outputs by their log-sum-exp, gradients by addition.
//
// The softmax over all keys is that over each block, weighted by the block's share of the sum of exponentials (Dao et
// al., "FlashAttention", 2022; Liu et al., "Ring attention with blockwise transformers", 2023). All in fp32.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "llmc/base/check.h"
#include "llmc/kernels/attention/attention_kernels.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/vec.cuh"

struct HeadSizes {
    int B, T, NH, HS;
    __host__ __device__ std::int64_t rows() const { return std::int64_t{B} * T * NH; }
};

// Merges the attention of T queries over one more block of keys into `out` and `lse`, their attention over the keys so
// far. A query that sees no key of a block has lse = -infinity there.
struct AttentionMerge {
    HeadsView<float> out;               // (B, T, NH, HS)
    float* lse;                         // (B, NH, lse_tokens); uses T numbers from this pointer on
    HeadsView<const float> block_out;   // (B, T, NH, HS)
    const float* block_lse;             // (B, NH, T)
    HeadSizes sizes;
    int lse_tokens;
};
inline void merge_attention(const AttentionMerge& args, cudaStream_t stream);

// Copies out = in, or adds out += in, rounded once. Both (B, T, NH, HS), anywhere in memory.
template <class Out, class In>
void copy_heads(const HeadsView<Out>& out, const HeadsView<In>& in, const HeadSizes& sizes, bool accumulate,
                cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

// Returns the launch with views declared, written unless they are const.
template <class... Views>
Launch with_heads(const Launch& where, const HeadSizes& s, const Views&... views) {
    return with_queries(where, AttentionShape{s.B, s.NH, s.T, s.T, s.HS, 1.0f}, views...);
}
template <class T>
HeadsView<const T> read_only(const HeadsView<T>& view) {
    return view;
}

struct HeadRow {
    std::int64_t batch, token, head;
};
// Returns the place of a row. Rows are numbered (b, t, h), the order of a tensor in memory. 32 bits are enough for them
// (`check_sizes`), and divide much faster than 64.
__device__ __forceinline__ HeadRow head_row(unsigned row, const HeadSizes& s) {
    const auto heads = static_cast<unsigned>(s.NH), tokens = static_cast<unsigned>(s.T);
    return {row / heads / tokens, row / heads % tokens, row % heads};
}
inline void check_sizes(const HeadSizes& s) {
    ENSURE(s.HS % 8 == 0, "heads of ", s.HS, " channels");
    ENSURE(s.rows() * s.HS / 8 < std::int64_t{1} << 31, s.rows(), " rows are more than one launch can cover");
}
template <class T>
__device__ __forceinline__ T* row_at(const HeadsView<T>& view, const HeadRow& at) {
    return view.data + at.batch * view.batch + at.token * view.token + at.head * view.head;
}

constexpr int kMergeThreads = 8;   // threads per row, so that a warp moves whole sectors of four rows

// Block (threads of a row, rows). A template, as is every kernel in a header.
template <class Args>
__global__ void __launch_bounds__(kElementwiseThreads) merge_attention_kernel(Args args) {
    const HeadSizes& s = args.sizes;
    const unsigned row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= s.rows()) return;
    const HeadRow at = head_row(row, s);
    float* const lse = args.lse + (at.batch * s.NH + at.head) * args.lse_tokens + at.token;
    const float before = *lse, block = args.block_lse[(at.batch * s.NH + at.head) * s.T + at.token];
    const float highest = fmaxf(before, block);
    if (block == -INFINITY) return;
    const float old_weight = expf(before - highest), block_weight = expf(block - highest);
    const float sum = old_weight + block_weight, old_share = old_weight / sum, block_share = block_weight / sum;
    float* const out = row_at(args.out, at);
    const float* const more = row_at(args.block_out, at);
    for (unsigned c = threadIdx.x * 8; c < static_cast<unsigned>(s.HS); c += blockDim.x * 8) {
        Vec8<float> x = load_packets<8>(out + c);
        const Vec8<float> y = load_packets<8>(more + c);
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = x[k] * old_share + y[k] * block_share;
        store_packets(out + c, x);
    }
    if (blockDim.x > 1) __syncwarp();   // all threads of the row have read what the first overwrites
    if (threadIdx.x == 0) *lse = highest + logf(sum);
}

inline void merge_attention(const AttentionMerge& args, cudaStream_t stream) {
    const HeadSizes& s = args.sizes;
    check_sizes(s);
    const unsigned threads = loop_threads(kMergeThreads), rows = kElementwiseThreads / threads;
    Launch where(dim3(blocks_for(s.rows(), rows)), dim3(threads, rows), 0, stream);
    const std::size_t lse_rows = static_cast<std::size_t>(s.B) * static_cast<std::size_t>(s.NH);
    const std::size_t lse_floats =
        (lse_rows - 1) * static_cast<std::size_t>(args.lse_tokens) + static_cast<std::size_t>(s.T);
    where = with_heads(where, s, args.out, read_only(args.out), args.block_out);
    const std::size_t lse_span = lse_floats * sizeof(float),
                      lse_bytes = lse_rows * static_cast<std::size_t>(s.T) * sizeof(float);
    where.reads(args.lse, lse_span, lse_bytes).writes(args.lse, lse_span, lse_bytes).reads(args.block_lse, lse_bytes);
    launch(merge_attention_kernel<AttentionMerge>, where, args);
}

// Each thread copies eight channels.
template <class Out, class In>
__global__ void __launch_bounds__(kElementwiseThreads)
    copy_heads_kernel(HeadsView<Out> out, HeadsView<In> in, HeadSizes sizes, bool accumulate) {
    const unsigned pieces = static_cast<unsigned>(sizes.HS) / 8;
    const unsigned piece = blockIdx.x * kElementwiseThreads + threadIdx.x, row = piece / pieces;
    if (row >= sizes.rows()) return;
    const HeadRow at = head_row(row, sizes);
    const int column = static_cast<int>(piece % pieces) * 8;
    Out* const to = row_at(out, at) + column;
    Vec8<float> values = to_floats(load_packets<8>(row_at(in, at) + column));
    if (accumulate) {
        const Vec8<float> before = to_floats(load_packets<8>(static_cast<const Out*>(to)));
#pragma unroll
        for (int k = 0; k < 8; k++) values[k] += before[k];
    }
    store_packets(to, round_to<Out>(values));
}

template <class Out, class In>
void copy_heads(const HeadsView<Out>& out, const HeadsView<In>& in, const HeadSizes& sizes, bool accumulate,
                cudaStream_t stream) {
    check_sizes(sizes);
    Launch where = elementwise_launch(sizes.rows() * sizes.HS, stream);
    where = with_heads(where, sizes, read_only(in), out);
    if (accumulate) where = with_heads(where, sizes, read_only(out));
    launch(copy_heads_kernel<Out, In>, where, out, in, sizes, accumulate);
}
