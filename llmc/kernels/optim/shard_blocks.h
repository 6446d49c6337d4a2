// Blocks of 256 numbers that travel rounded (rounded_blocks.cuh), and a tensor's shards cut into them.
#pragma once

#include <cstdint>

constexpr int kRoundedBlock = 256;   // elements

inline std::int64_t rounded_blocks(std::int64_t elements) { return (elements + kRoundedBlock - 1) / kRoundedBlock; }

// A tensor's shards in blocks. Block b of shard r is block r * stride + b.
struct ShardBlocks {
    std::int64_t ranks = 1, shard = 0;   // elements of a shard
    std::int64_t stride = 0;             // blocks from one shard's to the next one's
    std::int64_t of_shard() const { return rounded_blocks(shard); }
};
