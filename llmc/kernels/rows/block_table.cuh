// Handles many tensors in one launch: a table of ranges on the device, each cut into blocks of equal size.
//
// Every range has `count`, its number of elements, and `first_block`, the number of its first block in the launch,
// filled here. Cuts depend on the ranges alone, so sums over blocks have the same order in every run.
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

// Requires that the gradients of all ranges have one type: a launch is made for it.
template <class Range>
void require_one_type(const std::vector<Range>& ranges) {
    for (const Range& range : ranges) {
        ENSURE(range.gradient.type == ranges.front().gradient.type, "gradients of ", name_of(range.gradient.type),
               " beside ", name_of(ranges.front().gradient.type));
    }
}

// Returns the range that a block belongs to: the last one that begins at or before it and is not empty.
template <class Range>
__device__ __forceinline__ const Range& range_of_block(const Range* ranges, int count, std::int64_t block) {
    int low = 0, high = count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (ranges[middle].first_block <= block)
            low = middle;
        else
            high = middle - 1;
    }
    return ranges[low];   // an empty range shares its first block with the next range, which wins
}

// Elements of a range that a block handles, begin .. end-1. Its threads take eight at a time in turns:
//     for (i = span.begin + threadIdx.x * 8; i < span.end; i += blockDim.x * 8)
struct BlockSpan {
    std::int64_t begin, end;
};
template <class Range>
__device__ __forceinline__ BlockSpan span_of_block(const Range& range, std::int64_t block,
                                                   std::int64_t elements_per_block) {
    const std::int64_t begin = (block - range.first_block) * elements_per_block, end = begin + elements_per_block;
    return {begin, end < range.count ? end : range.count};
}
