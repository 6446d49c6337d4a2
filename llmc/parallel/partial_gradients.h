// Gradients of which each tp rank has made a part, added up: of tensors that work inside the residual region where
// sequence parallelism gives each rank some of its rows (TensorSpec::partial: the norms), and of norms of heads, which
// ranks share always.
//
// One all-reduce of all of them together, packed, after the last micro-batch and after data parallelism's reduction: of
// what this rank keeps, so from ZeRO 1 on of its shards. In the type of the gradients. Bytes sent per rank and step:
// 2 (tp - 1) / tp of what is packed, each tensor padded as the storage pads it.
#pragma once

#include <memory>

#include "llmc/kernels/pack.cuh"
#include "llmc/model/stage.h"
#include "llmc/process/comm.h"

class PartialGradients {
public:
    virtual ~PartialGradients() = default;
    // What is queued on the stage's stream from now on sees sums.
    virtual void reduce() = 0;
};

template <class G>
class PartialGradientsOf : public PartialGradients {
public:
    PartialGradientsOf(const Stage& stage, const Gradients<G>& gradients, Communicator& group, Arena& arena)
        : group_(group), stream_(stage.stream()) {
        std::vector<PackRange<G>> ranges;
        for (const TensorPlace& place : stage.storage().tensors()) {
            const TensorSpec& tensor = stage.table()[place.param].tensor;
            if (!tensor.partial.contains(Axis::tp)) continue;
            if (!tensor.always_partial && !stage.options().sequence_parallel) continue;
            const std::int64_t count = stage.storage().padded_elements(place, StateKind::optimizer);
            ranges.push_back({gradients.kept().owned(place.param), count});
        }
        table_ = make_pack_table(arena, "step/partial_gradients", std::move(ranges), stream_);
    }
    void reduce() override {
        if (table_.packed.size() == 0) return;
        pack(table_, stream_);
        group_.all_reduce(table_.packed.data(), table_.packed.size(), ReduceOp::sum, stream_);
        unpack(table_, stream_);
    }

private:
    Communicator& group_;
    cudaStream_t stream_;
    PackTable<G> table_;
};

// Null where no gradient is a part of a sum. `group`: the tp ranks; may be null.
inline std::unique_ptr<PartialGradients> make_partial_gradients(Stage& stage, Communicator* group, Arena& arena) {
    if (group == nullptr || !stage.options().backward) return nullptr;
    auto with = [&]<class G>(const Gradients<G>& gradients) -> std::unique_ptr<PartialGradients> {
        return std::make_unique<PartialGradientsOf<G>>(stage, gradients, *group, arena);
    };
    return std::visit(with, stage.gradients());
}
