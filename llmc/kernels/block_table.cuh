// Many tensors in one launch: a table of ranges on the device, each cut into blocks of equal size.
//
// Every range has a `count` of elements and the number of its first block in the launch, `first_block`, filled here. Cuts
// depend on the ranges alone, so sums over blocks have the same order in every run.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "llmc/kernels/elementwise.cuh"

// Numbers the blocks of all ranges; returns how many there are.
template <class Range>
std::int64_t number_blocks(std::vector<Range>& ranges, std::int64_t elements_per_block) {
    std::int64_t blocks = 0;
    for (Range& range : ranges) {
        range.first_block = blocks;
        blocks += blocks_for(range.count, elements_per_block);
    }
    return blocks;
}

// The range that a block belongs to: the last one that begins at or before it and is not empty.
template <class Range>
__device__ __forceinline__ const Range& range_of_block(const Range* ranges, int count, std::int64_t block) {
    int low = 0, high = count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (ranges[middle].first_block <= block) low = middle;
        else high = middle - 1;
    }
    return ranges[low];   // an empty range shares its first block with the next, which is later and so wins
}

// A block's elements are dealt to its warps in contiguous parts, `turns` times 32 lanes of eight elements: wide accesses
// on a GPU, and on a CPU, where one thread makes all its turns before the next begins, a part that stays in the cache.
constexpr int kWarpPiece = 32 * 8;
__device__ __forceinline__ int piece_of_warp(int turns) {
    return static_cast<int>(threadIdx.x / 32 * turns * kWarpPiece + threadIdx.x % 32 * 8);
}
