// Adds up gradients of which each tp rank has made a part. They are those of tensors that work inside the residual
// region, if sequence parallelism gives each rank some of its rows (TensorSpec::partial: the norms), and always those
// of norms of heads, which ranks share. Gradients of the weights of KV heads are added up over the ranks that hold
// copies of them.
//
// There is one all-reduce of each kind, packed, after the last micro-batch and after data parallelism's reduction: of
// the elements that this rank owns, so from ZeRO 1 on of its shards, in the type of the gradients. Bytes sent per rank
// and step: 2 (tp - 1) / tp of what is packed, each tensor padded as the storage pads it; for n copies 2 (n - 1) / n of
// the heads.
#pragma once

#include <vector>

#include "llmc/kernels/pack.h"
#include "llmc/model/stage/stage.h"
#include "llmc/parallel/training_groups.h"

class PartialGradients {
public:
    // `gradients`: those of the stage, or delayed ones.
    PartialGradients(Stage& stage, const StateBuffers& gradients, const TrainingGroups& groups, Arena& arena);
    // Adds up the gradients: work queued on the stage's stream from now on sees sums. Does nothing if no gradient is a
    // part of a sum.
    void reduce();

private:
    struct Sum {
        Communicator* group;
        PackTable table;
    };
    cudaStream_t stream_;
    DType type_;
    std::vector<Sum> sums_;
};
