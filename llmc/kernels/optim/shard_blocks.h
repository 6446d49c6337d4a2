// Blocks of 256 numbers that travel rounded (rounded_blocks.cuh), and a tensor's shards cut into them.
#pragma once

#include <algorithm>
#include <cstdint>

constexpr int kRoundedBlock = 256;   // elements

inline std::int64_t rounded_blocks(std::int64_t elements) { return (elements + kRoundedBlock - 1) / kRoundedBlock; }

// A tensor's shards in blocks. Block b of shard r is block r * stride + b. Where the shards have more elements than the
// tensor, the last blocks stand for zeros.
struct ShardBlocks {
    std::int64_t ranks = 1, shard = 0;   // elements of a shard
    std::int64_t elements = 0;           // the tensor has
    std::int64_t stride = 0;             // blocks from one shard's to the next one's
    std::int64_t of_shard() const { return rounded_blocks(shard); }
    // Returns where a shard begins in the tensor, and how many of its elements are the tensor's.
    std::int64_t first(std::int64_t rank) const { return std::min(rank * shard, elements); }
    std::int64_t held(std::int64_t rank) const { return first(rank + 1) - first(rank); }
};

// Returns equal shards, one after the other without a gap; the stride is that of a tensor alone.
inline ShardBlocks equal_shards(std::int64_t ranks, std::int64_t shard) {
    return {ranks, shard, ranks * shard, rounded_blocks(shard)};
}

// Returns shards of as many whole blocks as hold any number of elements; the stride is that of a tensor alone.
inline ShardBlocks shards_of_blocks(std::int64_t ranks, std::int64_t elements) {
    const std::int64_t blocks = (rounded_blocks(elements) + ranks - 1) / ranks;
    return {ranks, blocks * kRoundedBlock, elements, blocks};
}
