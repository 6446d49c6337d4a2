#include "llmc/optim/outer_step.h"

#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>

#include "llmc/kernels/optim/update.cuh"

namespace {

// Returns the elements of the model that a rank owns of a tensor. They come first; after them what pads the shard and
// the vocabulary stays 0, as no level of 2 bits would leave it.
std::int64_t elements_that_travel(const ParamStorage& storage, const TensorLayout& tensor) {
    const std::vector<OwnedRange> ranges = storage.exported_ranges(tensor, StateKind::optimizer);
    return ranges.empty() ? 0 : ranges.back().local_begin + ranges.back().length;
}

}   // namespace

struct OuterStep::Fragment {
    UpdateTable<floatX> departure, arrival;   // departure: to the flight; empty without flights
};

// Holds what travels beside the steps.
struct OuterStep::Flights {
    OwnedStream stream{StreamPriority::greatest};   // other ranks wait for it
    OwnedEvent departed;
    std::vector<OwnedEvent> landed;   // by fragment
    std::vector<bool> waited;         // by fragment; true: the stage's stream waits for no more
};

OuterStep::OuterStep(Stage& stage, const LocalSteps& local, const std::vector<OptimizerState>& states,
                     const TrainingGroups& groups, Arena& arena)
    : stage_(stage),
      local_(local),
      states_(states),
      outer_(groups.outer),
      zero_(groups.zero),
      holders_(groups.holders),
      tensor_(groups.tensor),
      same_heads_(groups.same_heads),
      tied_(groups.links.tied),
      left_(static_cast<std::size_t>(local.fragments), 0) {
    const auto masters = std::ranges::find_if(states_, &OptimizerState::is_weights);
    if (masters != states_.end()) masters_ = masters->values.as<float>();
    if (local.has_flights()) {
        flights_ = std::make_unique<Flights>();
        flights_->landed = std::vector<OwnedEvent>(left_.size());
        flights_->waited.assign(left_.size(), true);
    }
    make_tables(arena);
    if (!is_compressed()) return;
    std::map<int, std::vector<std::int64_t>> units;   // by slot: an outer step is one unit after the other
    for (const TensorLayout& tensor : stage.storage().tensors()) {
        units[tensor.slot].push_back(stage.storage().padded_elements(tensor, StateKind::optimizer));
    }
    std::vector<std::vector<std::int64_t>> elements;
    for (const auto& unit : units) elements.push_back(unit.second);
    compressed_ = std::make_unique<CompressedAverage>(local, stage.options().replicas, elements, arena);
}

OuterStep::~OuterStep() = default;

bool OuterStep::is_compressed() const { return outer_ != nullptr && local_.compression != OuterCompression::none; }

ModelState<float> OuterStep::state(std::string_view name) const {
    const auto found = std::ranges::find(states_, name, &OptimizerState::name);
    ENSURE(found != states_.end(), "the optimizer keeps no ", name);
    return found->values.as<float>();
}

void OuterStep::make_tables(Arena& arena) {
    const float mean = is_compressed() ? 1.0f : 1.0f / static_cast<float>(stage_.options().replicas);
    const ParamStorage& storage = stage_.storage();
    for (int fragment = 0; fragment < local_.fragments; fragment++) {
        std::vector<UpdateRange<floatX>> departure, arrival;
        for (const TensorLayout& tensor : storage.tensors()) {
            const ParamInfo& info = stage_.table()[tensor.param];
            if (info.unit % local_.fragments != fragment) continue;
            for (const OwnedRange& range : owned_ranges(info.tensor, storage.place(), StateKind::optimizer)) {
                auto address = [&](const auto& values) { return values.owned(tensor.param) + range.local_begin; };
                UpdateRange<floatX> own{.parameter = address(stage_.parameters()),
                                        .master = masters_ ? address(*masters_) : nullptr,
                                        .gradient = {},
                                        .m = address(state("outer_momentum")),
                                        .v = address(state("outer_weights")),
                                        .count = range.length,
                                        .weight_decay = 0,
                                        .tensor_key = info.random_tensor(),
                                        .span = range.global,
                                        .scale = flights_ ? 1.0f : mean};
                own.gradient = flights_ ? address(state("outer_flight")) : own.v;
                arrival.push_back(own);
                if (!flights_) continue;
                own.m = address(state("outer_flight")), own.scale = mean;
                departure.push_back(own);
            }
        }
        const std::string name = text("local steps/fragment ", fragment);
        fragments_.push_back({make_update_table(arena, name + " leaves", std::move(departure), stage_.stream()),
                              make_update_table(arena, name + " arrives", std::move(arrival), stage_.stream())});
        set_update_step(fragments_.back().departure, UpdateStep{.learning_rate = 0, .step = 1}, stage_.stream());
    }
}

bool OuterStep::after(int step, bool last) {
    if (last) {
        wait_for_flights();
        drop(left_);
        std::ranges::fill(left_, 0);
    }
    bool changed = false;
    for (int fragment = 0; fragment < local_.fragments; fragment++) {
        int& left = left_[static_cast<std::size_t>(fragment)];
        const std::int64_t turn = (fragment + std::int64_t{1}) * local_.every / local_.fragments;
        const bool leaves = last || step % local_.every == turn % local_.every;
        if (left > 0 && (leaves || step >= left + local_.delay)) {
            arrive(fragment);
            take(fragment, step, local_.blend);
            left = 0, changed = true;
        }
        if (!leaves) continue;
        send(fragment);
        if (local_.delay > 0 && !last) {
            left = step;
            continue;
        }
        arrive(fragment);
        take(fragment, step, last ? 0 : local_.blend);
        changed = true;
    }
    return changed;
}

// Calls use(tensor, values, count) for each tensor of a fragment of which this rank owns a part: for what it sends of
// it, which is the exact weights where nothing travels.
template <class Use>
void OuterStep::for_each_owned(int fragment, const Use& use) {
    for (const TensorLayout& tensor : stage_.storage().tensors()) {
        if (stage_.table()[tensor.param].unit % local_.fragments != fragment) continue;
        const auto count = static_cast<std::size_t>(stage_.storage().padded_elements(tensor, StateKind::optimizer));
        if (count == 0) continue;
        if (flights_) {
            use(tensor, state("outer_flight").owned(tensor.param), count);
        } else if (masters_) {
            use(tensor, masters_->owned(tensor.param), count);
        } else {
            use(tensor, stage_.parameters().owned(tensor.param), count);
        }
    }
}

// Begins to send a fragment's weights to all replicas.
void OuterStep::send(int fragment) {
    if (!flights_) return average(fragment, stage_.stream());
    UpdateTable<floatX>& departure = fragments_[static_cast<std::size_t>(fragment)].departure;
    update_weights<OuterDeparture>(departure, stage_.stream());
    flights_->departed.record(stage_.stream());
    flights_->departed.wait(flights_->stream.get());
    average(fragment, flights_->stream.get());
    flights_->landed[static_cast<std::size_t>(fragment)].record(flights_->stream.get());
    flights_->waited[static_cast<std::size_t>(fragment)] = false;
}

// Makes the stage's stream see what has become of a fragment's weights.
void OuterStep::arrive(int fragment) {
    if (flights_) {
        const auto index = static_cast<std::size_t>(fragment);
        if (flights_->waited[index]) return;
        flights_->landed[index].wait(stage_.stream());
        flights_->waited[index] = true;
    }
    share(fragment);
}

void OuterStep::wait_for_flights() {
    for (int fragment = 0; flights_ && fragment < local_.fragments; fragment++) {
        if (left_[static_cast<std::size_t>(fragment)] > 0) arrive(fragment);
    }
}

bool OuterStep::restore(const std::vector<int>& left) {
    std::ranges::fill(left_, 0);
    if (left.empty()) return true;
    if (left.size() == left_.size() && local_.delay > 0) {
        left_ = left;
        return true;
    }
    drop(left);
    return false;
}

// Forgets what was left out of fragments that never arrive: weights still hold their whole delta, which is sent again.
void OuterStep::drop(const std::vector<int>& left) {
    if (!is_compressed()) return;
    for (const TensorLayout& tensor : stage_.storage().tensors()) {
        const auto unit = static_cast<std::size_t>(stage_.table()[tensor.param].unit);
        if (left[unit % left.size()] == 0) continue;
        const auto count = static_cast<std::size_t>(stage_.storage().padded_elements(tensor, StateKind::optimizer));
        CUDA_CHECK(
            cudaMemsetAsync(state("outer_error").owned(tensor.param), 0, count * sizeof(float), stage_.stream()));
    }
}

void OuterStep::take(int fragment, int step, float blend) {
    UpdateTable<floatX>& arrival = fragments_[static_cast<std::size_t>(fragment)].arrival;
    // with topk the error has it
    const float momentum = local_.compression == OuterCompression::topk ? 0.0f : local_.momentum;
    set_update_step(arrival, {.learning_rate = local_.lr, .beta1 = momentum, .step = step, .blend = blend},
                    stage_.stream());
    if (flights_) {
        update_weights<OuterArrival>(arrival, stage_.stream());
    } else {
        update_weights<OuterNesterov>(arrival, stage_.stream());
    }
}

// Adds up over the replicas what a rank sends of a fragment; compressed, it takes their mean.
void OuterStep::average(int fragment, cudaStream_t stream) {
    if (outer_ == nullptr) return;
    if (is_compressed()) return average_compressed(fragment, stream);
    const Communicator::Group together(*outer_);
    for_each_owned(fragment, [&](const TensorLayout&, auto* values, std::size_t count) {
        outer_->all_reduce(values, count, ReduceOp::sum, stream);
    });
}

// Averages one unit after the other: they share a buffer.
void OuterStep::average_compressed(int fragment, cudaStream_t stream) {
    std::map<int, std::vector<AveragedTensor>> units;   // by slot
    for_each_owned(fragment, [&]<class T>(const TensorLayout& tensor, T* values, std::size_t count) {
        if constexpr (std::is_same_v<T, float>) {
            units[tensor.slot].push_back(
                {values, state("outer_weights").owned(tensor.param), state("outer_error").owned(tensor.param),
                 elements_that_travel(stage_.storage(), tensor), static_cast<std::int64_t>(count)});
        } else {
            ENSURE(false, "compressed outer steps of weights in bf16");
        }
    });
    for (const auto& unit : units) compressed_->average(unit.second, *outer_, stream);
}

// Gives the first holder's sums to ranks that hold copies, whose own groups may have added in different orders. Blocks
// need it only for copied heads: they may have other heads' elements too, which differ between the ranks.
void OuterStep::share(int fragment) {
    if (outer_ == nullptr) return;
    if (is_compressed()) return share_copied_heads(fragment);
    const RankLayout& place = stage_.storage().place();
    auto share_in = [&](Communicator* group, auto&& is_shared) {
        if (group == nullptr) return;
        const Communicator::Group together(*group);
        for_each_owned(fragment, [&](const TensorLayout& tensor, auto* values, std::size_t count) {
            if (!is_shared(stage_.table()[tensor.param].tensor)) return;
            group->broadcast(values, count, 0, stage_.stream());
        });
    };
    const bool whole = !is_sharded(StateKind::optimizer, place.zero_stage);
    auto dealt = [&](const TensorSpec& tensor) { return is_expert_parallel(tensor, place.mesh); };
    share_in(zero_, [&](const TensorSpec& tensor) { return whole && !dealt(tensor); });
    share_in(holders_, [&](const TensorSpec& tensor) { return whole && dealt(tensor); });
    share_in(tensor_, [&](const TensorSpec& tensor) { return is_whole_on_tp(tensor, place.mesh) && !dealt(tensor); });
    share_copied_heads(fragment);
    share_in(tied_, [&](const TensorSpec& tensor) { return tensor.tied; });
}

// Gives the ranks that hold copies of heads the first one's weights, and what it has left out of them.
void OuterStep::share_copied_heads(int fragment) {
    if (same_heads_ == nullptr) return;
    const Communicator::Group together(*same_heads_);
    auto share_heads = [&](const TensorLayout& tensor, auto* values) {
        for (const OwnedRange& range : owned_ranges(stage_.table()[tensor.param].tensor, stage_.storage().place(),
                                                    StateKind::optimizer, Heads::copied)) {
            same_heads_->broadcast(values + range.local_begin, static_cast<std::size_t>(range.length), 0,
                                   stage_.stream());
        }
    };
    for_each_owned(fragment, [&](const TensorLayout& tensor, auto* values, std::size_t) {
        share_heads(tensor, values);
        if (is_compressed()) share_heads(tensor, state("outer_error").owned(tensor.param));
    });
}
