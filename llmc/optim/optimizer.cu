#include "llmc/optim/optimizer.h"

#include <algorithm>
#include <map>
#include <type_traits>

#include "llmc/kernels/init.cuh"
#include "llmc/kernels/optim/update.cuh"
#include "llmc/optim/muon.h"
#include "llmc/optim/tensor_blocks.h"

namespace {

constexpr bool kRoundedParameters = std::is_same_v<floatX, bf16>;   // so masters make sense

// Returns the rule of one parameter.
OptimizerKind rule_of(const ParamInfo& info, const OptimizerOptions& options) {
    const bool others = options.optimizer == OptimizerKind::muon && !info.orthogonal;
    return others ? OptimizerKind::adamw : options.optimizer;
}

bool has_second_moment(OptimizerKind rule) { return rule == OptimizerKind::adamw || rule == OptimizerKind::lamb; }
bool reads_norms(OptimizerKind rule) { return rule != OptimizerKind::adamw && rule != OptimizerKind::sgd; }

}   // namespace

struct Optimizer::Tables {
    UpdateTable<floatX> directions, orthogonal;   // Muon's matrices: gradients to directions, and these to weights
    UpdateTable<floatX> averages;
    UpdateTable<floatX> owned, counted_once;   // elements it updates; tensors with norms, each element on one rank
    DeviceBuffer<TensorNorms> norms;           // per block of the table, if a rule reads them
    NormTable squares;
};

Optimizer::Optimizer(Stage& stage, const OptimizerOptions& options, Arena& arena, const TrainingGroups& groups)
    : stage_(stage),
      options_(options),
      all_(groups.all),
      first_block_(first_blocks(stage.table())),
      tables_(std::make_unique<Tables>()) {
    for (const OptimizerStateSpec& spec : optimizer_states(options, stage.storage().place().mesh)) {
        states_.emplace_back(spec, stage.storage(), arena);
    }
    gradients_ = options.staleness > 0 ? state(kDelayedGradient) : stage.gradients().kept();
    if (options.optimizer == OptimizerKind::muon) {
        matrices_ = std::make_unique<MuonMatrices>(stage, options, arena, groups);
    }
    make_tables(arena);
    for (const OptimizerState& state : states_) {
        if (!state.is_weights && !state.averages) {
            state.values.zero(stream());
        } else if (state.values.unit(0).data != nullptr) {   // else memory is only counted
            copy_parameters(state.values.as<float>());
        }
    }
    if (options.local.every > 0) {
        outer_step_ = std::make_unique<OuterStep>(stage, options.local, states_, groups, arena);
    }
}

Optimizer::~Optimizer() = default;

// Makes the tables of the elements that this rank updates, and of those whose squares it adds up.
void Optimizer::make_tables(Arena& arena) {
    const ParamStorage& storage = stage_.storage();
    const auto weights = std::ranges::find_if(states_, &OptimizerState::is_weights),
               lower = std::ranges::find_if(states_, &OptimizerState::is_lower_half);
    std::vector<UpdateRange<floatX>> owned, counted_once, directions, orthogonal, averages;
    std::vector<NormRange> norm;
    for (const TensorLayout& place : storage.tensors()) {
        const ParamInfo& info = stage_.table()[place.param];
        const OptimizerKind rule = rule_of(info, options_);
        const bool adapts = reads_norms(rule) && info.decays;
        auto add = [&](auto& to, const std::vector<OwnedRange>& ranges, auto&& begin_of, const char* m = "m") {
            for (const BlockRange& part : by_blocks(info.tensor, ranges)) {
                auto address = [&](const auto& state) { return begin_of(state) + part.local_begin; };
                to.push_back({.parameter = address(stage_.parameters()),
                              .master = weights != states_.end() ? address(weights->values.as<float>()) : nullptr,
                              .gradient = address(gradients_),
                              .m = address(buffers(m)),
                              .v = has_second_moment(rule) && &to != &averages ? address(buffers("v")) : TypedPointer(),
                              .count = part.length,
                              .weight_decay = info.decays ? options_.weight_decay : 0.0f,
                              .tensor_key = info.random_tensor(),
                              .span = part.global,
                              .norms = adapts ? first_block_[static_cast<std::size_t>(place.param)] + part.block : -1,
                              .lower = lower != states_.end() ? address(lower->values.as<bf16>()) : nullptr});
            }
        };
        const std::vector<OwnedRange> once = ranges_counted_once(info.tensor, storage.place());
        const std::vector<OwnedRange> all = owned_ranges(info.tensor, storage.place(), StateKind::optimizer);
        const auto at_owned = [&](const auto& state) { return state.owned(place.param); };
        add(rule == OptimizerKind::muon ? directions : owned, all, at_owned);
        if (options_.ema > 0) add(averages, all, at_owned, "ema");
        if (adapts) add(counted_once, once, [&](const auto& state) { return state.shard(place.param); });
        for (const OwnedRange& range : once) {
            norm.push_back({gradients_.shard(place.param) + range.local_begin, range.length});
        }
    }
    if (reads_norms(options_.optimizer)) {
        tables_->norms =
            arena.allocate<TensorNorms>("optimizer tables/tensor norms", static_cast<std::size_t>(first_block_.back()));
    }
    for (UpdateRange<floatX>& range : directions) orthogonal.push_back(through_matrices(range));
    tables_->directions = make_update_table(arena, "optimizer tables/directions", std::move(directions), stream());
    tables_->orthogonal = make_update_table(arena, "optimizer tables/orthogonal", std::move(orthogonal), stream());
    tables_->averages = make_update_table(arena, "optimizer tables/averages", std::move(averages), stream());
    tables_->owned = make_update_table(arena, "optimizer tables/update", std::move(owned), stream());
    tables_->counted_once =
        make_update_table(arena, "optimizer tables/tensor norms", std::move(counted_once), stream(), true);
    tables_->squares = make_norm_table(arena, "optimizer tables/norm", std::move(norm), stream());
}

// Redirects `range` to write the momentum's direction into MuonMatrices::part(); returns the range that applies
// the orthogonalised result to the weights.
UpdateRange<floatX> Optimizer::through_matrices(UpdateRange<floatX>& range) const {
    const auto after = std::ranges::upper_bound(first_block_, range.norms);
    const int param = static_cast<int>(after - first_block_.begin()) - 1, block = range.norms - *(after - 1);
    const MuonMatrices::Place direction = matrices_->part(param, block);
    const UpdateRange<floatX> back{.parameter = range.parameter,
                                   .master = range.master,
                                   .gradient = direction.after,
                                   .m = {},
                                   .v = {},
                                   .count = range.count,
                                   .weight_decay = range.weight_decay,
                                   .tensor_key = range.tensor_key,
                                   .span = range.span,
                                   .scale = muon_scale(stage_.table()[param].tensor, block, options_.muon_scale),
                                   .lower = range.lower};
    range.parameter = direction.before;
    range.master = nullptr, range.lower = nullptr;
    return back;
}

void Optimizer::copy_parameters(const ModelState<float>& weights) {
    for (const TensorLayout& place : stage_.storage().tensors()) {
        cast(weights.tensor(place.param), stage_.parameters().owned(place.param),
             stage_.storage().padded_elements(place, StateKind::optimizer), stream());
    }
}

void Optimizer::sum_squares(double* sum) { sum_of_squares(sum, tables_->squares, false, stream()); }

template <class Rule>
void Optimizer::sum_norms_of_all() {
    tables_->norms.zero(stream());   // for tensors that others own
    sum_norms<Rule>(tables_->norms.data(), tables_->counted_once, stream());
    if (all_ == nullptr) return;
    all_->all_reduce(reinterpret_cast<double*>(tables_->norms.data()), 2 * tables_->norms.size(), ReduceOp::sum,
                     stream());
}

void Optimizer::update_matrices() {
    update_weights<MuonMomentum>(tables_->directions, stream());
    sum_norms_of_all<MuonDirection>();
    update_weights<MuonDirection>(tables_->directions, stream());
    matrices_->orthogonalize();
    update_weights<MuonApply>(tables_->orthogonal, stream());
}

void Optimizer::try_matmuls() {
    if (matrices_) matrices_->try_matmuls();
}

// Sets the values of a step that its launches do not pass.
void Optimizer::set_step(int step, float learning_rate, const GradNorm* norm) {
    UpdateStep how{};
    how.learning_rate = learning_rate;
    how.beta1 = options_.beta1;
    how.beta2 = options_.beta2;
    how.epsilon = options_.eps;
    how.step = step;
    how.seed = options_.seed;
    how.norm = norm;
    how.updates = std::max(step - began_ - options_.staleness, 1);   // in the first late step none is made
    how.norms = tables_->norms.data();
    how.trust = options_.lars_trust;
    set_update_step(tables_->owned, how, stream());
    UpdateStep of_tensors = how;   // for tensors that have norms
    if (options_.optimizer == OptimizerKind::muon) {
        const NewtonSchulz iterations = newton_schulz(options_.muon_coefficients);
        of_tensors.learning_rate = options_.lr > 0 ? learning_rate / options_.lr * options_.muon_lr : 0.0f;
        of_tensors.beta1 = options_.muon_momentum;
        of_tensors.norm_scale = iterations.norm_scale;
        of_tensors.norm_epsilon = iterations.norm_epsilon;
    }
    set_update_step(tables_->counted_once, of_tensors, stream());
    set_update_step(tables_->directions, of_tensors, stream());
    set_update_step(tables_->orthogonal, of_tensors, stream());
    // forgets the first weights soon, as TensorFlow's ExponentialMovingAverage does with num_updates
    how.average_decay = std::min(options_.ema, (1.0f + static_cast<float>(step)) / (10.0f + static_cast<float>(step)));
    set_update_step(tables_->averages, how, stream());
}

void Optimizer::update(int step, float learning_rate, const GradNorm* norm) {
    set_step(step, learning_rate, norm);
    switch (options_.optimizer) {
        case OptimizerKind::adamw: update_weights<AdamW>(tables_->owned, stream()); break;
        case OptimizerKind::muon:
            update_weights<AdamW>(tables_->owned, stream());
            update_matrices();
            break;
        case OptimizerKind::sgd: update_weights<Sgd>(tables_->owned, stream()); break;
        case OptimizerKind::lars:
            sum_norms_of_all<Lars>();
            update_weights<Lars>(tables_->owned, stream());
            break;
        case OptimizerKind::lamb:
            update_weights<LambMoments>(tables_->owned, stream());
            sum_norms_of_all<Lamb>();
            update_weights<Lamb>(tables_->owned, stream());
            break;
    }
    end_local_steps(step);
    update_weights<Average>(tables_->averages, stream());   // takes in the weights after the outer step
}

bool Optimizer::end_local_steps(int step) { return outer_step_ != nullptr && outer_step_->after(step, step == last_); }

void Optimizer::wait_for_flights() {
    if (outer_step_) outer_step_->wait_for_flights();
}

std::vector<int> Optimizer::flights() const { return outer_step_ ? outer_step_->left() : std::vector<int>(); }

std::string Optimizer::restore_flights(const std::vector<int>& left) {
    if (outer_step_ ? outer_step_->restore(left) : left.empty()) return "";
    return text("local steps: what was on its way between the groups is left out",
                outer_step_ ? "; it is sent with the next outer step" : "");
}

std::vector<OptimizerStateSpec> optimizer_states(const OptimizerOptions& options, const MeshShape& mesh) {
    std::vector<OptimizerStateSpec> states;
    if (kRoundedParameters && options.master_weights == MasterWeights::fp32) {
        states.push_back({.name = kMaster, .is_weights = true});
    } else if (kRoundedParameters && options.master_weights == MasterWeights::compact) {
        states.push_back({.name = kLowerHalf, .is_lower_half = true, .type = DType::bf16});
    }
    states.push_back({.name = "m", .type = options.moments});
    if (has_second_moment(options.optimizer)) states.push_back({.name = "v", .type = options.moments});
    if (options.optimizer == OptimizerKind::muon) {
        states.push_back(
            {.name = "v", .type = options.moments, .keeps = [](const ParamInfo& info) { return !info.orthogonal; }});
    }
    if (options.ema > 0) states.push_back({.name = "ema", .averages = true});
    if (options.local.every > 0) {
        states.push_back({.name = "outer_weights", .averages = true, .outer = true});
        states.push_back({.name = "outer_momentum", .outer = true, .optional = true});
        if (options.local.compression != OuterCompression::none) {
            states.push_back({.name = "outer_error", .optional = true});
        }
        if (options.local.has_flights()) states.push_back({.name = "outer_flight", .outer = true, .optional = true});
    }
    if (const GradCompressionOptions& how = options.grad_compression; how.how != GradCompression::none) {
        const auto keeps = [mesh, how](const ParamInfo& info) { return is_compressed(info.tensor, mesh, how); };
        const StateKind sent = compresses_between_groups(mesh) ? StateKind::optimizer : StateKind::gradients;
        states.push_back({.name = kGradientError,
                          .optional = true,
                          .of_sum = true,
                          .of_compression = true,
                          .laid_out_as = sent,
                          .keeps = keeps});
        if (how.how == GradCompression::powersgd) {
            states.push_back(
                {.name = kGradientFactor,
                 .optional = true,
                 .of_compression = true,
                 .laid_out_as = StateKind::gradients,
                 .keeps = keeps,
                 .shape = [mesh, how](const TensorSpec& tensor) { return right_factor_of(tensor, mesh, how.rank); }});
        }
    }
    if (options.staleness > 0) {
        states.push_back(
            {.name = kDelayedGradient, .optional = true, .delayed = true, .laid_out_as = StateKind::gradients});
    }
    return states;
}

const StateBuffers& Optimizer::buffers(std::string_view name) const {
    const auto found = std::ranges::find(states_, name, &OptimizerState::name);
    ENSURE(found != states_.end(), "the optimizer keeps no ", name);
    return found->values;
}

double Optimizer::bytes_per_parameter() const {
    auto elements = [](const ParamStorage& storage) {
        double sum = 0;
        for (const TensorLayout& place : storage.tensors()) {
            sum += static_cast<double>(storage.padded_elements(place, StateKind::optimizer));
        }
        return sum;
    };
    double bytes = 0;
    for (const OptimizerState& state : states_) {
        if (!state.delayed && !state.of_compression)
            bytes += static_cast<double>(size_of(state.type)) * elements(*state.storage);
    }
    return bytes / elements(stage_.storage());
}
