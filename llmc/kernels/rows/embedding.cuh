// Computes the embedding out[b,t,:] = wte[token[b,t],:] + wpe[position of t,:], and its backward pass.
//
// Backward is deterministic: the host groups the batch's tokens (token_groups.h), so that every row of dwte has one
// owner, which adds its positions in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include "llmc/base/check.h"
#include "llmc/base/dtype.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/add_rows.cuh"
#include "llmc/kernels/rows/token_groups.h"
#include "llmc/kernels/vec.cuh"

// Positions of the T local tokens in the sequence: first, first + 1, ... unless `list` names each of them (context
// parallelism gives a rank two separate pieces), or `of_rows` names each row's (positions begin anew in each document).
struct Positions {
    int first = 0;
    const int* list = nullptr;      // (T) on the device, distinct, or null
    const int* of_rows = nullptr;   // (B, T) on the device, or null

    __device__ int of(int t) const { return list ? list[t] : first + t; }
    __device__ int of_row(std::int64_t row, int T) const {
        return of_rows ? of_rows[row] : of(static_cast<int>(row % T));
    }
};

template <class Real>
struct EmbeddingForward {
    Real* out;           // (B, T, C)
    const int* tokens;   // (B, T)
    const Real* wte;     // (V, C): rows of the tokens first_token .. first_token + V - 1
    const Real* wpe;     // (positions, C), or null to add none
    int B, T, C, V;
    int first_token = 0;   // tokens outside wte's rows count as a row of zeros (vocabulary parallelism)
    Positions positions = {};
};

template <class Real>
void embedding_forward(const EmbeddingForward<Real>& args, cudaStream_t stream);

// Adds to dwte's rows of the tokens that occur, in fp32, rounded once; other rows are untouched. (The tied classifier's
// matmul writes dwte first; if nothing does, zero it first.) Overwrites all of dwpe (rows of other positions become
// zero), or adds to it when `accumulate_wpe`. If `positions.of_rows` is set, dwpe is added to as dwte is, by groups:
// call with `dwte` = dwpe and the groups of positions.
template <class Real, class Grad>
struct EmbeddingBackward {
    Grad* dwte;               // (V, C)
    Grad* dwpe;               // (max_positions, C), or null to leave out
    const Real* dout;         // (B, T, C)
    TokenGroupsView groups;   // groups of the same tokens, on the device
    int B, T, C, V, max_positions;
    bool accumulate_wpe;
    int first_token = 0;
    Positions positions = {};
};

template <class Real, class Grad>
void embedding_backward(const EmbeddingBackward<Real, Grad>& args, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

// Row and column of this thread in element-wise work over (rows, C), with rows padded to whole eights.
struct RowAndColumn {
    int row, column;
};
__device__ __forceinline__ RowAndColumn thread_row_and_column(int C, unsigned block) {
    const unsigned eight = block * kElementwiseThreads + threadIdx.x, eights = static_cast<unsigned>(C + 7) / 8;
    return {static_cast<int>(eight / eights), static_cast<int>(eight % eights * 8)};
}
inline std::int64_t padded_elements(std::int64_t rows, int C) {
    const std::int64_t eights = rows * ((C + 7) / 8);
    ENSURE(eights < (std::int64_t{1} << 31), rows, " rows of C=", C, " are more than one launch can cover");
    return eights * 8;
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    embedding_forward_kernel(EmbeddingForward<Real> args, Extent extent) {
    const RowAndColumn at = thread_row_and_column(args.C, blockIdx.x);
    if (at.row >= args.B * args.T) return;
    const int token = args.tokens[at.row] - args.first_token;
    const bool owned = token >= 0 && token < args.V;
    with_known_extent(at.column, extent, [&](auto known) {
        Real* const out = args.out + static_cast<std::int64_t>(at.row) * args.C;
        // Loads an unused row rather than none: so the next load need not wait for this one.
        const Vec8<Real> of_token =
            load8(args.wte + static_cast<std::int64_t>(owned ? token : 0) * args.C, at.column, known);
        if (!args.wpe) return store8(out, at.column, known, owned ? of_token : Vec8<Real>{});
        const std::int64_t position = args.positions.of_row(at.row, args.T);
        const Vec8<Real> of_position = load8(args.wpe + position * args.C, at.column, known);
        store8(out, at.column, known, add8(owned ? of_token : Vec8<Real>{}, of_position));
    });
}

template <class Real>
void embedding_forward(const EmbeddingForward<Real>& args, cudaStream_t stream) {
    const std::int64_t rows = static_cast<std::int64_t>(args.B) * args.T;
    if (rows == 0) return;
    Launch where = elementwise_launch(padded_elements(rows, args.C), stream);
    const std::size_t read = sizeof(Real) * std::min<std::int64_t>(rows, args.V) * args.C;   // at most
    where.reads(args.tokens, rows * sizeof(int)).reads(args.wte, sizeof(Real) * args.V * args.C, read);
    if (args.positions.of_rows) {
        where.reads(args.positions.of_rows, rows * sizeof(int));   // also rows of wpe that only the device knows
    } else if (args.positions.list) {
        where.reads(args.positions.list, args.T * sizeof(int));   // also rows of wpe that only the device knows
    } else if (args.wpe) {
        const std::size_t row_bytes = sizeof(Real) * args.C;
        where.reads(args.wpe + static_cast<std::int64_t>(args.positions.first) * args.C, args.T * row_bytes);
    }
    where.writes(args.out, rows * args.C * sizeof(Real));
    launch(embedding_forward_kernel<Real>, where, args, row_extent(args.C, args.out, args.wte, args.wpe));
}

// ---------------------------------------------------------------------------------------------------------------------

constexpr int kGroupWarps = 8;                    // warps that share a long group
constexpr int kGroupColumns = 256;                // columns of a block: a warp, eight each
constexpr int kGroupThreads = 32 * kGroupWarps;   // also one per column, to add the warps' sums
static_assert(kGroupThreads == kGroupColumns && kGroupThreads == kElementwiseThreads);

// Rows of dout whose loads are under way together, in accesses of 16 bytes: as many as registers allow while three
// blocks share a multiprocessor, because a frequent token has thousands of rows. Most short groups have one or two
// rows. (With the bound of three blocks nvcc uses the registers; without it, nvcc saves them and loads one row after
// the other.)
constexpr int kLongGroupLoads = 12, kShortGroupLoads = 4, kGroupBlocks = 3;

template <class Real, class Grad>
__device__ __forceinline__ Grad* row_of_group(const EmbeddingBackward<Real, Grad>& args, int group) {
    return args.dwte + static_cast<std::int64_t>(args.groups.tokens[group] - args.first_token) * args.C;
}

// Adds to `sum` eight columns of rows order[first], order[first + step], ... (before `end`) of dout.
template <int loads, class Real, class Grad, class AnyExtent>
__device__ __forceinline__ void add_positions(Vec8<float>& sum, const EmbeddingBackward<Real, Grad>& args, int first,
                                              int end, int step, int column, AnyExtent extent) {
    auto row = [&](int place) { return args.dout + static_cast<std::int64_t>(args.groups.order[place]) * args.C; };
    add_rows<loads / Vec8<Real>::packets>(sum, first, end, step, row, column, extent);
}

template <class Grad, class AnyExtent>
__device__ __forceinline__ void add_to_row(Grad* row, const Vec8<Grad>& before, int column, AnyExtent extent,
                                           const Vec8<float>& sum) {
    Vec8<float> total = to_floats(before);
#pragma unroll
    for (int k = 0; k < 8; k++) total[k] += sum[k];
    store8(row, column, extent, round_to<Grad>(total));
}

// Adds 256 columns of a long group, by one block: every warp adds every eighth row, then every thread adds the warps'
// sums of one column.
template <class Real, class Grad>
__device__ __forceinline__ void add_long_group(const EmbeddingBackward<Real, Grad>& args, Extent extent, int group,
                                               int first_column) {
    __shared__ Vec8<float> sums[kGroupWarps][32];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int begin = args.groups.starts[group], end = args.groups.starts[group + 1];
    const int column = first_column + lane * 8, own_column = first_column + static_cast<int>(threadIdx.x);
    Grad* const row = row_of_group(args, group);
    const float before = own_column < args.C ? static_cast<float>(row[own_column]) : 0.0f;   // loaded early

    Vec8<float> sum = {};
    if (column < args.C) {
        with_known_extent(column, extent, [&](auto known) {
            add_positions<kLongGroupLoads>(sum, args, begin + warp, end, kGroupWarps, column, known);
        });
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (own_column >= args.C) return;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kGroupWarps; w++) total += sums[w][threadIdx.x / 8][static_cast<int>(threadIdx.x) % 8];
    row[own_column] = static_cast<Grad>(before + total);
}

// Adds eight columns of a short group, by one thread.
template <class Real, class Grad>
__device__ __forceinline__ void add_short_group(const EmbeddingBackward<Real, Grad>& args, Extent extent, int group,
                                                int column) {
    const int begin = args.groups.starts[group], end = args.groups.starts[group + 1];
    Grad* const row = row_of_group(args, group);
    with_known_extent(column, extent, [&](auto known) {
        const Vec8<Grad> before = load8(row, column, known);   // under way with dout's rows
        Vec8<float> sum = {};
        add_positions<kShortGroupLoads>(sum, args, begin, end, 1, column, known);
        add_to_row(row, before, column, known, sum);
    });
}

// A block per 256 columns of each long group, then a thread per eight columns of each short one.
template <class Real, class Grad>
__global__ void __launch_bounds__(kGroupThreads, kGroupBlocks)
    embedding_backward_wte_kernel(EmbeddingBackward<Real, Grad> args, Extent extent, unsigned long_blocks) {
    if (blockIdx.x < long_blocks) {
        const unsigned parts = long_blocks / static_cast<unsigned>(args.groups.long_groups);
        add_long_group(args, extent, static_cast<int>(blockIdx.x / parts),
                       static_cast<int>(blockIdx.x % parts) * kGroupColumns);
        return;
    }
    const RowAndColumn at = thread_row_and_column(args.C, blockIdx.x - long_blocks);
    const int group = args.groups.long_groups + at.row;
    if (group < args.groups.groups) add_short_group(args, extent, group, at.column);
}

constexpr int kPositionLoads = 8;   // rows in flight, as for groups

// Adds dwpe[position of t] += sum over b of dout[b, t]; a thread per eight columns of a position.
template <class Real, class Grad>
__global__ void __launch_bounds__(kElementwiseThreads, kGroupBlocks)
    embedding_backward_wpe_kernel(EmbeddingBackward<Real, Grad> args, Extent extent) {
    const RowAndColumn at = thread_row_and_column(args.C, blockIdx.x);
    if (at.row >= args.T) return;
    Grad* const row = args.dwpe + static_cast<std::int64_t>(args.positions.of(at.row)) * args.C;
    with_known_extent(at.column, extent, [&](auto known) {
        const Vec8<Grad> before = load8(row, at.column, known);
        Vec8<float> sum = {};
        auto dout_row = [&](int b) { return args.dout + (static_cast<std::int64_t>(b) * args.T + at.row) * args.C; };
        add_rows<kPositionLoads / Vec8<Real>::packets>(sum, 0, args.B, 1, dout_row, at.column, known);
        add_to_row(row, before, at.column, known, sum);
    });
}

template <class Real, class Grad>
void embedding_backward(const EmbeddingBackward<Real, Grad>& args, cudaStream_t stream) {
    const std::size_t dout_bytes = sizeof(Real) * args.B * args.T * args.C;
    if (args.groups.groups > 0) {
        const TokenGroupsView& groups = args.groups;
        const std::int64_t long_blocks = std::int64_t{groups.long_groups} * ceil_div(args.C, kGroupColumns);
        const std::int64_t short_elements = padded_elements(groups.groups - groups.long_groups, args.C);
        const unsigned blocks = blocks_for(long_blocks * kElementwiseBlock + short_elements, kElementwiseBlock);
        Launch where{dim3(blocks), dim3(kGroupThreads), 0, stream};
        const std::size_t dwte_bytes = sizeof(Grad) * args.V * args.C,
                          changed = sizeof(Grad) * std::min(std::int64_t{args.B} * args.T, std::int64_t{args.V}) *
                                    args.C;   // at most
        where.reads(args.dout, dout_bytes).reads(args.dwte, dwte_bytes, changed);
        where.writes(args.dwte, dwte_bytes, changed);
        where.reads(args.groups.order, args.groups.positions * sizeof(int));
        where.reads(args.groups.tokens, args.groups.groups * sizeof(int));
        where.reads(args.groups.starts, (args.groups.groups + 1) * sizeof(int));
        launch(embedding_backward_wte_kernel<Real, Grad>, where, args, row_extent(args.C, args.dwte, args.dout),
               static_cast<unsigned>(long_blocks));
    }
    if (!args.dwpe) return;
    ENSURE(args.positions.of_rows == nullptr, "rows of dwpe whose positions are grouped");
    const std::size_t dwpe_bytes = sizeof(Grad) * args.max_positions * args.C;
    if (!args.accumulate_wpe) CUDA_CHECK(cudaMemsetAsync(args.dwpe, 0, dwpe_bytes, stream));
    if (args.B == 0 || args.T == 0) return;
    Launch where = elementwise_launch(padded_elements(args.T, args.C), stream);
    where.reads(args.dout, dout_bytes).reads(args.dwpe, dwpe_bytes).writes(args.dwpe, dwpe_bytes);
    if (args.positions.list) where.reads(args.positions.list, args.T * sizeof(int));
    launch(embedding_backward_wpe_kernel<Real, Grad>, where, args, row_extent(args.C, args.dwpe, args.dout));
}
