// Changing the order of pieces: out[j][i] = in[i][j] for a (rows, columns) table of pieces of adjacent elements.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/base/check.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/vec.cuh"

// in (rows, columns, piece), out (columns, rows, piece). `piece` is a multiple of 8; both are aligned to 16 bytes.
template <class Real>
void transpose_pieces(Real* out, const Real* in, std::int64_t rows, std::int64_t columns, std::int64_t piece,
                      cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

// A thread per eight elements of `out`.
template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    transpose_pieces_kernel(Real* out, const Real* in, unsigned rows, unsigned columns, unsigned eights) {
    const unsigned i = blockIdx.x * kElementwiseThreads + threadIdx.x, piece = i / eights;
    if (i >= rows * columns * eights) return;
    const unsigned row = piece % rows, column = piece / rows;
    copy8(out + std::int64_t{i} * 8, in + (std::int64_t{row * columns + column} * eights + i % eights) * 8);
}

template <class Real>
void transpose_pieces(Real* out, const Real* in, std::int64_t rows, std::int64_t columns, std::int64_t piece,
                      cudaStream_t stream) {
    const std::int64_t n = rows * columns * piece;
    ENSURE(piece % 8 == 0 && packets_fit(out, in), "pieces of ", piece, " elements");
    ENSURE(n / 8 < std::int64_t{1} << 31, n, " elements are more than one launch can cover");   // 32 bits divide faster
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.reads(in, n * sizeof(Real)).writes(out, n * sizeof(Real));
    launch(transpose_pieces_kernel<Real>, where, out, in, static_cast<unsigned>(rows), static_cast<unsigned>(columns),
           static_cast<unsigned>(piece / 8));
}
