#include "llmc/optim/optimizer.h"

#include <algorithm>
#include <type_traits>

#include "llmc/kernels/adamw.cuh"
#include "llmc/kernels/init.cuh"

namespace {

constexpr bool kRoundedParameters = std::is_same_v<floatX, bf16>;   // so masters make sense

// G: type of the gradients.
template <class G>
class AdamOptimizer : public Optimizer {
public:
    AdamOptimizer(Stage& stage, const Gradients<G>& gradients, const std::vector<ParamGroup>& groups,
                  const OptimizerOptions& options, Arena& arena)
        : Optimizer(stage.storage(), options, arena), stage_(stage), options_(options) {
        make_tables(gradients, groups, arena);
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
        AdamStep adam{};
        adam.learning_rate = learning_rate;
        adam.beta1 = options_.beta1;
        adam.beta2 = options_.beta2;
        adam.epsilon = options_.eps;
        adam.step = step;
        adam.seed = options_.seed;
        adam.norm = norm;
        adamw_update(adam_table_, adam, stream());
    }

private:
    cudaStream_t stream() const { return stage_.stream(); }

    // What this rank updates, and of what it adds the squares.
    void make_tables(const Gradients<G>& gradients, const std::vector<ParamGroup>& groups, Arena& arena) {
        const ParamStorage& storage = stage_.storage();
        const auto weights = std::ranges::find_if(states_, &OptimizerState::is_weights);
        std::vector<AdamRange<floatX, G>> adam;
        for (const ParamGroup& group : groups) {
            for (int param : group.params) {
                const ParamInfo& info = stage_.table()[param];
                if (storage.find(param) == nullptr) continue;
                for (const OwnedRange& owned : owned_ranges(info.tensor, storage.place(), StateKind::optimizer)) {
                    auto at = [&](const ModelState<float>& state) { return state.tensor(param) + owned.local_begin; };
                    adam.push_back({.parameter = stage_.parameters().owned(param) + owned.local_begin,
                                    .master = weights != states_.end() ? at(weights->values) : nullptr,
                                    .gradient = gradients.kept().owned(param) + owned.local_begin,
                                    .m = at(state("m")),
                                    .v = at(state("v")),
                                    .count = owned.length,
                                    .weight_decay = group.weight_decay,
                                    .tensor_key = info.random_tensor(),
                                    .span = owned.global});
                }
            }
        }
        std::vector<NormRange<G>> norm;
        for (const TensorPlace& place : storage.tensors()) {
            for (const OwnedRange& sole : sole_ranges(stage_.table()[place.param].tensor, storage.place())) {
                norm.push_back({gradients.kept().shard(place.param) + sole.local_begin, sole.length});
            }
        }
        adam_table_ = make_adam_table(arena, "optimizer tables/adam", std::move(adam), stream());
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
    AdamTable<floatX, G> adam_table_;
    NormTable<G> norm_table_;
};

}   // namespace

std::vector<OptimizerStateSpec> optimizer_states(const OptimizerOptions& options) {
    std::vector<OptimizerStateSpec> states;
    if (options.master_weights && kRoundedParameters) states.push_back({.name = "master", .is_weights = true});
    states.push_back({.name = "m"});
    states.push_back({.name = "v"});
    return states;
}

std::vector<ParamGroup> param_groups(const ParamTable& table, const OptimizerOptions& options) {
    std::vector<ParamGroup> groups{{UpdateRule::adamw, options.weight_decay, {}}, {UpdateRule::adamw, 0, {}}};
    for (int param = 0; param < table.size(); param++) groups[table[param].decays ? 0 : 1].params.push_back(param);
    return groups;
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

std::unique_ptr<Optimizer> Optimizer::make(Stage& stage, const OptimizerOptions& options, Arena& arena) {
    auto with = [&]<class G>(const Gradients<G>& gradients) -> std::unique_ptr<Optimizer> {
        return std::make_unique<AdamOptimizer<G>>(stage, gradients, param_groups(stage.table(), options), options,
                                                  arena);
    };
    return std::visit(with, stage.gradients());
}
