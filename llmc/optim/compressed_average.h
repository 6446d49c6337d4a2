// Averages the replicas' weights, of which what travels is compressed: how far each went from where they were together
// (LocalSteps::compression).
//
// int8, int2   Blocks of 256 deltas (llmc/kernels/optim/rounded_blocks.cuh). Replicas deal out the blocks, each
// averages
//              one piece, rounds it again and hands it to all: bytes of 2n(R - 1) / R blocks for n blocks.
// topk         The largest deltas of each 1,024 (llmc/kernels/optim/topk_entries.cuh), 8 bytes each, that all replicas
//              gather: 8n(R - 1) bytes for n deltas. What is left out is kept, and shrinks by the momentum b before the
//              next deltas are added to it, e = b e + d (Sarfi et al., "Communication efficient LLM pre-training with
//              SparseLoCo", 2025): it stands for the outer step's momentum, which is then 0.
//
// What is left out of int8 and int2 goes along the next time as it is. All add in the order of the replicas, so they
// come to the same bits.
#pragma once

#include <vector>

#include "llmc/base/arena.h"
#include "llmc/optim/optimizer_options.h"
#include "llmc/process/comm.h"

// One tensor's part that a rank owns. After `count` elements of the model come those that pad it to `padded`, and stay
// 0.
struct AveragedTensor {
    float* weights;
    const float* begin;   // the weights after the last outer step
    float* error;         // the sum of what was left out so far
    std::int64_t count, padded;
};

class CompressedAverage {
public:
    // `units`: padded elements of the tensors that may be averaged in one call, for each of the calls.
    CompressedAverage(const LocalSteps& local, int replicas, const std::vector<std::vector<std::int64_t>>& units,
                      Arena& arena);

    // Replaces the weights by the mean of all replicas'.
    void average(const std::vector<AveragedTensor>& unit, Communicator& outer, cudaStream_t stream) const;

private:
    template <class Block>
    void average_blocks(const std::vector<AveragedTensor>& unit, Communicator& outer, cudaStream_t stream) const;
    void average_largest(const std::vector<AveragedTensor>& unit, Communicator& outer, cudaStream_t stream) const;
    std::int64_t words_of(std::int64_t elements) const;

    LocalSteps local_;
    std::int64_t replicas_;
    DeviceBuffer<std::int32_t> words_;   // sent and received by a call
};
