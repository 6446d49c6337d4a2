// Tiles of bf16 in shared memory, laid out for ldmatrix.
#pragma once

#include <cuda_runtime.h>

#include "llmc/kernels/ptx/ptx.cuh"

// Returns true if two blocks with so much shared memory fit a multiprocessor of sm_90 and sm_100: 228 KiB, of which
// each block takes 1 KiB more than it asks for.
constexpr bool fits_twice(int shared_bytes) { return 2 * (shared_bytes + 1024) <= 228 * 1024; }

// A tile of rows of D bf16, 16-byte chunks swizzled: chunk c of row r lies at chunk c ^ s(r). Eight adjacent rows read
// at one chunk (as ldmatrix does) then fall on all 32 banks, without padding. Rows of 128 bytes or a multiple would all
// start at the same bank and need three bits of the row number; rows of 192 bytes already alternate between two halves
// and need two, rows of 160 bytes one.
template <int D>
struct SwizzledTile {
    static_assert(D % 16 == 0, "one step of the products covers 16 channels");
    static constexpr int chunks = D / 8;
    static constexpr int span = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : 2;   // chunks permuted among themselves

    // Returns the byte offset of a chunk.
    __host__ __device__ static int offset(int row, int chunk) {
        return (row * chunks + (chunk ^ row / (8 / span) % span)) * 16;
    }
    // Returns the address of the same chunk in pair `pair` of a row, given the address of chunk 0 or 1 of the row. It
    // takes two instructions on the address, so kernels need no register for every pair. The tile must be aligned to
    // 128 bytes.
    __host__ __device__ static SharedAddress at_pair(SharedAddress address, int pair) {
        constexpr int pairs = span / 2;
        return (address ^ static_cast<SharedAddress>(pair % pairs * 32)) + pair / pairs * span * 16;
    }
    __host__ __device__ static constexpr int bytes(int rows) { return rows * D * 2; }
};
