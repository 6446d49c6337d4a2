// Parts of tensors that optimizers look at as a whole: a tensor, or each block of its rows (q, k, v), because blocks
// are matrices of their own that only lie together.
#pragma once

#include <algorithm>
#include <vector>

#include "llmc/mesh/shard.h"
#include "llmc/model/parameters/param_table.h"

inline int blocks_of(const TensorSpec& tensor) { return std::max(static_cast<int>(tensor.blocks.size()), 1); }

struct BlockRange : OwnedRange {
    int block;
};

// Cuts ranges where blocks begin. Ranges of blocks are consecutive elements, because a block is whole rows.
inline std::vector<BlockRange> by_blocks(const TensorSpec& tensor, const std::vector<OwnedRange>& ranges) {
    std::vector<BlockRange> parts;
    for (const OwnedRange& range : ranges) {
        if (blocks_of(tensor) == 1) parts.push_back({range, 0});
        std::int64_t begin = 0;   // first global element of the block
        for (int block = 0; block < blocks_of(tensor) && blocks_of(tensor) > 1; block++) {
            const std::int64_t end = begin + tensor.blocks[static_cast<std::size_t>(block)] * tensor.cols;
            const std::int64_t first = std::max(range.global.first, begin),
                               past = std::min(range.global.first + range.length, end);
            if (first < past) {
                parts.push_back({{{first}, range.local_begin + first - range.global.first, past - first}, block});
            }
            begin = end;
        }
    }
    return parts;
}

// Numbers all blocks of a table: returns the number of each parameter's first block, and last the number of all blocks.
inline std::vector<int> first_blocks(const ParamTable& table) {
    std::vector<int> first{0};
    for (const ParamInfo& info : table.all()) first.push_back(first.back() + blocks_of(info.tensor));
    return first;
}
