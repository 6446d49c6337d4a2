// Normalises rows by layer normalisation (Ba, Kiros, Hinton, "Layer normalization", 2016): out = (in - mean) * rstd *
// weight + bias with rstd = 1 / sqrt(variance + epsilon), and its backward pass. All arithmetic is fp32. Without mean
// and bias it is RMSNorm (Zhang, Sennrich, "Root mean square layer normalization", 2019): out = in * rstd * weight with
// rstd = 1 / sqrt(mean of squares + epsilon). In Llama in * rstd is rounded before the weight, too.
//
// Rows of up to 12,288 channels stay in registers (rows.cuh): forward and backward read each tensor from memory once.
// Backward sums dweight and dbias per block in registers while it passes over the rows, and a second, small kernel adds
// the blocks' sums in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "llmc/base/dtype.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/rows.cuh"
#include "llmc/kernels/vec.cuh"

constexpr float kLayerNormEpsilon = 1e-5f;

template <class Real>
struct LayerNormForward {
    Real* out;            // (rows, C)
    float* mean;          // (rows), or null when backward will not follow
    float* rstd;          // (rows), or null likewise
    const Real* in;       // (rows, C)
    const Real* weight;   // (C)
    const Real* bias;     // (C), or null: RMSNorm; `mean` is null then
    int rows, C;
    float epsilon = kLayerNormEpsilon;
    bool rounds_before_weight = false;   // RMSNorm rounds before the weight
};

template <class Real>
void layernorm_forward(const LayerNormForward<Real>& args, cudaStream_t stream);

template <class Real, class Grad>
struct LayerNormBackward {
    Real* din;            // (rows, C) gradient of `in`: added to, or overwritten
    Grad* dweight;        // (C)
    Grad* dbias;          // (C), or null: RMSNorm; `mean` is null then
    float* scratch;       // layernorm_backward_scratch(rows, C) floats
    const Real* dout;     // (rows, C)
    const Real* in;       // (rows, C), as given to forward
    const Real* weight;   // (C)
    const float* mean;    // (rows), or null for RMSNorm
    const float* rstd;    // (rows)
    int rows, C;
    bool accumulate_input;        // din += (the gradient of the residual stream) instead of din =
    bool accumulate_parameters;   // dweight, dbias += instead of = (later micro-batches)
};

// Floats of scratch that backward needs: partial sums of dweight and dbias, so that they are summed in a fixed order.
inline std::size_t layernorm_backward_scratch(int rows, int C);

template <class Real, class Grad>
void layernorm_backward(const LayerNormBackward<Real, Grad>& args, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------
// Forward

// Calls launch_with(std::true_type) where a mean is subtracted, launch_with(std::false_type) for RMSNorm.
template <class LaunchWith>
void with_norm_kind(bool subtracts_mean, LaunchWith launch_with) {
    if (subtracts_mean) return launch_with(std::true_type());
    launch_with(std::false_type());
}

// Normalises a row that the block's threads have kept. Elements beyond the row must be zero.
template <bool kSubtractsMean, class AnyExtent, class Real>
__device__ __forceinline__ void normalise_row(const RowOfThread<AnyExtent>& row, const KeptRow<Real, AnyExtent>& in,
                                              Real* out, float* mean, float* rstd, const Real* weight, const Real* bias,
                                              float epsilon, bool rounds_before_weight) {
    float m = 0;
    if constexpr (kSubtractsMean) {
        PieceSum<AnyExtent> sum;
#pragma unroll
        for (int j = 0; j < row.parts(); j++) sum.add(to_floats(in.piece(row, j)));
        m = row.sum(sum.total()) / row.C();
    }

    // the centred sum of squares, not the difference of two large numbers
    PieceSum<AnyExtent> squares;
#pragma unroll
    for (int j = 0; j < row.parts(); j++) {
        if (row.column(j) >= row.C()) continue;   // zeros there would count as -m
        Vec8<float> x = to_floats(in.piece(row, j));
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const bool beyond = !row.whole_pieces && row.column(j) + k >= row.C();
            const float d = beyond ? 0.0f : x[k] - m;
            x[k] = d * d;
        }
        squares.add(x);
    }
    const float s = 1.0f / sqrtf(row.sum(squares.total()) / row.C() + epsilon);

#pragma unroll
    for (int j = 0; j < row.parts(); j++) {
        if (!row.has(j)) continue;
        const Vec8<float> w = to_floats(row.load_shared_by_rows(weight, j));
        Vec8<float> b = {};
        if constexpr (kSubtractsMean) b = to_floats(row.load_shared_by_rows(bias, j));
        Vec8<float> x = to_floats(in.piece(row, j));
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = (x[k] - m) * s;
        if constexpr (!kSubtractsMean && sizeof(Real) < sizeof(float)) {
            if (rounds_before_weight) x = to_floats(round_to<Real>(x));
        }
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = fmaf(x[k], w[k], b[k]);
        row.store(out, j, round_to<Real>(x));
    }
    if (row.leads()) {
        if (mean) mean[row.row] = m;
        if (rstd) rstd[row.row] = s;
    }
}

template <bool kSubtractsMean, class Real, class AnyExtent>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks<AnyExtent>)
    layernorm_forward_kernel(LayerNormForward<Real> args, AnyExtent extent) {
    RowOfThread<AnyExtent> row(args.rows, extent, first_row());
    KeptRow<Real, AnyExtent> x(args.in);
#pragma unroll
    for (int j = 0; j < row.parts(); j++) x.keep(j, row.load(args.in, j));
    normalise_row<kSubtractsMean>(row, x, args.out, args.mean, args.rstd, args.weight, args.bias, args.epsilon,
                                  args.rounds_before_weight);
}

template <class Real>
void layernorm_forward(const LayerNormForward<Real>& args, cudaStream_t stream) {
    if (args.rows == 0) return;
    std::size_t row_bytes = args.C * sizeof(Real), all_bytes = args.rows * row_bytes;
    Launch where = row_launch(args.rows, args.C, stream);
    where.reads(args.in, all_bytes).reads(args.weight, row_bytes).writes(args.out, all_bytes);
    if (args.bias) where.reads(args.bias, row_bytes);
    if (args.mean) where.writes(args.mean, args.rows * sizeof(float));
    if (args.rstd) where.writes(args.rstd, args.rows * sizeof(float));
    with_norm_kind(args.bias != nullptr, [&](auto subtracts_mean) {
        with_row_extent(
            args.C,
            [&](auto extent) {
                launch(layernorm_forward_kernel<decltype(subtracts_mean)::value, Real, decltype(extent)>, where, args,
                       extent);
            },
            args.out, args.in, args.weight, args.bias);
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

// Blocks of the backward kernel, and so rows of partial sums: a function of the shape alone, never of the machine, so
// that the order of the sums is too. 264 is two blocks for each of an H200's 132 multiprocessors.
inline int layernorm_backward_blocks(int rows, int C) {
    int rows_per_block = 2 * static_cast<int>(row_block(C).y);
    int blocks = (rows + rows_per_block - 1) / rows_per_block;
    return blocks < 264 ? blocks : 264;
}

inline std::size_t layernorm_backward_scratch(int rows, int C) {
    return static_cast<std::size_t>(layernorm_backward_blocks(rows, C)) * 2 * C;
}

// Threads of backward's largest block. Rows that are not whole packets, and wide ones, need more registers, so their
// blocks are smaller; the former are kept only up to what this many threads hold.
template <class AnyExtent>
constexpr int kBackwardThreads = std::is_same_v<AnyExtent, PacketExtent> ? kRowThreads : 256;
constexpr int kOddRowMaxColumns = kBackwardThreads<Extent> * kRowParts * 8;

// True if a thread's share of a row stays in registers until the row's sums are known. If registers are too few, in
// fp32, the row is read again, from a cache.
template <class Real, class AnyExtent>
constexpr bool kKeepsRow = sizeof(Real) == 2 || std::is_same_v<AnyExtent, Extent>;

// Computes the gradient of one row: with n = (in - mean) rstd and g = dout weight,
//   din = rstd (g - mean(g) - n mean(g n)),  dweight += dout n,  dbias += dout
// RMSNorm: n = in rstd, din = rstd (g - n mean(g n)).
template <bool kSubtractsMean, class Real, class Grad, class AnyExtent>
__device__ __forceinline__ void layernorm_backward_row(const LayerNormBackward<Real, Grad>& args,
                                                       const RowOfThread<AnyExtent>& row, ColumnSums<AnyExtent>& sums) {
    const float rstd = row.inside ? args.rstd[row.row] : 0.0f;
    float mean = 0;
    if constexpr (kSubtractsMean) mean = row.inside ? args.mean[row.row] : 0.0f;
    KeptRow<Real, AnyExtent> dout(args.dout), in(args.in);
#pragma unroll kUnrolledParts < AnyExtent>
    for (int j = 0; j < row.parts(); j++) {
        dout.keep(j, row.load(args.dout, j));
        in.keep(j, row.load(args.in, j));
    }
    PieceSum<AnyExtent> sum_g, sum_gn;
#pragma unroll kUnrolledParts < AnyExtent>
    for (int j = 0; j < row.parts(); j++) {
        if (!row.has(j)) continue;
        const Vec8<float> w = to_floats(row.load_shared_by_rows(args.weight, j));
        const Vec8<float> d = to_floats(dout.piece(row, j)), x = to_floats(in.piece(row, j));
        Vec8<float> g, gn, weight_sum = sums.x(j), bias_sum = {};
        if constexpr (kSubtractsMean) bias_sum = sums.y(j);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const float n = (x[k] - mean) * rstd;
            g[k] = d[k] * w[k];
            gn[k] = g[k] * n;
            weight_sum[k] = fmaf(d[k], n, weight_sum[k]);
            if constexpr (kSubtractsMean) bias_sum[k] += d[k];
        }
        sums.set(j, weight_sum, bias_sum);
        sum_g.add(g);
        sum_gn.add(gn);
    }
    const RowSums total = row.sums({sum_g.total(), sum_gn.total()});
    const float mean_g = kSubtractsMean ? total.a / row.C() : 0.0f, mean_gn = total.b / row.C();
#pragma unroll kUnrolledParts < AnyExtent>
    for (int j = 0; j < row.parts(); j++) {
        if (!row.has(j)) continue;
        if constexpr (!kKeepsRow<Real, AnyExtent>) {
            dout.keep(j, row.load(args.dout, j));
            in.keep(j, row.load(args.in, j));
        }
        const Vec8<float> w = to_floats(row.load_shared_by_rows(args.weight, j));
        const Vec8<float> d = to_floats(dout.piece(row, j)), x = to_floats(in.piece(row, j));
        Vec8<float> din = {};
        if (args.accumulate_input) din = to_floats(row.load(args.din, j));
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const float n = (x[k] - mean) * rstd;
            const float gradient = (d[k] * w[k] - mean_g - n * mean_gn) * rstd;
            din[k] = args.accumulate_input ? din[k] + gradient : gradient;
        }
        row.store(args.din, j, round_to<Real>(din));
    }
}

// Prefetches the rows of a block's next turn while this turn waits for its sums.
template <class Real, class Grad, class AnyExtent>
__device__ __forceinline__ void fetch_row_ahead(const LayerNormBackward<Real, Grad>& args,
                                                const RowOfThread<AnyExtent>& row) {
#pragma unroll kUnrolledParts < AnyExtent>
    for (int j = 0; j < row.parts(); j++) {
        row.fetch_ahead(args.dout, j);
        row.fetch_ahead(args.in, j);
        if (args.accumulate_input) row.fetch_ahead(args.din, j);
    }
}

template <bool kSubtractsMean, class Real, class Grad, class AnyExtent>
__global__ void __launch_bounds__(kBackwardThreads<AnyExtent>, 1)
    layernorm_backward_kernel(LayerNormBackward<Real, Grad> args, AnyExtent extent) {
    // Returns where the block's sums go; computed anew, to save a register.
    auto partials = [&] { return args.scratch + static_cast<std::size_t>(blockIdx.x) * 2 * extent.count; };
    auto row_at = [&](int base) {
        return RowOfThread<AnyExtent>(args.rows, extent, base + static_cast<int>(threadIdx.y));
    };
    DYNAMIC_SHARED(float, shared);
    ColumnSums<AnyExtent> sums(partials(), extent);
    const RowTurns<AnyExtent> turns(args.rows);
    // Every thread of a block makes the same number of turns, inside the rows or not.
    for (int base = turns.first; base < turns.end; base += turns.step) {
        fetch_row_ahead(args, row_at(base + turns.step));
        layernorm_backward_row<kSubtractsMean>(args, row_at(base), sums);
    }
    sums.store(partials(), shared, row_at(0));
}

constexpr int kFinishThreads = 32;   // threads that share a column, beside 32 columns

// Sums dweight and dbias, or dweight alone, from partials (blocks, 2, C): a block handles 32 of their columns, all at
// once or in turns.
template <class Grad>
__global__ void __launch_bounds__(32 * kFinishThreads)
    layernorm_backward_finish_kernel(Grad* dweight, Grad* dbias, const float* partials, int blocks, int C,
                                     bool accumulate) {
    const int columns = dbias ? 2 * C : C;
    __shared__ float shared[kFinishThreads][32];
    for (unsigned turn = 0; turn < 32; turn += blockDim.x) {
        const int column = static_cast<int>(blockIdx.x * 32 + turn + threadIdx.x);
        float sum = 0;
        if (column < columns) {
            for (int b = static_cast<int>(threadIdx.y); b < blocks; b += static_cast<int>(blockDim.y)) {
                sum += partials[static_cast<std::size_t>(b) * 2 * C + column];
            }
        }
        if (blockDim.y > 1) {
            shared[threadIdx.y][threadIdx.x] = sum;
            __syncthreads();
            for (unsigned y = 1; y < blockDim.y; y++)
                sum += shared[y][threadIdx.x];   // only the first row of threads uses it
        }
        if (threadIdx.y != 0 || column >= columns) continue;
        Grad* out = column < C ? dweight + column : dbias + (column - C);
        *out = static_cast<Grad>(accumulate ? static_cast<float>(*out) + sum : sum);
    }
}

// Writes, or adds to, dweight and, unless it is null, dbias: the sums of partials (blocks, 2, C).
template <class Grad>
void layernorm_backward_finish(Grad* dweight, Grad* dbias, const float* partials, int blocks, int C, bool accumulate,
                               cudaStream_t stream) {
    const dim3 block = loop_threads(32) == 1 ? dim3(1) : dim3(32, kFinishThreads);
    Launch where{dim3(blocks_for(dbias ? 2 * C : C, 32)), block, 0, stream};
    const std::size_t columns = static_cast<std::size_t>(C);
    where.reads(partials, static_cast<std::size_t>(blocks) * 2 * columns * sizeof(float));
    where.writes(dweight, columns * sizeof(Grad)).writes(dbias, columns * sizeof(Grad));
    launch(layernorm_backward_finish_kernel<Grad>, where, dweight, dbias, partials, blocks, C, accumulate);
}

template <class Real, class Grad>
void layernorm_backward(const LayerNormBackward<Real, Grad>& args, cudaStream_t stream) {
    ENSURE(args.rows > 0, "layernorm backward of no rows");
    const std::size_t row_bytes = args.C * sizeof(Real), all_bytes = args.rows * row_bytes;
    const std::size_t scratch_bytes = layernorm_backward_scratch(args.rows, args.C) * sizeof(float);
    const int blocks = layernorm_backward_blocks(args.rows, args.C);

    dim3 block = row_block(args.C);
    if (block.x == 1) block.y = 1;   // one thread has the sums of the block
    auto launch_main = [&](auto extent) {
        const unsigned threads = std::min<unsigned>(block.x, kBackwardThreads<decltype(extent)>);
        Launch main{dim3(static_cast<unsigned>(blocks)), dim3(threads, block.y),
                    ColumnSums<decltype(extent)>::shared_bytes(args.C), stream};
        main.reads(args.dout, all_bytes).reads(args.in, all_bytes).reads(args.weight, row_bytes);
        main.reads(args.rstd, args.rows * sizeof(float));
        if (args.dbias) main.reads(args.mean, args.rows * sizeof(float));
        main.writes(args.din, all_bytes).writes(args.scratch, scratch_bytes);
        if (args.accumulate_input) main.reads(args.din, all_bytes);
        with_norm_kind(args.dbias != nullptr, [&](auto subtracts_mean) {
            launch(layernorm_backward_kernel<decltype(subtracts_mean)::value, Real, Grad, decltype(extent)>, main, args,
                   extent);
        });
    };
    with_row_extent<kOddRowMaxColumns>(args.C, launch_main, args.din, args.dout, args.in, args.weight);

    layernorm_backward_finish(args.dweight, args.dbias, args.scratch, blocks, args.C, args.accumulate_parameters,
                              stream);
}
