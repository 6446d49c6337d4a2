// Changes the order of pieces: out[j][i] = in[i][j] for a (rows, columns) table of pieces of adjacent elements.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "llmc/base/check.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/vec.cuh"

// Transposes in (rows, columns, piece) to out (columns, rows, piece). `piece` is a multiple of 8; both are aligned to
// 16 bytes.
template <class Real>
void transpose_pieces(Real* out, const Real* in, std::int64_t rows, std::int64_t columns, std::int64_t piece,
                      cudaStream_t stream);

// Up to three blocks of columns (heads of q, k and v), each cut into as many equal pieces as there are ranks; in the
// second and the third, `copies` neighbouring ranks may have the same piece.
struct RankedBlocks {
    std::int64_t piece[3];   // elements of a rank's piece of each block, a multiple of 8
    std::int64_t copies = 1;
    std::int64_t columns() const { return piece[0] + piece[1] + piece[2]; }   // columns of one rank
};
// Gathers out (ranks, rows, columns of one rank): each rank's pieces of all blocks together, from in (rows, blocks,
// pieces).
template <class Real>
void gather_ranks(Real* out, const Real* in, std::int64_t rows, std::int64_t ranks, const RankedBlocks& blocks,
                  cudaStream_t stream);
// Scatters back: copies are added up, in fp32.
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

// RankedBlocks in units of eight elements: begin of each block in a row of one rank and in a row of all.
struct RankedEights {
    unsigned rows, ranks, own, all;   // widths of the two rows
    unsigned piece[3], copies[3], own_begin[3], all_begin[3];

    __device__ __forceinline__ static unsigned block_of(unsigned column, const unsigned (&begin)[3]) {
        return column < begin[1] ? 0 : column < begin[2] ? 1 : 2;
    }
};

// A thread per eight elements of `out`.
template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads) gather_ranks_kernel(Real* out, const Real* in, RankedEights s) {
    const unsigned i = blockIdx.x * kElementwiseThreads + threadIdx.x;
    if (i >= s.rows * s.ranks * s.own) return;
    const unsigned rank = i / s.own / s.rows, row = i / s.own % s.rows, column = i % s.own;
    const unsigned block = RankedEights::block_of(column, s.own_begin);
    const unsigned in_row =
        s.all_begin[block] + rank / s.copies[block] * s.piece[block] + (column - s.own_begin[block]);
    copy8(out + std::int64_t{i} * 8, in + (std::int64_t{row} * s.all + in_row) * 8);
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads) scatter_ranks_kernel(Real* out, const Real* in, RankedEights s) {
    const unsigned i = blockIdx.x * kElementwiseThreads + threadIdx.x;
    if (i >= s.rows * s.all) return;
    const unsigned row = i / s.all, column = i % s.all, block = RankedEights::block_of(column, s.all_begin);
    const unsigned piece = (column - s.all_begin[block]) / s.piece[block],
                   in_piece = (column - s.all_begin[block]) % s.piece[block], copies = s.copies[block];
    auto from = [&](unsigned rank) {
        return in + ((std::int64_t{rank} * s.rows + row) * s.own + s.own_begin[block] + in_piece) * 8;
    };
    Real* const to = out + std::int64_t{i} * 8;
    if (copies == 1) return copy8(to, from(piece));
    Vec8<float> sum{};
    for (unsigned copy = 0; copy < copies; copy++) {
        const Vec8<float> x = to_floats(load_packets<8>(from(piece * copies + copy)));
#pragma unroll
        for (int k = 0; k < 8; k++) sum[k] += x[k];
    }
    store_packets(to, round_to<Real>(sum));
}

// Copies from rows of `in_columns` eights to rows of so many.
template <class Real, class Kernel>
void move_ranked_blocks(Kernel kernel, Real* out, const Real* in, const RankedEights& s, unsigned in_columns,
                        unsigned out_columns, cudaStream_t stream) {
    const std::int64_t reads = std::int64_t{s.rows} * in_columns * 8, writes = std::int64_t{s.rows} * out_columns * 8;
    ENSURE(packets_fit(out, in) && std::max(reads, writes) / 8 < std::int64_t{1} << 31, writes,
           " elements are more than one launch can cover");
    if (writes == 0) return;
    Launch where = elementwise_launch(writes, stream);
    where.reads(in, reads * sizeof(Real)).writes(out, writes * sizeof(Real));
    launch(kernel, where, out, in, s);
}

inline RankedEights ranked_eights(std::int64_t rows, std::int64_t ranks, const RankedBlocks& blocks) {
    RankedEights s{static_cast<unsigned>(rows), static_cast<unsigned>(ranks), 0, 0, {}, {}, {}, {}};
    for (int i = 0; i < 3; i++) {
        const std::int64_t copies = i == 0 ? 1 : blocks.copies;
        ENSURE(blocks.piece[i] % 8 == 0 && ranks % copies == 0, "pieces of ", blocks.piece[i], " elements for ", copies,
               " of ", ranks, " ranks");
        s.piece[i] = static_cast<unsigned>(blocks.piece[i] / 8);
        s.copies[i] = static_cast<unsigned>(copies);
        s.own_begin[i] = s.own, s.all_begin[i] = s.all;
        s.own += s.piece[i];
        s.all += s.piece[i] * static_cast<unsigned>(ranks / copies);
    }
    return s;
}

template <class Real>
void gather_ranks(Real* out, const Real* in, std::int64_t rows, std::int64_t ranks, const RankedBlocks& blocks,
                  cudaStream_t stream) {
    const RankedEights s = ranked_eights(rows, ranks, blocks);
    move_ranked_blocks(gather_ranks_kernel<Real>, out, in, s, s.all, s.ranks * s.own, stream);
}
template <class Real>
void scatter_ranks(Real* out, const Real* in, std::int64_t rows, std::int64_t ranks, const RankedBlocks& blocks,
                   cudaStream_t stream) {
    const RankedEights s = ranked_eights(rows, ranks, blocks);
    move_ranked_blocks(scatter_ranks_kernel<Real>, out, in, s, s.ranks * s.own, s.all, stream);
}
