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

// Up to three blocks of columns (heads of q, k and v), each cut into as many equal pieces as there are ranks.
struct RankedBlocks {
    std::int64_t piece[3];   // elements of a rank's piece of each block, a multiple of 8
    std::int64_t columns() const { return piece[0] + piece[1] + piece[2]; }   // of one rank
};
// out (ranks, rows, columns of one rank): each rank's pieces of all blocks together; in (rows, blocks, ranks, piece).
template <class Real>
void gather_ranks(Real* out, const Real* in, std::int64_t rows, std::int64_t ranks, const RankedBlocks& blocks,
                  cudaStream_t stream);
// The way back.
template <class Real>
void scatter_ranks(Real* out, const Real* in, std::int64_t rows, std::int64_t ranks, const RankedBlocks& blocks,
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

// A thread per eight elements.
template <bool kGathers, class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    ranked_blocks_kernel(Real* out, const Real* in, unsigned rows, unsigned ranks, unsigned first, unsigned second,
                         unsigned third) {
    const unsigned i = blockIdx.x * kElementwiseThreads + threadIdx.x, own = first + second + third;
    if (i >= rows * ranks * own) return;
    const unsigned rank = i / own / rows, row = i / own % rows, column = i % own;
    const unsigned before = column < first ? 0 : column < first + second ? first : first + second;
    const unsigned piece = column < first ? first : column < first + second ? second : third;
    const std::int64_t blocked =
        (std::int64_t{row} * own + before) * ranks + std::int64_t{rank} * piece + (column - before);
    const std::int64_t from = kGathers ? blocked : std::int64_t{i}, to = kGathers ? std::int64_t{i} : blocked;
    copy8(out + to * 8, in + from * 8);
}

template <bool kGathers, class Real>
void move_ranked_blocks(Real* out, const Real* in, std::int64_t rows, std::int64_t ranks, const RankedBlocks& blocks,
                        cudaStream_t stream) {
    const std::int64_t n = rows * ranks * blocks.columns();
    for (const std::int64_t piece : blocks.piece) ENSURE(piece % 8 == 0, "pieces of ", piece, " elements");
    ENSURE(packets_fit(out, in) && n / 8 < std::int64_t{1} << 31, n, " elements are more than one launch can cover");
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.reads(in, n * sizeof(Real)).writes(out, n * sizeof(Real));
    auto eights = [&](int i) { return static_cast<unsigned>(blocks.piece[i] / 8); };
    launch(ranked_blocks_kernel<kGathers, Real>, where, out, in, static_cast<unsigned>(rows),
           static_cast<unsigned>(ranks), eights(0), eights(1), eights(2));
}

template <class Real>
void gather_ranks(Real* out, const Real* in, std::int64_t rows, std::int64_t ranks, const RankedBlocks& blocks,
                  cudaStream_t stream) {
    move_ranked_blocks<true>(out, in, rows, ranks, blocks, stream);
}
template <class Real>
void scatter_ranks(Real* out, const Real* in, std::int64_t rows, std::int64_t ranks, const RankedBlocks& blocks,
                   cudaStream_t stream) {
    move_ranked_blocks<false>(out, in, rows, ranks, blocks, stream);
}
