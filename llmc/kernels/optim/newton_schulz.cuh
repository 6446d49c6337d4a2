// Runs Muon's iterations (newton_schulz.h) through the build's matmuls: in bf16 on tensor cores, with sums in fp32.
// Also gathers the pieces of a matrix.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/global_span.h"
#include "llmc/kernels/matmul/matmul.h"
#include "llmc/kernels/optim/newton_schulz.h"
#include "llmc/kernels/rows/block_table.cuh"
#include "llmc/kernels/vec.cuh"

// Scratch: `other` as large as x, `gram` and `polynomial` of the smaller side squared. All of it is overwritten.
template <class Real>
struct NewtonSchulzScratch {
    Real *other, *gram, *polynomial;
};

// Computes square = a I + b gram + c square, all (n, n). Adds a I here, so that X is read once.
template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    polynomial_kernel(Real* square, const Real* gram, std::uint32_t n, Polynomial p, Extent extent) {
    const std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    // elements since the one of the diagonal before; 32 bits suffice, as orthogonalize() checks
    std::uint32_t since_diagonal = static_cast<std::uint32_t>(i) % (n + 1);
    Vec8<float> s = to_floats(load8(square, i, extent));
    const Vec8<float> g = to_floats(load8(gram, i, extent));
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float identity = since_diagonal == 0 ? p.a : 0.0f;
        s[k] = fmaf(p.c, s[k], fmaf(p.b, g[k], identity));
        since_diagonal = since_diagonal == n ? 0 : since_diagonal + 1;
    }
    store8(square, i, extent, round_to<Real>(s));
}

// Makes x(rows, cols), whose norm is at most 1, nearly orthogonal.
template <class Real>
void orthogonalize(Matmul& matmul, Real* x, int rows, int cols, const NewtonSchulz& how,
                   const NewtonSchulzScratch<Real>& scratch, cudaStream_t stream) {
    const bool wide = rows <= cols;
    const int n = std::min(rows, cols);
    const std::int64_t elements = static_cast<std::int64_t>(n) * n;
    ENSURE(elements <= INT64_C(0xffffffff), "a matrix of ", rows, " x ", cols, " to make orthogonal");
    const Extent extent{elements, packets_fit(scratch.gram, scratch.polynomial)};
    Real *from = x, *to = scratch.other;
    for (const Polynomial& p : how.iterations) {
        if (wide) {
            matmul.forward<Real>(scratch.gram, from, from, nullptr, {rows, rows, cols}, stream);
        } else {
            matmul.weight_gradient<Real, Real>(scratch.gram, from, from, {rows, cols, cols}, false, stream);
        }
        matmul.forward<Real>(scratch.polynomial, scratch.gram, scratch.gram, nullptr, {n, n, n}, stream);
        Launch where = elementwise_launch(elements, stream);
        where.reads(scratch.gram, elements * sizeof(Real)).reads(scratch.polynomial, elements * sizeof(Real));
        where.writes(scratch.polynomial, elements * sizeof(Real));
        launch(polynomial_kernel<Real>, where, scratch.polynomial, scratch.gram, static_cast<std::uint32_t>(n), p,
               extent);
        if (wide) {
            matmul.input_gradient<Real>(to, scratch.polynomial, from, {rows, rows, cols}, false, stream);
        } else {
            matmul.forward<Real>(to, from, scratch.polynomial, nullptr, {rows, cols, cols}, stream);
        }
        std::swap(from, to);
    }
    if (from == x) return;
    CUDA_CHECK(cudaMemcpyAsync(x, from, sizeof(Real) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols),
                               cudaMemcpyDeviceToDevice, stream));
}

// A piece of a matrix: consecutive elements of a buffer; `span` gives their places in the matrix. Both are on the
// device.
template <class Real>
struct MatrixPiece {
    Real *piece, *matrix;
    GlobalSpan span;   // counts from the matrix's first element
    std::int64_t count;
    std::int64_t first_block = 0;
};

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    move_pieces_kernel(const MatrixPiece<Real>* pieces, int count, bool back) {
    const MatrixPiece<Real> piece = range_of_block(pieces, count, blockIdx.x);
    const std::int64_t begin = span_of_block(piece, blockIdx.x, kElementwiseBlock).begin + threadIdx.x * 8;
    for (std::int64_t i = begin; i < begin + 8 && i < piece.count; i++) {
        Real& whole = piece.matrix[piece.span.element(i)];
        if (back) {
            piece.piece[i] = whole;
        } else {
            whole = piece.piece[i];
        }
    }
}
