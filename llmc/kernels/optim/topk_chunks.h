// A tensor's shards cut into chunks of 1,024 elements, the largest of which travel (topk_entries.cuh).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

constexpr int kTopkChunk = 1024;   // elements

// An element that travels: where it is in its chunk, and its value.
struct TopkEntry {
    std::int32_t index;
    float value;
};

// Entry e of chunk c of shard s is entry s * stride + c * of_chunk + e. A shard's last chunk may be shorter.
struct TopkChunks {
    std::int64_t shards = 1, shard = 0;   // elements of a shard
    std::int64_t chunks = 0;              // in a shard
    int last = 0;                         // elements of the last chunk
    int of_chunk = 0, of_last = 0;        // entries of a chunk, of the last one
    std::int64_t stride = 0;              // entries from one shard's to the next one's
    std::int64_t of_shard() const { return chunks == 0 ? 0 : (chunks - 1) * of_chunk + of_last; }
};

// Returns how many of a chunk's elements travel: the fraction, rounded up.
inline int topk_entries(int elements, float fraction) {
    constexpr double slack = 1 - 1e-7;   // in fp32, 0.3 x 960 is a little more than 288
    return static_cast<int>(std::ceil(static_cast<double>(fraction) * elements * slack));
}

// Returns chunks of which the fraction travels, rounded up; the stride is that of a tensor alone.
inline TopkChunks topk_chunks(std::int64_t shards, std::int64_t shard, float fraction) {
    TopkChunks how{shards, shard, (shard + kTopkChunk - 1) / kTopkChunk};
    how.last = static_cast<int>(shard - std::max<std::int64_t>(how.chunks - 1, 0) * kTopkChunk);
    how.of_chunk = topk_entries(kTopkChunk, fraction), how.of_last = topk_entries(how.last, fraction);
    how.stride = how.of_shard();
    return how;
}
