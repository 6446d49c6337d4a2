// Norms each head of queries and of keys by itself (Qwen3), and turns it by its rotary positions, in place in the
// packed rows of queries, keys and values: one pass over memory forward and one backward. RMSNorm over the HS channels
// of a head:
//
//   forward    y = turned(x r w),  r = 1 / sqrt(mean(x^2) + epsilon)
//   backward   d = turned_back(dy),  dx = r (w d - x r mean(w d x r)),  dw = sum over rows and heads of d x r
// Forward keeps x and r for backward.
//
// A few neighbouring threads share the heads of a row, because their angles are the same, and keep a head in registers.
// All arithmetic is fp32; forward rounds before the rotation, and x r if asked to, as transformers does. Backward sums
// dw per block in registers while it passes over the rows, then layernorm.cuh's small kernel adds the blocks' sums;
// both in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "llmc/base/check.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/layernorm.cuh"
#include "llmc/kernels/rows/rotary.cuh"
#include "llmc/kernels/vec.cuh"

// Queries, or keys.
template <class Real>
struct NormedHeads {
    int count;            // heads in a row
    const Real* weight;   // (HS)
    Real* raw;            // (rows, count, HS) x, which forward writes and backward reads
    float* rstd;          // (rows, count) r, likewise
};

template <class Real>
struct HeadNorms {
    Real* heads;        // (rows, row): in each row the queries, then the keys; in place
    std::int64_t row;   // elements from one row to the next, a multiple of 8
    int rows, HS;       // HS a multiple of 8, of 16 if heads are turned; at most 256
    NormedHeads<Real> queries, keys;
    bool turns;            // false: without rotary positions
    RotaryAngles angles;   // `backward` is set by the call
};

template <class Real>
void head_norms_forward(HeadNorms<Real> args, float epsilon, bool rounds_before_weight, cudaStream_t stream);

// Writes, or adds to, the gradients (HS) of both weights. scratch: head_norms_scratch(rows, HS) floats.
template <class Real, class Grad>
void head_norms_backward(HeadNorms<Real> args, Grad* dqueries, Grad* dkeys, float* scratch, bool accumulate,
                         cudaStream_t stream);

inline std::size_t head_norms_scratch(int rows, int HS);

// ---------------------------------------------------------------------------------------------------------------------

constexpr int kHeadNormsThreads = 128, kHeadNormsLargestHead = 256;
static_assert(kHeadNormsLargestHead >= kLargestHead);

// Returns the threads that share a row: a power of two, of which each has sixteen channels of a head or none.
inline unsigned head_norms_sharers(int HS) { return std::bit_ceil(static_cast<unsigned>(ceil_div(HS, 16))); }
// Returns the blocks of the backward kernel: a function of the shape alone (layernorm_backward_blocks), at most three
// for each of an H200's 132 multiprocessors.
inline int head_norms_blocks(int rows, int HS) {
    return std::min(ceil_div(rows, kHeadNormsThreads / static_cast<int>(head_norms_sharers(HS))), 396);
}
inline std::size_t head_norms_scratch(int rows, int HS) {
    return static_cast<std::size_t>(head_norms_blocks(rows, HS)) * 2 * static_cast<std::size_t>(HS);
}

// Pairs of eight channels that a thread has at most: a CPU's single thread has all of a head.
constexpr int kHeadPairs = loop_threads_may_be_one ? kHeadNormsLargestHead / 16 : 1;

// Eight channels of the left half of a head and the eight that turn with them; zeros beyond the head.
template <class T>
struct HeadPair {
    Vec8<T> left, right;
};

// A thread's channels of heads.
struct HeadShare {
    int HS, half;   // half: channels of the left half, in whole eights

    __device__ __forceinline__ explicit HeadShare(int size) : HS(size), half((size + 8) / 16 * 8) {}

    // Returns the number of pairs that the thread has; on a GPU a constant, for loops over registers.
    __device__ __forceinline__ int pairs() const {
        return loop_threads_may_be_one ? ceil_div(half, static_cast<int>(blockDim.x * 8)) : kHeadPairs;
    }
    __device__ __forceinline__ int first(int j) const { return static_cast<int>((j * blockDim.x + threadIdx.x) * 8); }
    __device__ __forceinline__ bool has_left(int j) const { return first(j) < half; }
    __device__ __forceinline__ bool has_right(int j) const { return first(j) + half < HS; }
    template <class T>
    __device__ __forceinline__ HeadPair<T> load(const T* head, int j) const {
        HeadPair<T> pair{};
        if (has_left(j)) pair.left = load_packets<8>(head + first(j));
        if (has_right(j)) pair.right = load_packets<8>(head + first(j) + half);
        return pair;
    }
    template <class T>
    __device__ __forceinline__ void store(T* head, int j, const HeadPair<T>& pair) const {
        if (has_left(j)) store_packets(head + first(j), pair.left);
        if (has_right(j)) store_packets(head + first(j) + half, pair.right);
    }
    // Returns the sum over the threads of a row to each of them.
    __device__ __forceinline__ float sum(float value) const {
        for (int distance = static_cast<int>(blockDim.x / 2); distance > 0; distance /= 2) {
            value += __shfl_xor_sync(0xffffffffu, value, distance);
        }
        return value;
    }
};

// A thread's share of the heads of one row.
struct RowOfHeads : HeadShare {
    std::int64_t row;
    bool inside, turned;   // inside: there is such a row
    RotaryTurn turns[kHeadPairs];

    template <class Real>
    __device__ __forceinline__ RowOfHeads(const HeadNorms<Real>& a, int index, float log2_theta)
        : HeadShare(a.HS), row(index), inside(index < a.rows), turned(a.turns) {
        if (!inside || !turned) return;
#pragma unroll
        for (int j = 0; j < pairs(); j++) {
            if (has_left(j)) turns[j] = rotary_turn(a.angles, row, first(j), HS, log2_theta);
        }
    }
    __device__ __forceinline__ void turn(HeadPair<float>& pair, int j) const {
        if (turned && has_left(j)) turns[j].turn(pair.left, pair.right);
    }
};

template <class Real>
__device__ __forceinline__ HeadPair<float> to_floats(const HeadPair<Real>& pair) {
    return {to_floats(pair.left), to_floats(pair.right)};
}
template <class Real>
__device__ __forceinline__ HeadPair<Real> round_to(const HeadPair<float>& pair) {
    return {round_to<Real>(pair.left), round_to<Real>(pair.right)};
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

__device__ __forceinline__ void add_squares(Vec8<float>& sums, const Vec8<float>& x) {
#pragma unroll
    for (int k = 0; k < 8; k++) sums[k] = fmaf(x[k], x[k], sums[k]);
}

// Returns x r w.
template <class Real>
__device__ __forceinline__ Vec8<float> normed(Vec8<float> x, float r, const Vec8<Real>& weight, bool rounds) {
    const Vec8<float> w = to_floats(weight);
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] *= r;
    if (rounds) x = to_floats(round_to<Real>(x));
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] *= w[k];
    return x;
}

// Norms and turns the queries, or the keys, of a row. All threads of a warp call it together.
template <class Real>
__device__ __forceinline__ void norm_heads(Real* heads, const NormedHeads<Real>& of, const RowOfHeads& row,
                                           float epsilon, bool rounds_before_weight) {
    constexpr int n = kHeadsAtOnce<Real>;
    const std::int64_t kept = row.row * of.count;   // first of the row's heads in raw and rstd
    HeadPair<Real> weight[kHeadPairs], x[n][kHeadPairs];
#pragma unroll
    for (int j = 0; j < row.pairs(); j++) weight[j] = row.load(of.weight, j);
    for (int head = 0; head < of.count; head += n) {
        auto exists = [&](int i) { return row.inside && head + i < of.count; };
        float squares[n];
#pragma unroll
        for (int i = 0; i < n; i++) {
#pragma unroll
            for (int j = 0; j < row.pairs(); j++) {
                x[i][j] = exists(i) ? row.load<Real>(heads + std::int64_t{head + i} * row.HS, j) : HeadPair<Real>{};
            }
        }
#pragma unroll
        for (int i = 0; i < n; i++) {
            Vec8<float> sums{};
#pragma unroll
            for (int j = 0; j < row.pairs(); j++) {
                const HeadPair<float> values = to_floats(x[i][j]);
                add_squares(sums, values.left);
                add_squares(sums, values.right);
            }
            squares[i] = row.sum(sum8(sums));
        }
#pragma unroll
        for (int i = 0; i < n; i++) {
            if (!exists(i)) continue;
            const float r = 1.0f / sqrtf(squares[i] / static_cast<float>(row.HS) + epsilon);
            if (threadIdx.x == 0) of.rstd[kept + head + i] = r;
#pragma unroll
            for (int j = 0; j < row.pairs(); j++) {
                row.store(of.raw + (kept + head + i) * row.HS, j, x[i][j]);
                const HeadPair<float> values = to_floats(x[i][j]);
                HeadPair<float> y{normed(values.left, r, weight[j].left, rounds_before_weight),
                                  normed(values.right, r, weight[j].right, rounds_before_weight)};
                if (row.turned) y = to_floats(round_to<Real>(y));
                row.turn(y, j);
                row.store(heads + std::int64_t{head + i} * row.HS, j, round_to<Real>(y));
            }
        }
    }
}

template <class Real>
__global__ void __launch_bounds__(kHeadNormsThreads, 3)
    head_norms_forward_kernel(HeadNorms<Real> a, float log2_theta, float epsilon, bool rounds_before_weight) {
    const RowOfHeads row(a, static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y), log2_theta);
    Real* const heads = a.heads + row.row * a.row;
    norm_heads(heads, a.queries, row, epsilon, rounds_before_weight);
    norm_heads(heads + std::int64_t{a.queries.count} * a.HS, a.keys, row, epsilon, rounds_before_weight);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

// Adds d x r to `sums` and w d x r to `products`.
__device__ __forceinline__ void add_products(Vec8<float>& sums, Vec8<float>& products, const Vec8<float>& d,
                                             const Vec8<float>& x, float r, const Vec8<float>& w) {
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float normal = x[k] * r;
        sums[k] = fmaf(d[k], normal, sums[k]);
        products[k] = fmaf(d[k] * w[k], normal, products[k]);
    }
}

// Returns dx.
__device__ __forceinline__ Vec8<float> input_gradient(const Vec8<float>& d, const Vec8<float>& x, float r,
                                                      const Vec8<float>& w, float mean) {
    Vec8<float> dx;
#pragma unroll
    for (int k = 0; k < 8; k++) dx[k] = (d[k] * w[k] - x[k] * r * mean) * r;
    return dx;
}

// Replaces the gradients of a row's queries, or of its keys, by those of the norms' inputs, and adds dw to `sums`. All
// threads of a warp call it together.
template <class Real>
__device__ __forceinline__ void norm_heads_backward(Real* heads, const NormedHeads<Real>& of, const RowOfHeads& row,
                                                    HeadPair<float> (&sums)[kHeadPairs]) {
    constexpr int n = kHeadsAtOnce<Real> / 2;   // two tensors are read
    const std::int64_t kept = row.row * of.count;
    HeadPair<Real> weight[kHeadPairs], dy[n][kHeadPairs], x[n][kHeadPairs];
#pragma unroll
    for (int j = 0; j < row.pairs(); j++) weight[j] = row.load(of.weight, j);
    auto turned_back = [&](const HeadPair<Real>& gradient, int j) {
        HeadPair<float> d = to_floats(gradient);
        row.turn(d, j);
        return d;
    };
    for (int head = 0; head < of.count; head += n) {
        auto exists = [&](int i) { return row.inside && head + i < of.count; };
        float r[n], products[n];
#pragma unroll
        for (int i = 0; i < n; i++) {
            r[i] = exists(i) ? of.rstd[kept + head + i] : 0.0f;
#pragma unroll
            for (int j = 0; j < row.pairs(); j++) {
                const Real* const gradient = heads + std::int64_t{head + i} * row.HS;
                dy[i][j] = exists(i) ? row.load(gradient, j) : HeadPair<Real>{};
                x[i][j] = exists(i) ? row.load<Real>(of.raw + (kept + head + i) * row.HS, j) : HeadPair<Real>{};
            }
        }
#pragma unroll
        for (int i = 0; i < n; i++) {
            Vec8<float> terms{};
            if (exists(i)) {
#pragma unroll
                for (int j = 0; j < row.pairs(); j++) {
                    const HeadPair<float> d = turned_back(dy[i][j], j), in = to_floats(x[i][j]),
                                          w = to_floats(weight[j]);
                    add_products(sums[j].left, terms, d.left, in.left, r[i], w.left);
                    add_products(sums[j].right, terms, d.right, in.right, r[i], w.right);
                }
            }
            products[i] = row.sum(sum8(terms));
        }
#pragma unroll
        for (int i = 0; i < n; i++) {
            if (!exists(i)) continue;
            const float mean = products[i] / static_cast<float>(row.HS);
#pragma unroll
            for (int j = 0; j < row.pairs(); j++) {
                const HeadPair<float> d = turned_back(dy[i][j], j), in = to_floats(x[i][j]), w = to_floats(weight[j]);
                const HeadPair<float> dx{input_gradient(d.left, in.left, r[i], w.left, mean),
                                         input_gradient(d.right, in.right, r[i], w.right, mean)};
                row.store(heads + std::int64_t{head + i} * row.HS, j, round_to<Real>(dx));
            }
        }
    }
}

// Sums eight values over the rows of a warp, to each of their threads.
__device__ __forceinline__ void sum_over_rows(Vec8<float>& values) {
    for (int distance = static_cast<int>(blockDim.x); distance < 32; distance *= 2) {
#pragma unroll
        for (int k = 0; k < 8; k++) values[k] += __shfl_xor_sync(0xffffffffu, values[k], distance);
    }
}

// Writes partials (blocks, 2, HS): dw of queries and of keys over the block's rows.
template <class Real>
__global__ void __launch_bounds__(kHeadNormsThreads, 3)
    head_norms_backward_kernel(HeadNorms<Real> a, float log2_theta, float* partials) {
    HeadPair<float> sums[2][kHeadPairs] = {};
    const int step = static_cast<int>(gridDim.x * blockDim.y);
    // Every thread of a block goes round the loop equally often, inside the rows or not.
    for (int base = static_cast<int>(blockIdx.x * blockDim.y); base < a.rows; base += step) {
        const RowOfHeads row(a, base + static_cast<int>(threadIdx.y), log2_theta);
        Real* const heads = a.heads + row.row * a.row;
        norm_heads_backward(heads, a.queries, row, sums[0]);
        norm_heads_backward(heads + std::int64_t{a.queries.count} * a.HS, a.keys, row, sums[1]);
    }

    DYNAMIC_SHARED(float, of_warps);   // (warps, 2, HS)
    const HeadShare share(a.HS);
    const unsigned columns = 2 * static_cast<unsigned>(a.HS), threads = block_threads(), thread = block_thread();
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < share.pairs(); j++) {
            if (threads > 1) sum_over_rows(sums[i][j].left), sum_over_rows(sums[i][j].right);
            if (thread % 32 < blockDim.x) share.store(of_warps + thread / 32 * columns + i * a.HS, j, sums[i][j]);
        }
    }
    __syncthreads();
    for (unsigned column = thread; column < columns; column += threads) {
        float sum = 0;
        for (unsigned warp = 0; warp * 32 < threads; warp++) sum += of_warps[warp * columns + column];
        partials[blockIdx.x * columns + column] = sum;
    }
}

// ---------------------------------------------------------------------------------------------------------------------

// Checks the arguments, and declares what forward or backward touches.
template <class Real>
void declare_head_norms(Launch& where, const HeadNorms<Real>& a) {
    ENSURE(a.HS % (a.turns ? 16 : 8) == 0 && a.HS <= kHeadNormsLargestHead && a.row % 8 == 0, "norms of heads of ",
           a.HS, " channels in rows of ", a.row);
    const std::int64_t span = (a.rows - 1) * a.row + std::int64_t{a.queries.count + a.keys.count} * a.HS;
    const std::size_t in_memory = static_cast<std::size_t>(span) * sizeof(Real),
                      bytes = sizeof(Real) * static_cast<std::size_t>(std::int64_t{a.rows} * a.HS) *
                              static_cast<std::size_t>(a.queries.count + a.keys.count);
    where.reads(a.heads, in_memory, bytes).writes(a.heads, in_memory, bytes);
    if (a.turns) a.angles.declare(where, a.rows);
    auto declare = [&](const NormedHeads<Real>& of) {
        const std::size_t heads = static_cast<std::size_t>(a.rows) * static_cast<std::size_t>(of.count);
        const std::size_t head_bytes = static_cast<std::size_t>(a.HS) * sizeof(Real);
        where.reads(of.weight, head_bytes);
        if (a.angles.backward) {
            where.reads(of.raw, heads * head_bytes).reads(of.rstd, heads * sizeof(float));
        } else {
            where.writes(of.raw, heads * head_bytes).writes(of.rstd, heads * sizeof(float));
        }
    };
    declare(a.queries);
    declare(a.keys);
}

template <class Real>
void head_norms_forward(HeadNorms<Real> args, float epsilon, bool rounds_before_weight, cudaStream_t stream) {
    if (args.rows == 0) return;
    args.angles.backward = false;
    const unsigned sharers = head_norms_sharers(args.HS), rows = kHeadNormsThreads / sharers;
    Launch where{dim3(blocks_for(args.rows, rows)), dim3(loop_threads(sharers), rows), 0, stream};
    declare_head_norms(where, args);
    launch(head_norms_forward_kernel<Real>, where, args, args.angles.log2_theta(), epsilon, rounds_before_weight);
}

template <class Real, class Grad>
void head_norms_backward(HeadNorms<Real> args, Grad* dqueries, Grad* dkeys, float* scratch, bool accumulate,
                         cudaStream_t stream) {
    ENSURE(args.rows > 0, "backward of norms of heads of no rows");
    args.angles.backward = true;
    const unsigned sharers = head_norms_sharers(args.HS);
    const bool one_thread = loop_threads(kHeadNormsThreads) == 1;
    const dim3 block = one_thread ? dim3(1) : dim3(sharers, kHeadNormsThreads / sharers);
    const int blocks = head_norms_blocks(args.rows, args.HS);
    const std::size_t columns = 2 * static_cast<std::size_t>(args.HS), warps = one_thread ? 1 : kHeadNormsThreads / 32;
    Launch where{dim3(static_cast<unsigned>(blocks)), block, warps * columns * sizeof(float), stream};
    declare_head_norms(where, args);
    where.writes(scratch, head_norms_scratch(args.rows, args.HS) * sizeof(float));
    launch(head_norms_backward_kernel<Real>, where, args, args.angles.log2_theta(), scratch);
    layernorm_backward_finish(dqueries, dkeys, scratch, blocks, args.HS, accumulate, stream);
}
