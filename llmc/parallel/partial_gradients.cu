#include "llmc/parallel/partial_gradients.h"

#include <utility>

#include "llmc/parallel/gradient_sums.h"

PartialGradients::PartialGradients(Stage& stage, const StateBuffers& gradients, const TrainingGroups& groups,
                                   Arena& arena)
    : stream_(stage.stream()), type_(gradients.type()) {
    if (groups.tensor == nullptr || !stage.options().backward) return;
    const auto size = static_cast<std::int64_t>(size_of(type_));
    std::vector<PackRange> partial, copied;
    for (const TensorLayout& place : stage.storage().tensors()) {
        const TensorSpec& tensor = stage.table()[place.param].tensor;
        const TypedPointer owned = gradients.owned(place.param);
        for (const OwnedRange& range :
             owned_ranges(tensor, stage.storage().place(), StateKind::optimizer, Heads::copied)) {
            copied.push_back({(owned + range.local_begin).data, range.length * size});
        }
        if (!tensor.partial.contains(Axis::tp) || is_expert_parallel(tensor, stage.storage().place().mesh)) continue;
        if (!tensor.always_partial && !stage.options().sequence_parallel) continue;
        partial.push_back({owned.data, stage.storage().padded_elements(place, StateKind::optimizer) * size});
    }
    auto add = [&](Communicator* group, const char* name, std::vector<PackRange> ranges) {
        if (ranges.empty()) return;
        ENSURE(group != nullptr, name, " without a group to add them");
        sums_.push_back({group, make_pack_table(arena, name, std::move(ranges), stream_)});
    };
    add(groups.tensor, "step/partial_gradients", std::move(partial));
    add(groups.same_heads, "step/gradients of copied heads", std::move(copied));
}

void PartialGradients::reduce() {
    for (const Sum& sum : sums_) {
        pack(sum.table, stream_);
        sum_gradients(*sum.group, {sum.table.packed.data(), type_}, sum.table.packed.size() / size_of(type_), stream_);
        unpack(sum.table, stream_);
    }
}
