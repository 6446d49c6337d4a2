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

// Matrices of one size, each begins `next` elements behind the one before.
struct MatrixBatch {
    int rows, cols, count;
    std::int64_t next;
    int side() const { return std::min(rows, cols); }
    // Elements from one Gram matrix to the next: each begins at a packet.
    std::int64_t next_square() const { return (std::int64_t{side()} * side() + 7) / 8 * 8; }
};

// Memory that a batch needs: `other` as much as the matrices take, `grams` and `polynomials` of its squares. It is
// overwritten.
template <class Real>
struct NewtonSchulzScratch {
    Real *other, *grams, *polynomials;
};

// Computes square = a I + b gram + c square, all (n, n), of the matrix blockIdx.y. Adds a I here, so that X is read
// once.
template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    polynomial_kernel(Real* squares, const Real* grams, std::int64_t next, std::uint32_t n, Polynomial p,
                      Extent extent) {
    const std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    Real* const square = squares + blockIdx.y * next;
    // elements since the one of the diagonal before; 32 bits suffice, as orthogonalize() checks
    std::uint32_t since_diagonal = static_cast<std::uint32_t>(i) % (n + 1);
    Vec8<float> s = to_floats(load8(square, i, extent));
    const Vec8<float> g = to_floats(load8(grams + blockIdx.y * next, i, extent));
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float identity = since_diagonal == 0 ? p.a : 0.0f;
        s[k] = fmaf(p.c, s[k], fmaf(p.b, g[k], identity));
        since_diagonal = since_diagonal == n ? 0 : since_diagonal + 1;
    }
    store8(square, i, extent, round_to<Real>(s));
}

// Makes the matrices of a batch, whose norms are at most 1, nearly orthogonal. The results are in scratch.other, at the
// same distances: five iterations alternate between the two. Four launches an iteration, whatever the batch.
template <class Real>
void orthogonalize(Matmul& matmul, Real* x, const MatrixBatch& batch, const NewtonSchulz& how,
                   const NewtonSchulzScratch<Real>& scratch, cudaStream_t stream) {
    static_assert(std::tuple_size_v<decltype(how.iterations)> % 2 == 1, "the results would be in x");
    const auto [rows, cols, count, next] = batch;
    const bool wide = rows <= cols;
    const int n = batch.side();
    const std::int64_t elements = std::int64_t{n} * n, square = batch.next_square();
    ENSURE(elements <= INT64_C(0xffffffff), "a matrix of ", rows, " x ", cols, " to make orthogonal");
    const Extent extent{elements, packets_fit(scratch.grams, scratch.polynomials)};
    const std::size_t bytes = sizeof(Real) * static_cast<std::size_t>((count - 1) * square + elements);
    Real *from = x, *to = scratch.other;
    for (const Polynomial& p : how.iterations) {
        if (wide) {
            matmul.forward<Real>(scratch.grams, from, from, nullptr,
                                 {rows, rows, cols, 0, 0, 0, {count, square, next, next}}, stream);
        } else {
            matmul.weight_gradient<Real, Real>(scratch.grams, from, from,
                                               {rows, cols, cols, 0, 0, 0, {count, next, next, square}}, false, stream);
        }
        matmul.forward<Real>(scratch.polynomials, scratch.grams, scratch.grams, nullptr,
                             {n, n, n, 0, 0, 0, {count, square, square, square}}, stream);
        Launch where(dim3(blocks_for(elements, kElementwiseBlock), static_cast<unsigned>(count)),
                     dim3(kElementwiseThreads), 0, stream);
        where.reads(scratch.grams, bytes).reads(scratch.polynomials, bytes).writes(scratch.polynomials, bytes);
        launch(polynomial_kernel<Real>, where, scratch.polynomials, scratch.grams, square,
               static_cast<std::uint32_t>(n), p, extent);
        if (wide) {
            matmul.input_gradient<Real>(to, scratch.polynomials, from,
                                        {rows, rows, cols, 0, 0, 0, {count, square, next, next}}, false, stream);
        } else {
            matmul.forward<Real>(to, from, scratch.polynomials, nullptr,
                                 {rows, cols, cols, 0, 0, 0, {count, next, next, square}}, stream);
        }
        std::swap(from, to);
    }
}

// A piece of a matrix: consecutive elements of a buffer; `span` gives their places in the matrix, and in what becomes
// of it. All are on the device.
template <class Real>
struct MatrixPiece {
    Real *piece, *matrix, *orthogonal;
    GlobalSpan span;   // counts from the matrix's first element
    std::int64_t count;
    std::int64_t first_block = 0;
};

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    move_pieces_kernel(const MatrixPiece<Real>* pieces, int count, bool back) {
    const MatrixPiece<Real> piece = range_of_block(pieces, count, blockIdx.x);
    const std::int64_t begin = span_of_block(piece, blockIdx.x, kElementwiseBlock).begin + threadIdx.x * 8;
    if (begin >= piece.count) return;
    GlobalWalk walk(piece.span, begin);
    for (std::int64_t i = begin; i < begin + 8 && i < piece.count; i++, walk.next()) {
        if (back) {
            piece.piece[i] = piece.orthogonal[walk.element()];
        } else {
            piece.matrix[walk.element()] = piece.piece[i];
        }
    }
}
