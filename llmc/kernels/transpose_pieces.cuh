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
    transpose_pieces_kernel(Real* out, const Real* in, std::int64_t rows, std::int64_t columns, std::int64_t piece) {
    const std::int64_t i = thread_first_element();
    if (i >= rows * columns * piece) return;
    const std::int64_t row = i / piece % rows, column = i / piece / rows;
    store_packets(out + i, load_packets<8>(in + (row * columns + column) * piece + i % piece));
}

template <class Real>
void transpose_pieces(Real* out, const Real* in, std::int64_t rows, std::int64_t columns, std::int64_t piece,
                      cudaStream_t stream) {
    const std::int64_t n = rows * columns * piece;
    ENSURE(piece % 8 == 0 && packets_fit(out, in), "pieces of ", piece, " elements");
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.reads(in, n * sizeof(Real)).writes(out, n * sizeof(Real));
    launch(transpose_pieces_kernel<Real>, where, out, in, rows, columns, piece);
}
