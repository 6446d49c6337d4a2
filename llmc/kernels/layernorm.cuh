// Layer normalisation of rows (Ba, Kiros, Hinton, "Layer normalization", 2016): out = (in - mean) * rstd * weight + bias
// with rstd = 1 / sqrt(variance + 1e-5), and its backward pass. All arithmetic is fp32. C is at most 12288.
//
// Rows stay in registers (rows.cuh): forward and backward read each tensor from memory once. Backward sums dweight and dbias per block
// in registers while it passes over the rows, and a second, small kernel adds the blocks' sums in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "llmc/base/dtype.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows.cuh"
#include "llmc/kernels/vec.cuh"

constexpr float kLayerNormEpsilon = 1e-5f;

template <class Real>
struct LayerNormForward {
    Real* out;            // (rows, C)
    float* mean;          // (rows), or null when backward will not follow
    float* rstd;          // (rows), or null likewise
    const Real* in;       // (rows, C)
    const Real* weight;   // (C)
    const Real* bias;     // (C)
    int rows, C;
};

template <class Real>
void layernorm_forward(const LayerNormForward<Real>& args, cudaStream_t stream);

template <class Real, class Grad>
struct LayerNormBackward {
    Real* din;            // (rows, C) gradient of `in`: added to, or overwritten
    Grad* dweight;        // (C)
    Grad* dbias;          // (C)
    float* scratch;       // layernorm_backward_scratch(rows, C) floats
    const Real* dout;     // (rows, C)
    const Real* in;       // (rows, C), as given to forward
    const Real* weight;   // (C)
    const float* mean;    // (rows)
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

// Normalises a row that the block's threads hold in registers. Elements beyond the row must be zero.
template <class AnyExtent, class Real>
__device__ __forceinline__ void normalise_row(const RowOfThread<AnyExtent>& row, const Vec8<Real> (&x)[kRowParts], Real* out, float* mean,
                                              float* rstd, const Real* weight, const Real* bias) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kRowParts; j++) {
        Vec8<float> values;
        VECTOR_LOOP
        for (int k = 0; k < 8; k++) values[k] = static_cast<float>(x[j][k]);
        sum += sum8(values);
    }
    const float m = row_sum(sum) / row.C();

    // the centred sum of squares, not the difference of two large numbers
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kRowParts; j++) {
        Vec8<float> square;
        VECTOR_LOOP
        for (int k = 0; k < 8; k++) {
            const float d = row.column(j) + k < row.C() ? static_cast<float>(x[j][k]) - m : 0.0f;
            square[k] = d * d;
        }
        squares += sum8(square);
    }
    const float s = 1.0f / sqrtf(row_sum(squares) / row.C() + kLayerNormEpsilon);

#pragma unroll
    for (int j = 0; j < kRowParts; j++) {
        if (!row.has(j)) continue;
        Vec8<Real> w = row.load_shared_by_rows(weight, j), b = row.load_shared_by_rows(bias, j), y;
        VECTOR_LOOP
        for (int k = 0; k < 8; k++) {
            float normal = (static_cast<float>(x[j][k]) - m) * s;
            y[k] = static_cast<Real>(fmaf(normal, static_cast<float>(w[k]), static_cast<float>(b[k])));
        }
        row.store(out, j, y);
    }
    if (row.leads()) {
        if (mean) mean[row.row] = m;
        if (rstd) rstd[row.row] = s;
    }
}

template <class Real, class AnyExtent>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks<AnyExtent>)
    layernorm_forward_kernel(LayerNormForward<Real> args, AnyExtent extent) {
    RowOfThread<AnyExtent> row(args.rows, extent, first_row());
    Vec8<Real> x[kRowParts];
#pragma unroll
    for (int j = 0; j < kRowParts; j++) x[j] = row.load(args.in, j);
    normalise_row(row, x, args.out, args.mean, args.rstd, args.weight, args.bias);
}

template <class Real>
void layernorm_forward(const LayerNormForward<Real>& args, cudaStream_t stream) {
    if (args.rows == 0) return;
    std::size_t row_bytes = args.C * sizeof(Real), all_bytes = args.rows * row_bytes;
    Launch where = row_launch(args.rows, args.C, stream);
    where.reads(args.in, all_bytes).reads(args.weight, row_bytes).reads(args.bias, row_bytes);
    where.writes(args.out, all_bytes);
    if (args.mean) where.writes(args.mean, args.rows * sizeof(float));
    if (args.rstd) where.writes(args.rstd, args.rows * sizeof(float));
    with_row_extent(
        args.C, [&](auto extent) { launch(layernorm_forward_kernel<Real, decltype(extent)>, where, args, extent); },
        args.out, args.in, args.weight, args.bias);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

// Blocks of the backward kernel, and so rows of partial sums: a function of the shape alone, never of the machine, so
// that the order of the sums is too. 264 is two blocks for each of an H200's 132 multiprocessors.
inline int layernorm_backward_blocks(int rows, int C) {
    int rows_per_block = 4 * static_cast<int>(row_block(C).y);
    int blocks = (rows + rows_per_block - 1) / rows_per_block;
    return blocks < 264 ? blocks : 264;
}

inline std::size_t layernorm_backward_scratch(int rows, int C) {
    return static_cast<std::size_t>(layernorm_backward_blocks(rows, C)) * 2 * C;
}

// The sums of one thread's columns over the rows it has seen.
struct ParameterSums {
    float weight[kRowParts][8] = {};
    float bias[kRowParts][8] = {};
};

// Threads of backward's largest block. Rows that are not whole packets need more registers, so their blocks are smaller,
// and such rows can be no longer than this many threads hold.
template <class AnyExtent> constexpr int kBackwardThreads = std::is_same_v<AnyExtent, PacketExtent> ? kRowThreads : 256;
constexpr int kOddRowMaxColumns = kBackwardThreads<Extent> * kRowParts * 8;

// Whether a thread's share of a row stays in its registers until the row's sums are known. Where they are too few, in
// fp32, it is read again, from a cache.
template <class Real, class AnyExtent>
constexpr bool kKeepsRow = sizeof(Real) == 2 || std::is_same_v<AnyExtent, Extent>;

// The gradient of one row: with n = (in - mean) rstd and g = dout weight,
//   din = rstd (g - mean(g) - n mean(g n)),  dweight += dout n,  dbias += dout
template <class Real, class Grad, class AnyExtent>
__device__ __forceinline__ void layernorm_backward_row(const LayerNormBackward<Real, Grad>& args,
                                                       const RowOfThread<AnyExtent>& row, ParameterSums& sums) {
    const float mean = row.inside ? args.mean[row.row] : 0.0f, rstd = row.inside ? args.rstd[row.row] : 0.0f;
    Vec8<Real> dout[kRowParts], in[kRowParts];
#pragma unroll
    for (int j = 0; j < kRowParts; j++) {
        dout[j] = row.load(args.dout, j);
        in[j] = row.load(args.in, j);
    }
    RowSums total = {0, 0};
#pragma unroll
    for (int j = 0; j < kRowParts; j++) {
        if (!row.has(j)) continue;
        const Vec8<Real> w = row.load_shared_by_rows(args.weight, j);
        Vec8<float> g, gn;
        VECTOR_LOOP
        for (int k = 0; k < 8; k++) {
            float d = static_cast<float>(dout[j][k]), n = (static_cast<float>(in[j][k]) - mean) * rstd;
            g[k] = d * static_cast<float>(w[k]);
            gn[k] = g[k] * n;
            sums.weight[j][k] = fmaf(d, n, sums.weight[j][k]);
            sums.bias[j][k] += d;
        }
        total = {total.a + sum8(g), total.b + sum8(gn)};
    }
    total = row_sums(total);
    const float mean_g = total.a / row.C(), mean_gn = total.b / row.C();
#pragma unroll
    for (int j = 0; j < kRowParts; j++) {
        if (!row.has(j)) continue;
        if constexpr (!kKeepsRow<Real, AnyExtent>) {
            dout[j] = row.load(args.dout, j);
            in[j] = row.load(args.in, j);
        }
        Vec8<Real> w = row.load_shared_by_rows(args.weight, j), din;
        if (args.accumulate_input) din = row.load(args.din, j);
        VECTOR_LOOP
        for (int k = 0; k < 8; k++) {
            float d = static_cast<float>(dout[j][k]), n = (static_cast<float>(in[j][k]) - mean) * rstd;
            float gradient = (d * static_cast<float>(w[k]) - mean_g - n * mean_gn) * rstd;
            din[k] = static_cast<Real>(args.accumulate_input ? static_cast<float>(din[k]) + gradient : gradient);
        }
        row.store(args.din, j, din);
    }
}

// Writes the block's sums to partials (2, C), adding the rows side by side (threadIdx.y) in order. shared: (2, C).
template <class AnyExtent>
__device__ __forceinline__ void store_parameter_sums(float* partials, float* shared, const RowOfThread<AnyExtent>& row,
                                                     const ParameterSums& sums) {
    const int C = row.C();
    for (unsigned y = 0; y < blockDim.y; y++) {
        if (y == threadIdx.y) {
#pragma unroll
            for (int j = 0; j < kRowParts; j++) {
                VECTOR_LOOP
                for (int k = 0; k < 8; k++) {
                    int c = row.column(j) + k;
                    if (c >= C) continue;
                    shared[c] = y == 0 ? sums.weight[j][k] : shared[c] + sums.weight[j][k];
                    shared[C + c] = y == 0 ? sums.bias[j][k] : shared[C + c] + sums.bias[j][k];
                }
            }
        }
        __syncthreads();
    }
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    for (int i = thread; i < 2 * C; i += static_cast<int>(blockDim.x * blockDim.y)) partials[i] = shared[i];
}

template <class Real, class Grad, class AnyExtent>
__global__ void __launch_bounds__(kBackwardThreads<AnyExtent>)
    layernorm_backward_kernel(LayerNormBackward<Real, Grad> args, AnyExtent extent) {
    DYNAMIC_SHARED(float, shared);
    ParameterSums sums;
    const int stride = static_cast<int>(gridDim.x * blockDim.y);
    // every thread of a block makes the same number of turns, inside the rows or not
    for (int base = static_cast<int>(blockIdx.x * blockDim.y); base < args.rows; base += stride) {
        layernorm_backward_row(args, RowOfThread<AnyExtent>(args.rows, extent, base + static_cast<int>(threadIdx.y)), sums);
    }
    store_parameter_sums(args.scratch + static_cast<std::size_t>(blockIdx.x) * 2 * extent.count, shared,
                         RowOfThread<AnyExtent>(args.rows, extent, 0), sums);
}

constexpr int kFinishThreads = 8;   // threads that share a column, beside 32 columns

// dweight and dbias from partials (blocks, 2, C): a block handles 32 of the 2C columns.
template <class Grad>
__global__ void __launch_bounds__(32 * kFinishThreads)
    layernorm_backward_finish_kernel(Grad* dweight, Grad* dbias, const float* partials, int blocks, int C, bool accumulate) {
    __shared__ float shared[kFinishThreads][32];
    const int column = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
    float sum = 0;
    if (column < 2 * C) {
        for (int b = static_cast<int>(threadIdx.y); b < blocks; b += kFinishThreads) {
            sum += partials[static_cast<std::size_t>(b) * 2 * C + column];
        }
    }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= 2 * C) return;
    for (int y = 1; y < kFinishThreads; y++) sum += shared[y][threadIdx.x];
    Grad* out = column < C ? dweight + column : dbias + (column - C);
    *out = static_cast<Grad>(accumulate ? static_cast<float>(*out) + sum : sum);
}

template <class Real, class Grad>
void layernorm_backward(const LayerNormBackward<Real, Grad>& args, cudaStream_t stream) {
    ENSURE(args.rows > 0, "layernorm backward of no rows");
    if (!row_extent(args.C, args.din, args.dout, args.in, args.weight).packets && args.C > kOddRowMaxColumns) {
        throw Error(ErrorKind::usage,
                    text("rows of C=", args.C, " channels: beyond ", kOddRowMaxColumns,
                         " layer normalisation's gradient needs a multiple of 8"),
                    "Choose --channels that are a multiple of 8.");
    }
    const std::size_t row_bytes = args.C * sizeof(Real), all_bytes = args.rows * row_bytes;
    const std::size_t scratch_bytes = layernorm_backward_scratch(args.rows, args.C) * sizeof(float);
    const int blocks = layernorm_backward_blocks(args.rows, args.C);

    Launch main{dim3(static_cast<unsigned>(blocks)), row_block(args.C), 2 * args.C * sizeof(float), stream};
    main.reads(args.dout, all_bytes).reads(args.in, all_bytes).reads(args.weight, row_bytes);
    main.reads(args.mean, args.rows * sizeof(float)).reads(args.rstd, args.rows * sizeof(float));
    main.writes(args.din, all_bytes).writes(args.scratch, scratch_bytes);
    with_row_extent(
        args.C, [&](auto extent) { launch(layernorm_backward_kernel<Real, Grad, decltype(extent)>, main, args, extent); },
        args.din, args.dout, args.in, args.weight);

    Launch finish{dim3(blocks_for(2 * args.C, 32)), dim3(32, kFinishThreads), 0, stream};
    finish.reads(args.scratch, scratch_bytes);
    finish.writes(args.dweight, args.C * sizeof(Grad)).writes(args.dbias, args.C * sizeof(Grad));
    launch(layernorm_backward_finish_kernel<Grad>, finish, args.dweight, args.dbias, args.scratch, blocks, args.C,
           args.accumulate_parameters);
}
