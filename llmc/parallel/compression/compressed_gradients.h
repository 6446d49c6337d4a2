// Sums gradients over data-parallel ranks in fewer bytes, with error feedback (--grad-compression).
//
// Every rank rounds its gradient and what rounding left out before, and sends each rank that one's shard; the owner of
// a shard adds up the blocks of all in fp32, in the order of the ranks. Under ZeRO 1 that is all. Under ZeRO 0 it
// rounds the sum again, for all ranks and itself, and adds what that leaves out to its own error; so all have the same
// bits. Thus what the optimizer has been given and the errors of all ranks add up to all gradients, rounding of
// fp32 apart.
//
// Bytes sent per rank and step, f = (N - 1) / N for N ranks, b the bytes of a block of 256 elements (int8: 260, bf16:
// 512), n blocks, each tensor padded to N shards of whole blocks: 2fnb under ZeRO 0, fnb under ZeRO 1. What is not
// compressed (grad_compression.h) travels as without.
#pragma once

#include <vector>

#include "llmc/kernels/optim/shard_blocks.h"
#include "llmc/model/parameters/param_storage.h"
#include "llmc/parallel/compression/grad_compression.h"
#include "llmc/process/comm.h"

// The sum over ranks in place, unit by unit, for ZeRO stages 0 and 1.
class CompressedGradients {
public:
    // `gradients` and `error` are of this rank, whole, in fp32. `ranks`: those of zero_axes.
    CompressedGradients(GradCompression how, const StateBuffers& gradients, const ModelState<float>& error,
                        Communicator& ranks, Arena& arena);

    bool takes(const TensorLayout& tensor) const { return error_.storage().find(tensor.param) != nullptr; }
    // Sums the gradients of a unit's tensors that it takes: whole, or at ZeRO 1 the part that this rank owns.
    void reduce(int slot, cudaStream_t stream);

private:
    struct Part {   // a tensor's blocks in its unit's
        int param;
        std::int64_t first;
        ShardBlocks shards;
    };
    template <class Block>
    void reduce_blocks(const std::vector<Part>& parts, cudaStream_t stream);

    GradCompression how_;
    StateBuffers gradients_;
    ModelState<float> error_;
    Communicator& ranks_;
    std::vector<std::vector<Part>> units_;         // by slot
    DeviceBuffer<std::int32_t> sent_, received_;   // blocks of the largest unit, shard by shard
};

// Bytes that a rank sends in a step for what is compressed, exactly as Communicator counts.
double compressed_traffic(const ParamStorage& storage, GradCompression how);
