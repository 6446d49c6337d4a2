#include "llmc/optim/optimizer.h"

#include <algorithm>
#include <map>
#include <type_traits>

#include "llmc/kernels/init.cuh"
#include "llmc/kernels/optim/delta_blocks.cuh"
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

// Returns the blocks of a tensor that each of `replicas` averages: as many for each, so the last ones may be padding.
std::int64_t delta_blocks_of_one(std::int64_t elements, std::int64_t replicas) {
    return (rounded_blocks(elements) + replicas - 1) / replicas;
}

// Returns the elements of the model that a rank owns of a tensor. They come first; after them what pads the shard and
// the vocabulary stays 0, as no level of 2 bits would leave it.
std::int64_t elements_that_travel(const ParamStorage& storage, const TensorLayout& tensor) {
    const std::vector<OwnedRange> ranges = storage.exported_ranges(tensor, StateKind::optimizer);
    return ranges.empty() ? 0 : ranges.back().local_begin + ranges.back().length;
}

// A tensor's part in a compressed move. `share`: blocks that each replica averages.
struct DeltaTensor {
    float* weights;
    const float* begin;
    float* error;
    std::int64_t count, share;
    std::int32_t *blocks, *received;   // words of (R x share) blocks each
};

// Returns the words of 32 bits of a block of elements.
std::int64_t words_of_deltas(OuterCompression compression) {
    return static_cast<std::int64_t>(compression == OuterCompression::int2_ ? words_of_block<Int2Block>()
                                                                            : words_of_block<Int8Block>());
}

// Replaces weights that this rank owns by the mean of the replicas', of which compressed blocks travel: each replica
// averages one share of every tensor for all.
template <class Block>
void average_compressed(const std::vector<DeltaTensor>& tensors, Communicator& outer, cudaStream_t stream) {
    const int R = outer.size();
    auto blocks = [](std::int32_t* words) { return reinterpret_cast<Block*>(words); };
    auto words_of_share = [](const DeltaTensor& t) {
        return static_cast<std::size_t>(t.share) * words_of_block<Block>();
    };
    for (const DeltaTensor& t : tensors) {
        compress_deltas(blocks(t.blocks), R * t.share, t.error, t.weights, t.begin, t.count, stream);
    }
    {
        const Communicator::Group together(outer);
        for (const DeltaTensor& t : tensors) outer.all_to_all(t.received, t.blocks, words_of_share(t), stream);
    }
    for (const DeltaTensor& t : tensors) {
        const std::int64_t first = outer.rank() * t.share, before = std::min(first * kRoundedBlock, t.count),
                           elements = std::min(t.share * kRoundedBlock, t.count - before);
        average_deltas(blocks(t.blocks) + first, blocks(t.received), t.share, R, t.error + before, elements, stream);
    }
    {
        const Communicator::Group together(outer);
        for (const DeltaTensor& t : tensors) {
            const std::size_t words = words_of_share(t);
            outer.all_gather(t.blocks, t.blocks + static_cast<std::size_t>(outer.rank()) * words, words, stream);
        }
    }
    for (const DeltaTensor& t : tensors) apply_deltas(t.weights, t.begin, blocks(t.blocks), t.count, stream);
}

}   // namespace

struct Optimizer::Tables {
    UpdateTable<floatX> directions, orthogonal;   // Muon's matrices: gradients to directions, and these to weights
    UpdateTable<floatX> averages, outer;
    UpdateTable<floatX> owned, counted_once;   // elements it updates; tensors with norms, each element on one rank
    DeviceBuffer<TensorNorms> norms;           // per block of the table, if a rule reads them
    NormTable squares;
    DeviceBuffer<std::int32_t> deltas;   // words sent and received, of one unit; empty: moves are not compressed
};

Optimizer::Optimizer(Stage& stage, const OptimizerOptions& options, Arena& arena, const TrainingGroups& groups)
    : stage_(stage),
      options_(options),
      all_(groups.all),
      outer_(groups.outer),
      zero_(groups.zero),
      tensor_(groups.tensor),
      same_heads_(groups.same_heads),
      tied_(groups.links.tied),
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
    if (is_compressed()) {
        const std::int64_t R = stage.options().replicas;
        std::map<int, std::int64_t> of_units;   // by slot
        for (const TensorLayout& tensor : stage.storage().tensors()) {
            const std::int64_t count = stage.storage().padded_elements(tensor, StateKind::optimizer);
            of_units[tensor.slot] += 2 * R * delta_blocks_of_one(count, R) * words_of_deltas(options.local.compression);
        }
        std::int64_t most = 0;
        for (const auto& of_unit : of_units) most = std::max(most, of_unit.second);
        tables_->deltas = arena.allocate<std::int32_t>("local steps/blocks", static_cast<std::size_t>(most));
    }
    for (const OptimizerState& state : states_) {
        if (!state.is_weights && !state.averages) {
            state.values.zero(stream());
        } else if (state.values.unit(0).data() != nullptr) {   // else memory is only counted
            copy_parameters(state.values);
        }
    }
}

Optimizer::~Optimizer() = default;

// Makes the tables of the elements that this rank updates, and of those whose squares it adds up.
void Optimizer::make_tables(Arena& arena) {
    const ParamStorage& storage = stage_.storage();
    const auto weights = std::ranges::find_if(states_, &OptimizerState::is_weights);
    std::vector<UpdateRange<floatX>> owned, counted_once, directions, orthogonal, averages, outer;
    std::vector<NormRange> norm;
    for (const TensorLayout& place : storage.tensors()) {
        const ParamInfo& info = stage_.table()[place.param];
        const OptimizerKind rule = rule_of(info, options_);
        const bool adapts = reads_norms(rule) && info.decays;
        auto add = [&](auto& to, const std::vector<OwnedRange>& ranges, auto&& begin_of, const char* m = "m",
                       const char* v = "v") {
            for (const BlockRange& part : by_blocks(info.tensor, ranges)) {
                auto address = [&](const auto& state) { return begin_of(state) + part.local_begin; };
                to.push_back({.parameter = address(stage_.parameters()),
                              .master = weights != states_.end() ? address(weights->values) : nullptr,
                              .gradient = address(gradients_),
                              .m = address(state(m)),
                              .v = has_second_moment(rule) || v != std::string_view("v") ? address(state(v)) : nullptr,
                              .count = part.length,
                              .weight_decay = info.decays ? options_.weight_decay : 0.0f,
                              .tensor_key = info.random_tensor(),
                              .span = part.global,
                              .norms = adapts ? first_block_[static_cast<std::size_t>(place.param)] + part.block : -1});
            }
        };
        const std::vector<OwnedRange> once = ranges_counted_once(info.tensor, storage.place());
        const std::vector<OwnedRange> all = owned_ranges(info.tensor, storage.place(), StateKind::optimizer);
        const auto at_owned = [&](const auto& state) { return state.owned(place.param); };
        add(rule == OptimizerKind::muon ? directions : owned, all, at_owned);
        if (options_.ema > 0) add(averages, all, at_owned, "ema");
        if (options_.local.every > 0) add(outer, all, at_owned, "outer_momentum", "outer_weights");
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
    for (UpdateRange<floatX>& range : outer) {
        range.scale = is_compressed() ? 1.0f : 1.0f / static_cast<float>(stage_.options().replicas);
    }
    tables_->outer = make_update_table(arena, "optimizer tables/outer", std::move(outer), stream());
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
    floatX* const direction = matrices_->part(param, block);
    const UpdateRange<floatX> back{.parameter = range.parameter,
                                   .master = range.master,
                                   .gradient = direction,
                                   .m = nullptr,
                                   .v = nullptr,
                                   .count = range.count,
                                   .weight_decay = range.weight_decay,
                                   .tensor_key = range.tensor_key,
                                   .span = range.span,
                                   .scale = muon_scale(stage_.table()[param].tensor, block, options_.muon_scale)};
    range.parameter = direction;
    range.master = nullptr;
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
        of_tensors.trust = iterations.norm_scale;
        of_tensors.epsilon = iterations.norm_epsilon;
    }
    set_update_step(tables_->counted_once, of_tensors, stream());
    set_update_step(tables_->directions, of_tensors, stream());
    set_update_step(tables_->orthogonal, of_tensors, stream());
    how.beta1 = std::min(options_.ema, (1.0f + static_cast<float>(step)) / (10.0f + static_cast<float>(step)));
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
    update_weights<Average>(tables_->averages, stream());   // takes in the weights after the move
}

bool Optimizer::is_compressed() const {
    return outer_ != nullptr && options_.local.every > 0 && options_.local.compression != OuterCompression::none;
}

// Calls use(tensor, weights, count) for the exact weights of each tensor of which this rank owns a part.
template <class Use>
void Optimizer::for_each_owned(const Use& use) {
    const auto masters = std::ranges::find_if(states_, &OptimizerState::is_weights);
    for (const TensorLayout& tensor : stage_.storage().tensors()) {
        const auto count = static_cast<std::size_t>(stage_.storage().padded_elements(tensor, StateKind::optimizer));
        if (count == 0) continue;
        if (masters != states_.end()) {
            use(tensor, masters->values.owned(tensor.param), count);
        } else {
            use(tensor, stage_.parameters().owned(tensor.param), count);
        }
    }
}

// Adds up the replicas' exact weights, of which a rank has what it owns; compressed, it takes their mean.
void Optimizer::sum_weights_of_replicas() {
    if (outer_ == nullptr) return;
    if (is_compressed()) {                               // adds in the order of the replicas on every rank
        std::map<int, std::vector<DeltaTensor>> units;   // by slot; they share the buffer
        for_each_owned([&]<class T>(const TensorLayout& tensor, T* weights, std::size_t count) {
            if constexpr (std::is_same_v<T, float>) {
                std::vector<DeltaTensor>& unit = units[tensor.slot];
                const std::int64_t R = outer_->size(), share = delta_blocks_of_one(static_cast<std::int64_t>(count), R),
                                   words = R * words_of_deltas(options_.local.compression);
                std::int32_t* const blocks =
                    unit.empty() ? tables_->deltas.data() : unit.back().received + words * unit.back().share;
                unit.push_back({weights, state("outer_weights").owned(tensor.param),
                                state("outer_error").owned(tensor.param),
                                elements_that_travel(stage_.storage(), tensor), share, blocks, blocks + words * share});
            } else {
                ENSURE(false, "compressed moves of weights in bf16");
            }
        });
        for (const auto& unit : units) {
            if (options_.local.compression == OuterCompression::int2_) {
                average_compressed<Int2Block>(unit.second, *outer_, stream());
            } else {
                average_compressed<Int8Block>(unit.second, *outer_, stream());
            }
        }
        share_copied_heads();   // their blocks may have other heads' elements too, which differ between the ranks
    } else {
        {
            const Communicator::Group together(*outer_);
            for_each_owned([&](const TensorLayout&, auto* weights, std::size_t count) {
                outer_->all_reduce(weights, count, ReduceOp::sum, stream());
            });
        }
        share_sums();
    }
}

// Gives the first holder's sums to ranks that hold copies, whose own groups may have added in different orders.
void Optimizer::share_sums() {
    const RankLayout& place = stage_.storage().place();
    auto share = [&](Communicator* group, auto&& ranges_of) {
        if (group == nullptr) return;
        const Communicator::Group together(*group);
        for_each_owned([&](const TensorLayout& tensor, auto* weights, std::size_t count) {
            for (const OwnedRange& range : ranges_of(stage_.table()[tensor.param].tensor, count)) {
                group->broadcast(weights + range.local_begin, static_cast<std::size_t>(range.length), 0, stream());
            }
        });
    };
    auto whole = [](bool shared, std::size_t count) {
        return shared ? std::vector{OwnedRange{{}, 0, static_cast<std::int64_t>(count)}} : std::vector<OwnedRange>{};
    };
    share(zero_, [&](const TensorSpec&, std::size_t count) {
        return whole(!is_sharded(StateKind::optimizer, place.zero_stage), count);
    });
    share(tensor_, [&](const TensorSpec& tensor, std::size_t count) {
        return whole(is_whole_on_tp(tensor, place.mesh), count);
    });
    share_copied_heads();
    share(tied_, [&](const TensorSpec& tensor, std::size_t count) { return whole(tensor.tied, count); });
}

// Gives the ranks that hold copies of heads the first one's weights, and what it has left out of them.
void Optimizer::share_copied_heads() {
    if (same_heads_ == nullptr) return;
    const Communicator::Group together(*same_heads_);
    auto share = [&](const TensorLayout& tensor, auto* values) {
        for (const OwnedRange& range : owned_ranges(stage_.table()[tensor.param].tensor, stage_.storage().place(),
                                                    StateKind::optimizer, Heads::copied)) {
            same_heads_->broadcast(values + range.local_begin, static_cast<std::size_t>(range.length), 0, stream());
        }
    };
    for_each_owned([&](const TensorLayout& tensor, auto* weights, std::size_t) {
        share(tensor, weights);
        if (is_compressed()) share(tensor, state("outer_error").owned(tensor.param));
    });
}

bool Optimizer::end_local_steps(int step) {
    if (options_.local.every == 0 || (step % options_.local.every != 0 && step != last_)) return false;
    sum_weights_of_replicas();
    UpdateStep how{};
    how.learning_rate = options_.local.lr;
    how.beta1 = options_.local.momentum;
    how.step = step;
    set_update_step(tables_->outer, how, stream());
    update_weights<OuterNesterov>(tables_->outer, stream());
    return true;
}

std::vector<OptimizerStateSpec> optimizer_states(const OptimizerOptions& options, const MeshShape& mesh) {
    std::vector<OptimizerStateSpec> states;
    if (options.master_weights && kRoundedParameters) states.push_back({.name = "master", .is_weights = true});
    states.push_back({.name = "m"});
    if (has_second_moment(options.optimizer)) states.push_back({.name = "v"});
    if (options.optimizer == OptimizerKind::muon) {
        states.push_back({.name = "v", .keeps = [](const ParamInfo& info) { return !info.orthogonal; }});
    }
    if (options.ema > 0) states.push_back({.name = "ema", .averages = true});
    if (options.local.every > 0) {
        states.push_back({.name = "outer_weights", .averages = true, .outer = true});
        states.push_back({.name = "outer_momentum", .outer = true, .optional = true});
        if (options.local.compression != OuterCompression::none) {
            states.push_back({.name = "outer_error", .optional = true});
        }
    }
    if (const GradCompressionOptions& how = options.grad_compression; how.how != GradCompression::none) {
        const auto keeps = [mesh, how](const ParamInfo& info) { return is_compressed(info.tensor, mesh, how); };
        states.push_back(
            {.name = kGradientError, .optional = true, .of_data_rank = true, .of_compression = true, .keeps = keeps});
        if (how.how == GradCompression::powersgd) {
            states.push_back(
                {.name = kGradientFactor,
                 .optional = true,
                 .of_compression = true,
                 .keeps = keeps,
                 .shape = [mesh, how](const TensorSpec& tensor) { return right_factor_of(tensor, mesh, how.rank); }});
        }
    }
    if (options.staleness > 0) states.push_back({.name = kDelayedGradient, .optional = true, .delayed = true});
    return states;
}

const ModelState<float>& Optimizer::state(std::string_view name) const {
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
        if (!state.delayed && !state.of_compression) bytes += sizeof(float) * elements(state.values.storage());
    }
    return bytes / elements(stage_.storage());
}
