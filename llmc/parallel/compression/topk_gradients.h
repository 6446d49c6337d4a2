// Sums the largest elements of gradients over data-parallel ranks, with error feedback (--grad-compression topk).
//
// Of each chunk of 1,024 elements of its gradient and of what was left out before, a rank sends the largest, m =
// ceil(1024 k) of them for the fraction k, each as its index in the chunk and its value in fp32: 8 bytes. Under ZeRO 0
// an all-gather brings all ranks' entries to all; under ZeRO 1 an all-to-all brings those of a shard to its owner,
// where chunks begin with each shard. Entries are added up in fp32 in the order of the ranks, so all have the same
// bits.
//
// Between groups an all-gather brings the entries of what a rank owns to its owners in the other groups.
//
// Bytes sent per rank and step, for N ranks and n entries of one rank: 8n(N - 1) under ZeRO 0, 8n(N - 1) / N under ZeRO
// 1. With n near kP for P elements that is less than in fp32 for k < 1 / N under ZeRO 0, and for k < 1 / 2 under
// ZeRO 1.
#pragma once

#include <vector>

#include "llmc/kernels/optim/topk_chunks.h"
#include "llmc/parallel/compression/compressed_gradients.h"

class TopkGradients : public CompressedGradients {
public:
    TopkGradients(float fraction, const StateBuffers& gradients, const ModelState<float>& error, Communicator& ranks,
                  Arena& arena);
    void reduce(int slot, cudaStream_t stream) override;

private:
    std::vector<std::vector<Part<TopkChunks>>> units_;   // by slot
    DeviceBuffer<TopkEntry> sent_, received_;            // entries of the largest unit: shard by shard, rank by rank
};

// Returns the bytes of the entries that a rank picks from elements in `shards` shards.
double topk_bytes(float fraction, std::int64_t elements, std::int64_t shards);
