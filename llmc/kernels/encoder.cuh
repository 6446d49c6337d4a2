// The embedding: out[b,t,:] = wte[token[b,t],:] + wpe[position of t,:], and its backward pass.
//
// Backward is deterministic: the batch's tokens are grouped on the host (token_groups.h), so that one block owns a row of
// dwte and adds its positions in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include "llmc/base/check.h"
#include "llmc/base/dtype.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/token_groups.h"
#include "llmc/kernels/vec.cuh"

// Which positions of the sequence the T local tokens are: first, first + 1, ... unless `list` names each of them
// (context parallelism gives a rank two separate pieces).
struct Positions {
    int first = 0;
    const int* list = nullptr;   // (T) on the device, distinct, or null

    __device__ int of(int t) const { return list ? list[t] : first + t; }
};

template <class Real>
struct EncoderForward {
    Real* out;            // (B, T, C)
    const int* tokens;    // (B, T)
    const Real* wte;      // (V, C): rows of the tokens first_token .. first_token + V - 1
    const Real* wpe;      // (positions, C), or null to add none
    int B, T, C, V;
    int first_token = 0;   // tokens outside wte's rows count as a row of zeros (vocabulary parallelism)
    Positions positions = {};
};

template <class Real>
void encoder_forward(const EncoderForward<Real>& args, cudaStream_t stream);

// dwte's rows of the tokens that occur are ADDED to, in fp32, rounded once; other rows are untouched. (The tied
// classifier's matmul writes dwte first; where nothing does, zero it first.)
// dwpe is overwritten whole (rows of other positions become zero), or added to when `accumulate_wpe`.
template <class Real, class Grad>
struct EncoderBackward {
    Grad* dwte;               // (V, C)
    Grad* dwpe;               // (max_positions, C), or null to leave out
    const Real* dout;         // (B, T, C)
    TokenGroupsView groups;   // of the same tokens, on the device
    int B, T, C, V, max_positions;
    bool accumulate_wpe;
    int first_token = 0;
    Positions positions = {};
};

template <class Real, class Grad>
void encoder_backward(const EncoderBackward<Real, Grad>& args, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

// Element-wise over (rows, C) with rows padded to whole pieces of eight: the row and column of this thread.
struct RowAndColumn {
    int row, column;
};
__device__ __forceinline__ RowAndColumn thread_row_and_column(int C) {
    const unsigned piece = blockIdx.x * kElementwiseThreads + threadIdx.x, pieces = static_cast<unsigned>(C + 7) / 8;
    return {static_cast<int>(piece / pieces), static_cast<int>(piece % pieces * 8)};
}
inline std::int64_t padded_elements(std::int64_t rows, int C) {
    const std::int64_t pieces = rows * ((C + 7) / 8);
    ENSURE(pieces < (std::int64_t{1} << 31), rows, " rows of C=", C, " are more than one launch can cover");
    return pieces * 8;
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads) encoder_forward_kernel(EncoderForward<Real> args, Extent extent) {
    const auto [row, column] = thread_row_and_column(args.C);
    if (row >= args.B * args.T) return;
    const int token = args.tokens[row] - args.first_token;
    Vec8<Real> sum = {};
    if (token >= 0 && token < args.V) sum = load8(args.wte + static_cast<std::int64_t>(token) * args.C, column, extent);
    if (args.wpe) {
        const std::int64_t position = args.positions.of(row % args.T);
        sum = add8(sum, load8(args.wpe + position * args.C, column, extent));
    }
    store8(args.out + static_cast<std::int64_t>(row) * args.C, column, extent, sum);
}

template <class Real>
void encoder_forward(const EncoderForward<Real>& args, cudaStream_t stream) {
    const std::int64_t rows = static_cast<std::int64_t>(args.B) * args.T;
    if (rows == 0) return;
    Launch where = elementwise_launch(padded_elements(rows, args.C), stream);
    where.reads(args.tokens, rows * sizeof(int)).reads(args.wte, sizeof(Real) * args.V * args.C);
    if (args.positions.list) {
        where.reads(args.positions.list, args.T * sizeof(int));   // and rows of wpe that only the device knows
    } else if (args.wpe) {
        const std::size_t row_bytes = sizeof(Real) * args.C;
        where.reads(args.wpe + static_cast<std::int64_t>(args.positions.first) * args.C, args.T * row_bytes);
    }
    where.writes(args.out, rows * args.C * sizeof(Real));
    launch(encoder_forward_kernel<Real>, where, args, row_extent(args.C, args.out, args.wte, args.wpe));
}

// ---------------------------------------------------------------------------------------------------------------------

constexpr int kGroupColumns = 256;   // columns of a block: a warp, eight each
constexpr int kGroupWarps = 8;       // warps that share a long group
constexpr int kShortGroup = 16;      // up to here one warp adds a group alone

// Adds rows order[first], order[first + step], ... (before `end`) of a (rows, C) tensor; four loads are in flight.
template <class Real>
__device__ __forceinline__ Vec8<float> sum_rows(const Real* tensor, const int* order, int first, int end, int step,
                                                int column, Extent extent) {
    constexpr int kInFlight = 4;
    Vec8<float> sum = {};
    for (int i = first; i < end; i += kInFlight * step) {
        Vec8<Real> rows[kInFlight];
        for (int u = 0; u < kInFlight; u++) {
            const int place = i + u * step;
            rows[u] = place < end ? load8(tensor + static_cast<std::int64_t>(order[place]) * extent.count, column, extent)
                                  : Vec8<Real>{};
        }
        for (int u = 0; u < kInFlight; u++) {
            const Vec8<float> x = to_floats(rows[u]);
            VECTOR_LOOP
            for (int k = 0; k < 8; k++) sum[k] += x[k];
        }
    }
    return sum;
}

template <class Grad>
__device__ __forceinline__ void add_to_row(Grad* row, int column, Extent extent, const Vec8<float>& sum) {
    Vec8<float> total = to_floats(load8(row, column, extent));
    VECTOR_LOOP
    for (int k = 0; k < 8; k++) total[k] += sum[k];
    store8(row, column, extent, round_to<Grad>(total));
}

// One block per (token that occurs, 256 columns).
template <class Real, class Grad>
__global__ void __launch_bounds__(32 * kGroupWarps) encoder_backward_wte_kernel(EncoderBackward<Real, Grad> args, Extent extent) {
    const int group = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.y);
    const int column = static_cast<int>(blockIdx.y * kGroupColumns + threadIdx.x * 8);
    const int begin = args.groups.starts[group], end = args.groups.starts[group + 1];
    Grad* row = args.dwte + static_cast<std::int64_t>(args.groups.tokens[group] - args.first_token) * args.C;

    if (end - begin <= kShortGroup) {
        if (warp != 0 || column >= args.C) return;
        add_to_row(row, column, extent, sum_rows(args.dout, args.groups.order, begin, end, 1, column, extent));
        return;
    }
    __shared__ Vec8<float> shared[kGroupWarps][32];
    Vec8<float> sum = {};
    if (column < args.C) sum = sum_rows(args.dout, args.groups.order, begin + warp, end, kGroupWarps, column, extent);
    shared[warp][threadIdx.x] = sum;
    __syncthreads();
    if (warp != 0 || column >= args.C) return;
    for (int w = 1; w < kGroupWarps; w++) {
        VECTOR_LOOP
        for (int k = 0; k < 8; k++) sum[k] += shared[w][threadIdx.x][k];
    }
    add_to_row(row, column, extent, sum);
}

// dwpe[position of t] += sum over b of dout[b, t]; a thread per eight columns of a position.
template <class Real, class Grad>
__global__ void __launch_bounds__(kElementwiseThreads)
    encoder_backward_wpe_kernel(EncoderBackward<Real, Grad> args, Extent extent) {
    const auto [t, column] = thread_row_and_column(args.C);
    if (t >= args.T) return;
    Vec8<float> sum = {};
    for (int b = 0; b < args.B; b++) {
        const std::int64_t row = static_cast<std::int64_t>(b) * args.T + t;
        const Vec8<float> d = to_floats(load8(args.dout + row * args.C, column, extent));
        VECTOR_LOOP
        for (int k = 0; k < 8; k++) sum[k] += d[k];
    }
    add_to_row(args.dwpe + static_cast<std::int64_t>(args.positions.of(t)) * args.C, column, extent, sum);
}

template <class Real, class Grad>
void encoder_backward(const EncoderBackward<Real, Grad>& args, cudaStream_t stream) {
    const std::size_t dout_bytes = sizeof(Real) * args.B * args.T * args.C;
    if (args.groups.groups > 0) {
        Launch where{dim3(static_cast<unsigned>(args.groups.groups), blocks_for(args.C, kGroupColumns)),
                     dim3(32, kGroupWarps), 0, stream};
        const std::size_t dwte_bytes = sizeof(Grad) * args.V * args.C;
        where.reads(args.dout, dout_bytes).reads(args.dwte, dwte_bytes).writes(args.dwte, dwte_bytes);
        where.reads(args.groups.order, args.groups.positions * sizeof(int));
        where.reads(args.groups.tokens, args.groups.groups * sizeof(int));
        where.reads(args.groups.starts, (args.groups.groups + 1) * sizeof(int));
        launch(encoder_backward_wte_kernel<Real, Grad>, where, args, row_extent(args.C, args.dwte, args.dout));
    }
    if (!args.dwpe) return;
    const std::size_t dwpe_bytes = sizeof(Grad) * args.max_positions * args.C;
    if (!args.accumulate_wpe) CUDA_CHECK(cudaMemsetAsync(args.dwpe, 0, dwpe_bytes, stream));
    if (args.B == 0 || args.T == 0) return;
    Launch where = elementwise_launch(padded_elements(args.T, args.C), stream);
    where.reads(args.dout, dout_bytes).reads(args.dwpe, dwpe_bytes).writes(args.dwpe, dwpe_bytes);
    if (args.positions.list) where.reads(args.positions.list, args.T * sizeof(int));
    launch(encoder_backward_wpe_kernel<Real, Grad>, where, args, row_extent(args.C, args.dwpe, args.dout));
}
