#include "llmc/parallel/zero.h"

#include <algorithm>
#include <utility>

#include "llmc/kernels/accumulate.cuh"
#include "llmc/kernels/least_time.h"
#include "llmc/parallel/gradient_sums.h"
#include "llmc/parallel/zero_formulas.h"

static std::size_t shard(const TensorLayout& tensor) { return static_cast<std::size_t>(tensor.kept); }

Zero::Zero(const ParamStorage& storage, const ZeroStates& states, const ZeroGroups& groups, Arena& arena,
           cudaStream_t compute)
    : storage_(storage), states_(states), groups_(groups), compute_(compute) {
    auto require = [&](const Communicator* group, AxisSet axes) {
        const MeshShape& mesh = storage.place().mesh;
        const int size = group_size(mesh, axes), rank = group_rank(mesh, storage.place().at, axes);
        const int its_size = group == nullptr ? 1 : group->size(), its_rank = group == nullptr ? 0 : group->rank();
        ENSURE(its_size == size && its_rank == rank, "rank ", its_rank, " of ", its_size, " in group ",
               group == nullptr ? "none" : group->name(), ", where the storage has it as ", rank, " of ", size);
    };
    require(groups.zero, zero_axes);
    require(groups.replicas, replica_axes);
    if (storage.place().mesh.ep > 1) require(groups.holders, holder_axes);
    std::int64_t largest = 0;
    for (const UnitLayout& unit : storage.units()) largest = std::max(largest, unit.kept);
    if (shards(StateKind::gradients) && states_.gradients.exists()) {
        arrived_ = arena.allocate<std::byte>("reduced gradients/shard",
                                             static_cast<std::size_t>(largest) * size_of(states_.gradients.type()));
    }
    const std::size_t units = storage.units().size();
    fetched_ = std::vector<OwnedEvent>(units);
    released_ = std::vector<OwnedEvent>(units);
    reduced_ = std::vector<OwnedEvent>(units);
    fetching_.assign(units, false);
    changed_ = static_cast<int>(units);
    ready_.assign(units, 0);
    for (int slot = 0; slot < static_cast<int>(units); slot++) {
        const int set = storage.layer_set(slot, zero_layer_sets);
        int first = set < 0 ? slot : 0;
        while (set >= 0 && storage.layer_set(first, zero_layer_sets) != set) first++;
        memory_.push_back(static_cast<std::size_t>(first));
    }
}

void Zero::begin_step(int micro_batches) {
    micro_batches_ = micro_batches;
    ready_.assign(ready_.size(), 0);
    waiting_.clear();
    reducing_ = false;
}

template <class PerTensor>
void Zero::for_tensors(const SpanLayout& span, Communicator* group, PerTensor&& per_tensor) const {
    auto for_all = [&] {
        for (int i : span.tensors) per_tensor(storage_.tensors()[static_cast<std::size_t>(i)]);
    };
    if (group == nullptr) return for_all();
    const Communicator::Group together(*group);
    for_all();
}

// Copies what a rank alone would send to itself.
static void copy(void* out, const void* in, std::size_t bytes, cudaStream_t stream) {
    if (out == in) return;
    CUDA_CHECK(cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, stream));
}

void Zero::all_gather(floatX* out, const floatX* in, const TensorLayout& tensor, Communicator* group) const {
    if (group == nullptr) return copy(out, in, sizeof(floatX) * shard(tensor), traffic());
    group->all_gather(out, in, shard(tensor), traffic());
}

void Zero::reduce_scatter(TypedPointer out, TypedPointer in, const TensorLayout& tensor, Communicator* group) const {
    if (group == nullptr) return copy(out.data, in.data, size_of(in.type) * shard(tensor), traffic());
    with_gradient_type<floatX>(
        in.type, [&]<class G> { group->reduce_scatter(out.as<G>(), in.as<G>(), shard(tensor), traffic()); });
}

void Zero::compute_before_traffic() {
    computed_.record(compute_);
    computed_.wait(traffic());
}

// ---- parameters

void Zero::pass_begins(const std::vector<std::vector<int>>& uses) {
    uses_ = &uses;
    next_use_ = 0;
    if (!shards(StateKind::parameters)) return;
    compute_before_traffic();   // all earlier uses, and the update
    for (int slot : uses[0]) fetch(slot);
}

// True if a unit shares memory with one that this entry of the pass reads; it is fetched once the entry has ended.
bool Zero::shares_memory(std::size_t use, int slot) const {
    const std::vector<int>& slots = (*uses_)[use];
    return std::any_of(slots.begin(), slots.end(), [&](int other) {
        return memory_[static_cast<std::size_t>(other)] == memory_[static_cast<std::size_t>(slot)];
    });
}

// Stage 3: fetches the parameters of an entry of the pass while the one before it reads its own. Units that both read
// stay; a unit that shares memory with the one before is fetched late.
void Zero::use_begins() {
    auto reads = [&](std::size_t use, int slot) {
        return std::find((*uses_)[use].begin(), (*uses_)[use].end(), slot) != (*uses_)[use].end();
    };
    for (int slot : (*uses_)[next_use_]) {
        const auto unit = static_cast<std::size_t>(slot);
        gather_changed(slot + 1 + units_ahead);
        if (shards(StateKind::parameters) && next_use_ > 0 && shares_memory(next_use_ - 1, slot) &&
            !reads(next_use_ - 1, slot)) {
            fetch(slot);
        }
        if (shards(StateKind::parameters) || fetching_[unit]) fetched_[unit].wait(compute_);
        fetching_[unit] = false;
    }
    if (!shards(StateKind::parameters) || next_use_ + 1 == uses_->size()) return;
    for (int slot : (*uses_)[next_use_ + 1]) {
        if (!shares_memory(next_use_, slot)) fetch(slot);
    }
}

void Zero::use_ends() {
    if (shards(StateKind::parameters)) {
        for (int slot : (*uses_)[next_use_]) released_[memory_[static_cast<std::size_t>(slot)]].record(compute_);
    }
    next_use_++;
}

// Fetches a unit into its memory, once the last use of that has ended.
void Zero::fetch(int slot) {
    released_[memory_[static_cast<std::size_t>(slot)]].wait(traffic());
    for (const SpanLayout& span : spans(slot)) {
        for_tensors(span, group(span), [&](const TensorLayout& tensor) {
            all_gather(states_.unsharded_parameters.tensor(tensor.param), states_.parameters.tensor(tensor.param),
                       tensor, group(span));
        });
    }
    fetched_[static_cast<std::size_t>(slot)].record(traffic());
}

void Zero::parameters_changed() {
    if (!shards(StateKind::optimizer) || shards(StateKind::parameters)) return;
    compute_before_traffic();
    changed_ = 0;
    // a pipeline's stages wait for each other, and must not wait for one unit of each after the other
    gather_changed(storage_.place().mesh.pp > 1 ? static_cast<int>(storage_.units().size()) : units_ahead);
}

// Gathers changed units below `end`, in their order. Not all at once: NCCL starts the collectives of a device in the
// order of the host's calls, so that those of the layers would wait until the last gather begins.
void Zero::gather_changed(int end) {
    for (; changed_ < std::min(end, static_cast<int>(storage_.units().size())); changed_++) {
        for (const SpanLayout& span : spans(changed_)) {
            for_tensors(span, group(span), [&](const TensorLayout& tensor) {
                floatX* const whole = states_.parameters.tensor(tensor.param);
                if (owner(tensor) < 0) {
                    all_gather(whole, states_.parameters.owned(tensor.param), tensor, group(span));
                } else if (group(span) != nullptr) {   // null: experts that this rank holds alone
                    group(span)->broadcast(whole, static_cast<std::size_t>(tensor.padded), owner(tensor), traffic());
                }
            });
        }
        fetched_[static_cast<std::size_t>(changed_)].record(traffic());
        fetching_[static_cast<std::size_t>(changed_)] = true;
    }
}

void Zero::wait_for_all_gather() {
    gather_changed(static_cast<int>(storage_.units().size()));
    for (std::size_t unit = 0; unit < fetching_.size(); unit++) {
        if (fetching_[unit]) fetched_[unit].wait(compute_);
        fetching_[unit] = false;
    }
}

bool Zero::communicates(Direction direction) const {
    return shards(StateKind::parameters) || states_.delayed || (direction == Direction::backward && reducing_);
}

// ---- gradients

void Zero::gradients_begin(int slot) {
    if (!shards(StateKind::gradients)) return;
    reduce_ready();
    reduced_[memory_[static_cast<std::size_t>(slot)]].wait(compute_);
}

// True if a unit's reduction waits for the end of the stage's backward. NCCL starts a device's collectives in the order
// of the host's calls: if reductions take longer than backward, a pipeline stage that calls for them at once sends its
// own gradients on late, then so does the stage before it, and so on. The first stage ends last, and sends nothing on
// from its first chunk; the others have the time until then. (Megatron-LM has --delay-grad-reduce for it.)
bool Zero::is_reduced_at_the_end(int slot) const {
    if (shards(StateKind::gradients) || storage_.place().mesh.pp == 1) return false;
    const StageUnits& stage = storage_.stage();
    return storage_.place().at.pp > 0 || slot > stage.chunks.front().size();   // slot 0 is the embedding
}

void Zero::gradients_ready(int slot, bool at_once) {
    if (shards(StateKind::gradients)) reduce_ready();
    const int before = ready_[static_cast<std::size_t>(slot)]++;
    ENSURE(before < micro_batches_, "gradients of ", storage_.units()[static_cast<std::size_t>(slot)].name,
           " are ready more than ", micro_batches_, " times in a step");
    const bool last = before + 1 == micro_batches_;
    if (states_.delayed || (!last && !shards(StateKind::gradients))) return;   // more is added first
    compute_before_traffic();
    waiting_.push_back(slot);
    if (!is_reduced_at_the_end(slot) && !reduces_behind_fetch(storage_.place().zero_stage, at_once)) reduce_ready();
}

void Zero::reduce_ready() {
    for (const int unit : std::exchange(waiting_, {})) {
        const auto slot = static_cast<std::size_t>(unit);
        reducing_ = true;
        if (shards(StateKind::gradients)) {
            reduce_to_shards(unit, ready_[slot] == 1, ready_[slot] == micro_batches_);
        } else {
            reduce(unit);
        }
        reduced_[memory_[slot]].record(traffic());
    }
}

// Stages 0 and 1: reduces in place.
void Zero::reduce(int slot) {
    const StateBuffers& gradients = states_.gradients;
    GradientCodec* const codec =
        uses_codec_ && groups_.replicas == nullptr ? codec_.get() : nullptr;   // else between groups, below
    if (codec) codec->reduce(slot, traffic());
    auto travels = [&](const TensorLayout& tensor) { return !codec || !codec->takes(tensor); };
    for (const SpanLayout& span : spans(slot)) {
        Communicator* const ranks = group(span);
        if (!shards(StateKind::optimizer) && codec) {
            for_tensors(span, ranks, [&](const TensorLayout& tensor) {
                const auto count = static_cast<std::size_t>(tensor.padded);
                if (travels(tensor)) sum_gradients(*ranks, gradients.tensor(tensor.param), count, traffic());
            });
            continue;
        }
        if (!shards(StateKind::optimizer)) {
            const TypedPointer first = gradients.unit(slot) + span.offset;
            if (ranks) sum_gradients(*ranks, first, static_cast<std::size_t>(span.padded), traffic());
            continue;
        }
        for_tensors(span, ranks, [&](const TensorLayout& tensor) {
            if (!travels(tensor)) return;
            const TypedPointer whole = gradients.tensor(tensor.param);
            if (owner(tensor) < 0) {
                reduce_scatter(gradients.owned(tensor.param), whole, tensor, ranks);
            } else if (ranks != nullptr) {
                with_gradient_type<floatX>(whole.type, [&]<class G> {
                    ranks->reduce(whole.as<G>(), static_cast<std::size_t>(tensor.padded), owner(tensor), traffic());
                });
            }
        });
    }
    sum_between_groups(slot);
}

// Sums the shards of a unit's gradients over the ranks that keep them.
void Zero::sum_between_groups(int slot) {
    GradientCodec* const codec = uses_codec_ && groups_.replicas != nullptr ? codec_.get() : nullptr;
    if (codec) codec->reduce(slot, traffic());
    for (const SpanLayout& span : spans(slot)) {
        Communicator* const copies = replicas(span);
        if (copies == nullptr) continue;
        if (codec == nullptr && shards(StateKind::gradients)) {   // shards lie side by side
            const auto kept = static_cast<std::size_t>(span.kept);
            sum_gradients(*copies, states_.gradients.unit(slot) + span.kept_offset, kept, traffic());
            continue;
        }
        for_tensors(span, copies, [&](const TensorLayout& tensor) {
            if (codec && codec->takes(tensor)) return;
            const std::size_t kept = shard(tensor);   // 0 if another rank is the owner
            if (kept > 0) sum_gradients(*copies, states_.gradients.owned(tensor.param), kept, traffic());
        });
    }
}

ReductionTimes Zero::time_reductions() {
    compute_before_traffic();
    states_.gradients.zero(traffic());
    const auto seconds = [&](bool uses_codec) {
        use_codec(uses_codec);
        return least_seconds(
            [&] {
                for (int slot = 0; slot < static_cast<int>(storage_.units().size()); slot++) {
                    groups_.replicas != nullptr ? sum_between_groups(slot) : reduce(slot);
                }
            },
            traffic(), 2);
    };
    ReductionTimes times;
    times.as_they_are = seconds(false);
    times.by_codec = seconds(true);
    return times;
}

// Stages 2 and 3: the first micro-batch's sum is the gradient, later ones are added to it. Replicas add theirs at the
// end: sums over micro-batches travel between groups once a step.
void Zero::reduce_to_shards(int slot, bool first, bool last) {
    const UnitLayout& unit = storage_.units()[static_cast<std::size_t>(slot)];
    const TypedPointer kept = states_.gradients.unit(slot), arrived{arrived_.data(), kept.type};
    const TypedPointer into = first ? kept : arrived;
    for (const SpanLayout& span : unit.spans) {
        for_tensors(span, group(span), [&](const TensorLayout& tensor) {
            reduce_scatter(into + storage_.tensor_offset(tensor, StateKind::gradients),
                           states_.unsharded_gradients.tensor(tensor.param), tensor, group(span));
        });
    }
    if (!first) {
        with_gradient_type<floatX>(kept.type,
                                   [&]<class G> { accumulate(kept.as<G>(), arrived.as<G>(), unit.kept, traffic()); });
    }
    if (last) sum_between_groups(slot);
}

void Zero::finish_gradients() {
    for (std::size_t slot = 0; slot < ready_.size(); slot++) {
        ENSURE(ready_[slot] == micro_batches_, "gradients of ", storage_.units()[slot].name, " were ready ",
               ready_[slot], " times in a step of ", micro_batches_, " micro-batches");
    }
    reduce_ready();
    if (!states_.delayed) travelled_.record(traffic());
    wait_for_reductions();
}

void Zero::reduce_delayed() {
    gather_changed(static_cast<int>(storage_.units().size()));   // the next forward needs them before these sums
    compute_before_traffic();
    for (std::size_t slot = storage_.units().size(); slot > 0; slot--) reduce(static_cast<int>(slot) - 1);
    travelled_.record(traffic());
}
