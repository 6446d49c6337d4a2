#include "llmc/parallel/partial_gradients.h"

#include <utility>
#include <vector>

#include "llmc/kernels/pack.cuh"

namespace {

template <class G>
class PartialGradientsOf : public PartialGradients {
public:
    PartialGradientsOf(const Stage& stage, const ModelState<G>& gradients, const TrainingGroups& groups, Arena& arena)
        : stream_(stage.stream()) {
        std::vector<PackRange<G>> partial, copied;
        for (const TensorPlace& place : stage.storage().tensors()) {
            const TensorSpec& tensor = stage.table()[place.param].tensor;
            G* const owned = gradients.owned(place.param);
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

}   // namespace

std::unique_ptr<PartialGradients> make_partial_gradients(Stage& stage, const TrainingGroups& groups, Arena& arena) {
    if (groups.tensor == nullptr || !stage.options().backward) return nullptr;
    return with_gradient_type<floatX>(stage.gradients().type(), [&]<class G> {
        return std::unique_ptr<PartialGradients>(
            std::make_unique<PartialGradientsOf<G>>(stage, stage.gradients().kept().as<G>(), groups, arena));
    });
}
