// Sums gradients over data-parallel ranks in rounded blocks, with error feedback (--grad-compression bf16, int8).
//
// Every rank rounds its gradient and what rounding left out before, and sends each rank that one's shard; the owner of
// a shard adds up the blocks of all in fp32, in the order of the ranks. Under ZeRO 1 that is all. Under ZeRO 0 it
// rounds the sum again, for all ranks and itself, and adds what that leaves out to its own error; so all have the same
// bits.
//
// Between groups each rank's part of a tensor is cut likewise, in shares of whole blocks, and all need the sum.
//
// Bytes sent per rank and step, f = (N - 1) / N for N ranks, b the bytes of a block of 256 elements (int8: 260, bf16:
// 512), n blocks, each tensor padded to N shards of whole blocks: 2fnb under ZeRO 0, fnb under ZeRO 1. Between R groups
// f = (R - 1) / R and n the blocks of what a rank owns, of each tensor padded to R times whole blocks: 2fnb.
#pragma once

#include <vector>

#include "llmc/kernels/optim/shard_blocks.h"
#include "llmc/parallel/compression/compressed_gradients.h"

class RoundedGradients : public CompressedGradients {
public:
    RoundedGradients(GradCompression how, const StateBuffers& gradients, const ModelState<float>& error,
                     Communicator& ranks, Arena& arena);
    void reduce(int slot, cudaStream_t stream) override;

private:
    template <class Block>
    void reduce_blocks(const std::vector<Part<ShardBlocks>>& parts, cudaStream_t stream);

    GradCompression how_;
    std::vector<std::vector<Part<ShardBlocks>>> units_;   // by slot
    DeviceBuffer<std::int32_t> sent_, received_;          // blocks of the largest unit, shard by shard
};

// Returns the bytes that the blocks of `elements` have, over all shards of `ranks`; `between`: ranks of several groups.
double rounded_bytes(GradCompression how, std::int64_t elements, std::int64_t ranks, bool between);
