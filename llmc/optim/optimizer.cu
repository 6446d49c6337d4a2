#include "llmc/optim/optimizer.h"

#include <algorithm>
#include <type_traits>

#include "llmc/kernels/init.cuh"
#include "llmc/kernels/optim/update.cuh"
#include "llmc/optim/tensor_blocks.h"

namespace {

constexpr bool kRoundedParameters = std::is_same_v<floatX, bf16>;   // so masters make sense

// The rule of one parameter.
OptimizerKind rule_of(const ParamInfo&, const OptimizerOptions& options) { return options.optimizer; }

bool has_second_moment(OptimizerKind rule) { return rule == OptimizerKind::adamw || rule == OptimizerKind::lamb; }
bool has_ratio(OptimizerKind rule) { return rule == OptimizerKind::lamb || rule == OptimizerKind::lars; }

// G: type of the gradients.
template <class G>
class OptimizerOf : public Optimizer {
public:
    OptimizerOf(Stage& stage, const Gradients<G>& gradients, const OptimizerOptions& options, Arena& arena,
                const TrainingGroups& groups)
        : Optimizer(stage.storage(), options, arena), stage_(stage), options_(options), all_(groups.all) {
        make_tables(gradients, arena);
        for (const OptimizerState& state : states_) {
            if (!state.is_weights) {
                state.values.zero(stream());
            } else if (state.values.unit(0).data() != nullptr) {   // else memory is only counted
                copy_parameters(state.values);
            }
        }
    }

    void sum_squares(double* sum) override { sum_of_squares(sum, norm_table_, false, stream()); }

    void update(int step, float learning_rate, const GradNorm* norm) override {
        UpdateStep how{};
        how.learning_rate = learning_rate;
        how.beta1 = options_.beta1;
        how.beta2 = options_.beta2;
        how.epsilon = options_.eps;
        how.step = step;
        how.seed = options_.seed;
        how.norm = norm;
        how.updates = step - began_;
        how.norms = norms_.data();
        how.trust = options_.lars_trust;
        switch (options_.optimizer) {
            case OptimizerKind::adamw: update_weights<AdamW>(owned_, how, stream()); break;
            case OptimizerKind::sgd: update_weights<Sgd>(owned_, how, stream()); break;
            case OptimizerKind::lars:
                sum_norms_of_all<Lars>(how);
                update_weights<Lars>(owned_, how, stream());
                break;
            case OptimizerKind::lamb:
                update_weights<LambMoments>(owned_, how, stream());
                sum_norms_of_all<Lamb>(how);
                update_weights<Lamb>(owned_, how, stream());
                break;
        }
    }

private:
    cudaStream_t stream() const { return stage_.stream(); }

    template <class Rule>
    void sum_norms_of_all(const UpdateStep& how) {
        norms_.zero(stream());   // of what others own
        sum_norms<Rule>(norms_.data(), sole_, how, stream());
        if (all_ == nullptr) return;
        all_->all_reduce(reinterpret_cast<double*>(norms_.data()), 2 * norms_.size(), ReduceOp::sum, stream());
    }

    // What this rank updates, and of what it adds the squares.
    void make_tables(const Gradients<G>& gradients, Arena& arena) {
        const ParamStorage& storage = stage_.storage();
        const std::vector<int> first_block = first_blocks(stage_.table());
        const auto weights = std::ranges::find_if(states_, &OptimizerState::is_weights);
        std::vector<UpdateRange<floatX, G>> owned, sole;
        std::vector<NormRange<G>> norm;
        for (const TensorPlace& place : storage.tensors()) {
            const ParamInfo& info = stage_.table()[place.param];
            const OptimizerKind rule = rule_of(info, options_);
            const bool adapts = has_ratio(rule) && info.decays;
            auto add = [&](auto& to, const std::vector<OwnedRange>& ranges, auto&& begin_of) {
                for (const BlockRange& part : by_blocks(info.tensor, ranges)) {
                    auto at = [&](const auto& state) { return begin_of(state) + part.local_begin; };
                    to.push_back(
                        {.parameter = at(stage_.parameters()),
                         .master = weights != states_.end() ? at(weights->values) : nullptr,
                         .gradient = at(gradients.kept()),
                         .m = at(state("m")),
                         .v = has_second_moment(rule) ? at(state("v")) : nullptr,
                         .count = part.length,
                         .weight_decay = info.decays ? options_.weight_decay : 0.0f,
                         .tensor_key = info.random_tensor(),
                         .span = part.global,
                         .norms = adapts ? first_block[static_cast<std::size_t>(place.param)] + part.block : -1});
                }
            };
            const std::vector<OwnedRange> once = sole_ranges(info.tensor, storage.place());
            add(owned, owned_ranges(info.tensor, storage.place(), StateKind::optimizer),
                [&](const auto& state) { return state.owned(place.param); });
            if (adapts) add(sole, once, [&](const auto& state) { return state.shard(place.param); });
            for (const OwnedRange& range : once) {
                norm.push_back({gradients.kept().shard(place.param) + range.local_begin, range.length});
            }
        }
        if (has_ratio(options_.optimizer)) {
            norms_ = arena.allocate<TensorNorms>("optimizer tables/tensor norms",
                                                 static_cast<std::size_t>(first_block.back()));
        }
        owned_ = make_update_table(arena, "optimizer tables/update", std::move(owned), stream());
        sole_ = make_update_table(arena, "optimizer tables/tensor norms", std::move(sole), stream(), true);
        norm_table_ = make_norm_table(arena, "optimizer tables/norm", std::move(norm), stream());
    }

    void copy_parameters(const ModelState<float>& weights) {
        if constexpr (kRoundedParameters) {
            for (const TensorPlace& place : stage_.storage().tensors()) {
                cast(weights.tensor(place.param), stage_.parameters().owned(place.param),
                     stage_.storage().padded_elements(place, StateKind::optimizer), stream());
            }
        }
    }

    Stage& stage_;
    OptimizerOptions options_;
    Communicator* all_;                     // or null
    UpdateTable<floatX, G> owned_, sole_;   // what this rank updates; the tensors with norms, each element on one rank
    DeviceBuffer<TensorNorms> norms_;       // of every block of the table, where a rule reads them
    NormTable<G> norm_table_;
};

}   // namespace

std::vector<OptimizerStateSpec> optimizer_states(const OptimizerOptions& options) {
    std::vector<OptimizerStateSpec> states;
    if (options.master_weights && kRoundedParameters) states.push_back({.name = "master", .is_weights = true});
    states.push_back({.name = "m"});
    if (has_second_moment(options.optimizer)) states.push_back({.name = "v"});
    return states;
}

Optimizer::Optimizer(const ParamStorage& storage, const OptimizerOptions& options, Arena& arena)
    : parameters_(storage) {
    for (const OptimizerStateSpec& spec : optimizer_states(options)) states_.emplace_back(spec, storage, arena);
}

const ModelState<float>& Optimizer::state(std::string_view name) const {
    const auto found = std::ranges::find(states_, name, &OptimizerState::name);
    ENSURE(found != states_.end(), "the optimizer keeps no ", name);
    return found->values;
}

double Optimizer::bytes_per_parameter() const {
    auto elements = [](const ParamStorage& storage) {
        double sum = 0;
        for (const TensorPlace& place : storage.tensors()) sum += static_cast<double>(place.padded);
        return sum;
    };
    double bytes = 0;
    for (const OptimizerState& state : states_) bytes += sizeof(float) * elements(state.values.storage());
    return bytes / elements(parameters_);
}

std::unique_ptr<Optimizer> Optimizer::make(Stage& stage, const OptimizerOptions& options, Arena& arena,
                                           const TrainingGroups& groups) {
    auto with = [&]<class G>(const Gradients<G>& gradients) -> std::unique_ptr<Optimizer> {
        return std::make_unique<OptimizerOf<G>>(stage, gradients, options, arena, groups);
    };
    return std::visit(with, stage.gradients());
}
