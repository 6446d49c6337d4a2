// Gradients of which each tp rank has made a part, added up: of tensors that work inside the residual region where
// sequence parallelism gives each rank some of its rows (TensorSpec::partial: the norms), and of norms of heads, which
// ranks share always; and over the ranks that hold copies of heads of keys and values, those of the heads' weights.
//
// One all-reduce of each kind, packed, after the last micro-batch and after data parallelism's reduction: of what this
// rank keeps, so from ZeRO 1 on of its shards. In the type of the gradients. Bytes sent per rank and step:
// 2 (tp - 1) / tp of what is packed, each tensor padded as the storage pads it; for n copies 2 (n - 1) / n of the
// heads.
#pragma once

#include <memory>

#include "llmc/model/stage.h"
#include "llmc/parallel/training_groups.h"

class PartialGradients {
public:
    virtual ~PartialGradients() = default;
    // What is queued on the stage's stream from now on sees sums.
    virtual void reduce() = 0;
};

// Null where no gradient is a part of a sum.
std::unique_ptr<PartialGradients> make_partial_gradients(Stage& stage, const TrainingGroups& groups, Arena& arena);
