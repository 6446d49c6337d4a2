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

#include <memory>

#include "llmc/kernels/pack.cuh"
#include "llmc/model/stage.h"
#include "llmc/process/comm.h"

class PartialGradients {
public:
    virtual ~PartialGradients() = default;
    // Adds up the gradients: work queued on the stage's stream from now on sees sums.
    virtual void reduce() = 0;
};

template <class G>
class PartialGradientsOf : public PartialGradients {
public:
    PartialGradientsOf(const Stage& stage, const Gradients<G>& gradients, const TrainingGroups& groups, Arena& arena)
        : stream_(stage.stream()) {
        std::vector<PackRange<G>> partial, copied;
        for (const TensorPlace& place : stage.storage().tensors()) {
            const TensorSpec& tensor = stage.table()[place.param].tensor;
            G* const owned = gradients.kept().owned(place.param);
            for (const OwnedRange& range :
                 owned_ranges(tensor, stage.storage().place(), StateKind::optimizer, Heads::copied)) {
                copied.push_back({owned + range.local_begin, range.length});
            }
            if (!tensor.partial.contains(Axis::tp) || is_dealt(tensor, stage.storage().place().mesh)) continue;
            if (!tensor.always_partial && !stage.options().sequence_parallel) continue;
            partial.push_back({owned, stage.storage().padded_elements(place, StateKind::optimizer)});
        }
        auto add = [&](Communicator* group, const char* name, std::vector<PackRange<G>> ranges) {
            if (ranges.empty()) return;
            ENSURE(group != nullptr, name, " without a group to add them");
            sums_.push_back({group, make_pack_table(arena, name, std::move(ranges), stream_)});
        };
        add(groups.tensor, "step/partial_gradients", std::move(partial));
        add(groups.same_heads, "step/gradients of copied heads", std::move(copied));
    }
    void reduce() override {
        for (const Sum& sum : sums_) {
            pack(sum.table, stream_);
            sum.group->all_reduce(sum.table.packed.data(), sum.table.packed.size(), ReduceOp::sum, stream_);
            unpack(sum.table, stream_);
        }
    }

private:
    struct Sum {
        Communicator* group;
        PackTable<G> table;
    };
    cudaStream_t stream_;
    std::vector<Sum> sums_;
};

// Returns null if no gradient is a part of a sum.
inline std::unique_ptr<PartialGradients> make_partial_gradients(Stage& stage, const TrainingGroups& groups,
                                                                Arena& arena) {
    if (groups.tensor == nullptr || !stage.options().backward) return nullptr;
    auto with = [&]<class G>(const Gradients<G>& gradients) -> std::unique_ptr<PartialGradients> {
        return std::make_unique<PartialGradientsOf<G>>(stage, gradients, groups, arena);
    };
    return std::visit(with, stage.gradients());
}
