// Row-by-row operations of a mixture of experts beside its matmuls: copying tokens' rows to their experts and back, and
// the activation between an expert's two matrices. Assignments, `source` and `row_of` are those of router.cuh.
//
// A row is multiplied by its weight before the expert's second matrix: so the outputs of that matrix are only added,
// and the weight's gradient needs no kept output. Sums over a token's experts are fp32, in ascending order of experts,
// rounded once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/embedding.cuh"
#include "llmc/kernels/rows/reduce.cuh"
#include "llmc/kernels/vec.cuh"

// Copies out (rows, C) = row source[row] / K of in (tokens, C).
template <class Real>
void gather_rows(Real* out, const Real* in, const std::int32_t* source, int rows, int tokens, int K, int C,
                 cudaStream_t stream);

// Writes out (tokens, C) = the sum of a token's K rows of in (tokens K, C), and of `more` (tokens, C) or null; may be
// `more`. Rows from *kept on count as zero and are not read.
template <class Real>
void combine_rows(Real* out, const Real* in, const Real* more, const std::int32_t* row_of, const std::int32_t* kept,
                  int tokens, int K, int C, cudaStream_t stream);

// Copies out[i] = in[index[i]] for `n` numbers: from the order of assignments to that of rows, or back.
inline void take_values(float* out, const float* in, const std::int32_t* index, int n, cudaStream_t stream);

// Activation between the two matrices: `in` is (rows, F), or gates and ups (rows, 2F); out (rows, F) =
// weight[source[row]] act(in).
template <class Real>
struct ExpertActivation {
    const Real* in;
    const float* weight;          // one per assignment
    const std::int32_t* source;   // null: assignment i is row i
    int rows, F;
    bool gated;   // SwiGLU, else GELU
};
template <class Real>
void expert_activation(Real* out, const ExpertActivation<Real>& args, cudaStream_t stream);
// Computes din, of the size of `in` and perhaps `in` itself, and dweight of each assignment, from dout (rows, F).
template <class Real>
void expert_activation_backward(Real* din, float* dweight, const Real* dout, const ExpertActivation<Real>& args,
                                cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    gather_rows_kernel(Real* out, const Real* in, const std::int32_t* source, int rows, int K, int C) {
    const RowAndColumn at = thread_row_and_column(C, blockIdx.x);
    if (at.row >= rows) return;
    const std::int64_t from = source[at.row] / K;
    copy8(out + static_cast<std::int64_t>(at.row) * C + at.column, in + from * C + at.column);
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    combine_rows_kernel(Real* out, const Real* in, const Real* more, const std::int32_t* row_of,
                        const std::int32_t* kept, int tokens, int K, int C) {
    const RowAndColumn at = thread_row_and_column(C, blockIdx.x);
    if (at.row >= tokens) return;
    Vec8<float> sum{};
    for (int k = 0; k <= K; k++) {
        if (k == K && more == nullptr) break;
        const std::int64_t row = k == K ? at.row : row_of[static_cast<std::int64_t>(at.row) * K + k];
        if (k < K && row >= *kept) continue;
        const Vec8<float> part = to_floats(load_packets<8>((k == K ? more : in) + row * C + at.column));
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += part[i];
    }
    store_packets(out + static_cast<std::int64_t>(at.row) * C + at.column, round_to<Real>(sum));
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    take_values_kernel(float* out, const float* in, const std::int32_t* index, int n) {
    const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
    if (i < n) out[i] = in[index[i]];
}

// Eight elements of act(in), and its derivatives by gates and by ups.
struct ActivatedPiece {
    Vec8<float> out, dgate, dup;
};
template <class Real>
__device__ __forceinline__ ActivatedPiece activate_piece(const ExpertActivation<Real>& args, std::int64_t row,
                                                         int column, bool slopes) {
    ActivatedPiece piece{};
    const Real* const in = args.in + row * (args.gated ? 2 : 1) * args.F + column;
    const Vec8<float> x = to_floats(load_packets<8>(in));
    if (!args.gated) {
#pragma unroll
        for (int k = 0; k < 8; k++) piece.out[k] = gelu_of<Real>(x[k]);
#pragma unroll
        for (int k = 0; k < 8; k++) piece.dgate[k] = slopes ? gelu_slope<Real>(x[k]) : 0.0f;
        return piece;
    }
    const Vec8<float> up = to_floats(load_packets<8>(in + args.F));
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float s = sigmoid_for<Real>(x[k]);
        piece.dup[k] = x[k] * s;
        piece.out[k] = x[k] * (s * up[k]);
        piece.dgate[k] = up[k] * s * fmaf(x[k], 1.0f - s, 1.0f);
    }
    return piece;
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    expert_activation_kernel(Real* out, ExpertActivation<Real> args) {
    const RowAndColumn at = thread_row_and_column(args.F, blockIdx.x);
    if (at.row >= args.rows) return;
    const float weight = args.weight[args.source == nullptr ? at.row : args.source[at.row]];
    ActivatedPiece piece = activate_piece(args, at.row, at.column, false);
#pragma unroll
    for (int k = 0; k < 8; k++) piece.out[k] *= weight;
    store_packets(out + static_cast<std::int64_t>(at.row) * args.F + at.column, round_to<Real>(piece.out));
}

constexpr int kExpertRowsOfBlock = 8;   // each warp computes one row

template <class Real>
__global__ void __launch_bounds__(32 * kExpertRowsOfBlock)
    expert_activation_backward_kernel(Real* din, float* dweight, const Real* dout, ExpertActivation<Real> args) {
    const int row = static_cast<int>(blockIdx.x * kExpertRowsOfBlock + threadIdx.y),
              threads = static_cast<int>(blockDim.x);
    const bool inside = row < args.rows;
    const int assignment = !inside ? 0 : args.source == nullptr ? row : args.source[row];
    const float weight = inside ? args.weight[assignment] : 0.0f;
    const std::int64_t at = row;
    float sum = 0;
    for (int column = 8 * static_cast<int>(threadIdx.x); inside && column < args.F; column += 8 * threads) {
        ActivatedPiece piece = activate_piece(args, at, column, true);
        const Vec8<float> d = to_floats(load_packets<8>(dout + at * args.F + column));
#pragma unroll
        for (int k = 0; k < 8; k++) {
            piece.out[k] *= d[k];
            piece.dgate[k] *= weight * d[k];
            piece.dup[k] *= weight * d[k];
        }
        sum += sum8(piece.out);
        Real* const to = din + at * (args.gated ? 2 : 1) * args.F + column;
        store_packets(to, round_to<Real>(piece.dgate));
        if (args.gated) store_packets(to + args.F, round_to<Real>(piece.dup));
    }
    if (threads > 1) sum = warp_butterfly(sum, ReduceSum());
    if (inside && threadIdx.x == 0) dweight[assignment] = sum;
}

template <class Real>
std::size_t bytes_of_rows(std::int64_t rows, int C) {
    return sizeof(Real) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(C);
}

template <class Real>
void gather_rows(Real* out, const Real* in, const std::int32_t* source, int rows, int tokens, int K, int C,
                 cudaStream_t stream) {
    ENSURE(C % 8 == 0, "rows of ", C, " channels to gather");
    if (rows == 0) return;
    Launch where = elementwise_launch(padded_elements(rows, C), stream);
    where.reads(in, bytes_of_rows<Real>(tokens, C)).reads(source, bytes_of_rows<std::int32_t>(rows, 1));
    where.writes(out, bytes_of_rows<Real>(rows, C));
    launch(gather_rows_kernel<Real>, where, out, in, source, rows, K, C);
}

template <class Real>
void combine_rows(Real* out, const Real* in, const Real* more, const std::int32_t* row_of, const std::int32_t* kept,
                  int tokens, int K, int C, cudaStream_t stream) {
    ENSURE(C % 8 == 0, "rows of ", C, " channels to combine");
    if (tokens == 0) return;
    Launch where = elementwise_launch(padded_elements(tokens, C), stream);
    where.reads(in, bytes_of_rows<Real>(std::int64_t{tokens} * K, C)).reads(more, bytes_of_rows<Real>(tokens, C));
    where.reads(row_of, bytes_of_rows<std::int32_t>(tokens, K)).reads(kept, sizeof(std::int32_t));
    where.writes(out, bytes_of_rows<Real>(tokens, C));
    launch(combine_rows_kernel<Real>, where, out, in, more, row_of, kept, tokens, K, C);
}

inline void take_values(float* out, const float* in, const std::int32_t* index, int n, cudaStream_t stream) {
    if (n == 0) return;
    constexpr int threads = 256;
    Launch where{dim3(blocks_for(n, threads)), dim3(threads), 0, stream};
    where.reads(in, bytes_of_rows<float>(n, 1)).reads(index, bytes_of_rows<std::int32_t>(n, 1));
    where.writes(out, bytes_of_rows<float>(n, 1));
    launch(take_values_kernel<threads>, where, out, in, index, n);
}

template <class Real>
Launch& expert_activation_reads(Launch& where, const ExpertActivation<Real>& args) {
    where.reads(args.in, bytes_of_rows<Real>(args.rows, (args.gated ? 2 : 1) * args.F));
    return where.reads(args.weight, bytes_of_rows<float>(args.rows, 1))
        .reads(args.source, bytes_of_rows<float>(args.rows, 1));
}

template <class Real>
void expert_activation(Real* out, const ExpertActivation<Real>& args, cudaStream_t stream) {
    ENSURE(args.F % 8 == 0, "experts of width ", args.F);
    if (args.rows == 0) return;
    Launch where = elementwise_launch(padded_elements(args.rows, args.F), stream);
    expert_activation_reads(where, args).writes(out, bytes_of_rows<Real>(args.rows, args.F));
    launch(expert_activation_kernel<Real>, where, out, args);
}

template <class Real>
void expert_activation_backward(Real* din, float* dweight, const Real* dout, const ExpertActivation<Real>& args,
                                cudaStream_t stream) {
    ENSURE(args.F % 8 == 0, "experts of width ", args.F);
    if (args.rows == 0) return;
    Launch where{dim3(blocks_for(args.rows, kExpertRowsOfBlock)), dim3(loop_threads(32), kExpertRowsOfBlock), 0,
                 stream};
    expert_activation_reads(where, args).reads(dout, bytes_of_rows<Real>(args.rows, args.F));
    where.writes(din, bytes_of_rows<Real>(args.rows, (args.gated ? 2 : 1) * args.F));
    where.writes(dweight, bytes_of_rows<float>(args.rows, 1));
    launch(expert_activation_backward_kernel<Real>, where, din, dweight, dout, args);
}
