// Sums gradients over data-parallel ranks as products of thin matrices, with error feedback (--grad-compression
// powersgd; llmc/kernels/optim/low_rank.cuh).
//
// Ranks add up the left factors of a unit's matrices, make them orthogonal, each alike, and add up the right factors.
// The product is the sum; under ZeRO 1 a rank writes the part that it owns. Right factors, alike on all ranks, are the
// state `gradient_factor`, with which the next step begins.
//
// Bytes sent per rank and step, f = (N - 1) / N for N ranks, at stages 0 and 1: 8fr(n + m) for a matrix (n, m) and rank
// r, where a tensor's right factors are padded to N shards (llmc/mesh/shard.h).
#pragma once

#include <vector>

#include "llmc/kernels/optim/low_rank.h"
#include "llmc/parallel/compression/compressed_gradients.h"

class LowRankGradients : public CompressedGradients {
public:
    LowRankGradients(int rank, const StateBuffers& gradients, const CompressionStates& states, Communicator& ranks,
                     Arena& arena);
    void reduce(int slot, cudaStream_t stream) override;

private:
    struct Matrices : LowRank {
        std::int64_t of_shard() const { return of_left(); }
        std::int64_t stride = 0;   // floats of the unit's left factors
    };
    ModelState<float> factor_;                         // on the right
    std::vector<std::vector<Part<Matrices>>> units_;   // by slot
    DeviceBuffer<float> left_, partials_;              // memory for the largest unit, and for the largest tensor
};

// Returns the bytes of a tensor's factors, over all ranks of the sum alike.
double low_rank_bytes(const TensorSpec& tensor, const MeshShape& mesh, int rank);
