#include "llmc/parallel/zero.h"

#include <algorithm>
#include <vector>

#include "llmc/base/stream.h"
#include "llmc/kernels/accumulate.cuh"

namespace {

template <class P, class G>
class ZeroRank : public Zero {
public:
    // `compute`: stream of the model's work.
    ZeroRank(const ParamStorage& storage, const ZeroStates<P, G>& states, const ZeroGroups& groups, Arena& arena,
             cudaStream_t compute);

    void begin_step(int micro_batches) override;
    void finish_gradients() override;
    void parameters_changed() override;
    void wait_for_all_gather() override;
    void pass_begins(const std::vector<std::vector<int>>& uses) override;
    void use_begins() override;
    void use_ends() override;
    void gradients_begin(int slot) override;
    void gradients_ready(int slot) override;
    bool communicates(Direction direction) const override {
        return shards(StateKind::parameters) || (direction == Direction::backward && reducing_);
    }

private:
    bool shards(StateKind state) const { return is_sharded(state, storage_.place().zero_stage); }
    cudaStream_t traffic() const { return stream_.get(); }
    static std::size_t shard(const TensorPlace& tensor) { return static_cast<std::size_t>(tensor.kept); }
    const std::vector<SpanPlace>& spans(int slot) const {
        return storage_.units()[static_cast<std::size_t>(slot)].spans;
    }
    Communicator* group(const SpanPlace& span) const { return span.is_dealt() ? groups_.holders : groups_.zero; }
    Communicator* replicas(const SpanPlace& span) const { return span.is_dealt() ? nullptr : groups_.replicas; }
    template <class PerTensor>
    void for_tensors(const SpanPlace& span, Communicator* group, PerTensor&& per_tensor) const;   // in one group call
    template <class T>
    void all_gather(T* out, const T* in, const TensorPlace& tensor, Communicator* group) const;
    void reduce_scatter(G* out, const G* in, const TensorPlace& tensor, Communicator* group) const;
    template <class T>
    void copy(T* out, const T* in, const TensorPlace& tensor) const;
    void compute_before_traffic() {
        computed_.record(compute_);
        computed_.wait(traffic());
    }
    bool shares_memory(std::size_t use, int slot) const;
    int owner(const TensorPlace& tensor) const { return storage_.table()[tensor.param].tensor.owner; }
    void fetch(int slot);
    void reduce(int slot);
    void reduce_to_shards(int slot, bool first, bool last);

    const ParamStorage& storage_;
    ZeroStates<P, G> states_;
    ZeroGroups groups_;
    cudaStream_t compute_;
    OwnedStream stream_{StreamPriority::greatest};   // other ranks wait for it
    OwnedEvent computed_, travelled_;
    DeviceBuffer<G> arrived_;   // a unit's shard of one micro-batch's gradients, before it is added
    int micro_batches_ = 1;
    bool reducing_ = false;   // a unit's gradients have left in this step

    std::vector<int> ready_;                       // per unit: micro-batches of the step whose gradients were ready
    std::vector<OwnedEvent> fetched_;              // per unit
    std::vector<bool> fetching_;                   // stages 1 and 2: gathered since the update, and not waited for yet
    std::vector<std::size_t> memory_;              // per unit: the first one that has the same unsharded memory
    std::vector<OwnedEvent> released_, reduced_;   // per memory: its latest use ended, its latest gradients have left
    const std::vector<std::vector<int>>* uses_ = nullptr;
    std::size_t next_use_ = 0;
};

template <class P, class G>
ZeroRank<P, G>::ZeroRank(const ParamStorage& storage, const ZeroStates<P, G>& states, const ZeroGroups& groups,
                         Arena& arena, cudaStream_t compute)
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
    for (const UnitPlace& unit : storage.units()) largest = std::max(largest, unit.kept);
    if (shards(StateKind::gradients) && states_.gradients.exists()) {
        arrived_ = arena.allocate<G>("reduced gradients/shard", static_cast<std::size_t>(largest));
    }
    const std::size_t units = storage.units().size();
    fetched_ = std::vector<OwnedEvent>(units);
    released_ = std::vector<OwnedEvent>(units);
    reduced_ = std::vector<OwnedEvent>(units);
    fetching_.assign(units, false);
    ready_.assign(units, 0);
    for (int slot = 0; slot < static_cast<int>(units); slot++) {
        const int set = storage.layer_set(slot, zero_layer_sets);
        int first = set < 0 ? slot : 0;
        while (set >= 0 && storage.layer_set(first, zero_layer_sets) != set) first++;
        memory_.push_back(static_cast<std::size_t>(first));
    }
}

template <class P, class G>
void ZeroRank<P, G>::begin_step(int micro_batches) {
    micro_batches_ = micro_batches;
    ready_.assign(ready_.size(), 0);
    reducing_ = false;
}

template <class P, class G>
template <class PerTensor>
void ZeroRank<P, G>::for_tensors(const SpanPlace& span, Communicator* group, PerTensor&& per_tensor) const {
    auto for_all = [&] {
        for (int i : span.tensors) per_tensor(storage_.tensors()[static_cast<std::size_t>(i)]);
    };
    if (group == nullptr) return for_all();
    const Communicator::Group together(*group);
    for_all();
}

// Copies what a rank alone would send to itself.
template <class P, class G>
template <class T>
void ZeroRank<P, G>::copy(T* out, const T* in, const TensorPlace& tensor) const {
    if (out == in) return;
    CUDA_CHECK(cudaMemcpyAsync(out, in, sizeof(T) * shard(tensor), cudaMemcpyDeviceToDevice, traffic()));
}

template <class P, class G>
template <class T>
void ZeroRank<P, G>::all_gather(T* out, const T* in, const TensorPlace& tensor, Communicator* group) const {
    if (group == nullptr) return copy(out, in, tensor);
    group->all_gather(out, in, shard(tensor), traffic());
}

template <class P, class G>
void ZeroRank<P, G>::reduce_scatter(G* out, const G* in, const TensorPlace& tensor, Communicator* group) const {
    if (group == nullptr) return copy(out, in, tensor);
    group->reduce_scatter(out, in, shard(tensor), traffic());
}

// ---- parameters

template <class P, class G>
void ZeroRank<P, G>::pass_begins(const std::vector<std::vector<int>>& uses) {
    uses_ = &uses;
    next_use_ = 0;
    if (!shards(StateKind::parameters)) return;
    compute_before_traffic();   // all earlier uses, and the update
    for (int slot : uses[0]) fetch(slot);
}

// True if a unit shares memory with one that this entry of the pass reads; it is fetched once the entry has ended.
template <class P, class G>
bool ZeroRank<P, G>::shares_memory(std::size_t use, int slot) const {
    const std::vector<int>& slots = (*uses_)[use];
    return std::any_of(slots.begin(), slots.end(), [&](int other) {
        return memory_[static_cast<std::size_t>(other)] == memory_[static_cast<std::size_t>(slot)];
    });
}

// Stage 3: fetches the parameters of an entry of the pass while the one before it reads its own. Units that both read
// stay; a unit that shares memory with the one before is fetched late.
template <class P, class G>
void ZeroRank<P, G>::use_begins() {
    auto reads = [&](std::size_t use, int slot) {
        return std::find((*uses_)[use].begin(), (*uses_)[use].end(), slot) != (*uses_)[use].end();
    };
    for (int slot : (*uses_)[next_use_]) {
        const auto unit = static_cast<std::size_t>(slot);
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

template <class P, class G>
void ZeroRank<P, G>::use_ends() {
    if (shards(StateKind::parameters)) {
        for (int slot : (*uses_)[next_use_]) released_[memory_[static_cast<std::size_t>(slot)]].record(compute_);
    }
    next_use_++;
}

// Fetches a unit into its memory, once the last use of that has ended.
template <class P, class G>
void ZeroRank<P, G>::fetch(int slot) {
    released_[memory_[static_cast<std::size_t>(slot)]].wait(traffic());
    for (const SpanPlace& span : spans(slot)) {
        for_tensors(span, group(span), [&](const TensorPlace& tensor) {
            all_gather(states_.unsharded_parameters.tensor(tensor.param), states_.parameters.tensor(tensor.param),
                       tensor, group(span));
        });
    }
    fetched_[static_cast<std::size_t>(slot)].record(traffic());
}

template <class P, class G>
void ZeroRank<P, G>::parameters_changed() {
    if (!shards(StateKind::optimizer) || shards(StateKind::parameters)) return;
    compute_before_traffic();
    for (int slot = 0; slot < static_cast<int>(storage_.units().size()); slot++) {
        for (const SpanPlace& span : spans(slot)) {
            for_tensors(span, group(span), [&](const TensorPlace& tensor) {
                P* const whole = states_.parameters.tensor(tensor.param);
                if (owner(tensor) < 0) {
                    all_gather(whole, states_.parameters.owned(tensor.param), tensor, group(span));
                } else if (group(span) != nullptr) {   // null: experts that this rank holds alone
                    group(span)->broadcast(whole, static_cast<std::size_t>(tensor.padded), owner(tensor), traffic());
                }
            });
        }
        fetched_[static_cast<std::size_t>(slot)].record(traffic());
        fetching_[static_cast<std::size_t>(slot)] = true;
    }
}

template <class P, class G>
void ZeroRank<P, G>::wait_for_all_gather() {
    for (std::size_t unit = 0; unit < fetching_.size(); unit++) {
        if (fetching_[unit]) fetched_[unit].wait(compute_);
        fetching_[unit] = false;
    }
}

// ---- gradients

template <class P, class G>
void ZeroRank<P, G>::gradients_begin(int slot) {
    if (!shards(StateKind::gradients)) return;
    reduced_[memory_[static_cast<std::size_t>(slot)]].wait(compute_);
}

template <class P, class G>
void ZeroRank<P, G>::gradients_ready(int slot) {
    const int before = ready_[static_cast<std::size_t>(slot)]++;
    ENSURE(before < micro_batches_, "gradients of ", storage_.units()[static_cast<std::size_t>(slot)].name,
           " are ready more than ", micro_batches_, " times in a step");
    const bool last = before + 1 == micro_batches_;
    if (!last && !shards(StateKind::gradients)) return;   // more is added first
    compute_before_traffic();
    reducing_ = true;
    if (shards(StateKind::gradients)) {
        reduce_to_shards(slot, before == 0, last);
    } else {
        reduce(slot);
    }
    reduced_[memory_[static_cast<std::size_t>(slot)]].record(traffic());
}

// Stages 0 and 1: reduces in place.
template <class P, class G>
void ZeroRank<P, G>::reduce(int slot) {
    const ModelState<G>& gradients = states_.gradients;
    for (const SpanPlace& span : spans(slot)) {
        Communicator* const ranks = group(span);
        if (!shards(StateKind::optimizer)) {
            G* const first = gradients.unit(slot).data() + span.offset;
            if (ranks) ranks->all_reduce(first, static_cast<std::size_t>(span.padded), ReduceOp::sum, traffic());
            continue;
        }
        for_tensors(span, ranks, [&](const TensorPlace& tensor) {
            G* const whole = gradients.tensor(tensor.param);
            if (owner(tensor) < 0) {
                reduce_scatter(gradients.owned(tensor.param), whole, tensor, ranks);
            } else if (ranks != nullptr) {
                ranks->reduce(whole, static_cast<std::size_t>(tensor.padded), owner(tensor), traffic());
            }
        });
        Communicator* const copies = replicas(span);
        if (copies == nullptr) continue;
        for_tensors(span, copies, [&](const TensorPlace& tensor) {
            const std::size_t kept = shard(tensor);   // 0 if another rank is the owner
            if (kept > 0) copies->all_reduce(gradients.owned(tensor.param), kept, ReduceOp::sum, traffic());
        });
    }
}

// Stages 2 and 3: the first micro-batch's sum is the gradient, later ones are added to it. Replicas add theirs at the
// end: sums over micro-batches travel between groups once a step.
template <class P, class G>
void ZeroRank<P, G>::reduce_to_shards(int slot, bool first, bool last) {
    const UnitPlace& unit = storage_.units()[static_cast<std::size_t>(slot)];
    const DeviceBuffer<G>& kept = states_.gradients.unit(slot);
    G* into = first ? kept.data() : arrived_.data();
    for (const SpanPlace& span : unit.spans) {
        for_tensors(span, group(span), [&](const TensorPlace& tensor) {
            reduce_scatter(into + storage_.tensor_offset(tensor, StateKind::gradients),
                           states_.unsharded_gradients.tensor(tensor.param), tensor, group(span));
        });
    }
    if (!first) accumulate(kept.data(), arrived_.data(), unit.kept, traffic());
    for (const SpanPlace& span : unit.spans) {
        Communicator* const copies = last ? replicas(span) : nullptr;
        if (copies == nullptr) continue;
        copies->all_reduce(kept.data() + span.kept_offset, static_cast<std::size_t>(span.kept), ReduceOp::sum,
                           traffic());
    }
}

template <class P, class G>
void ZeroRank<P, G>::finish_gradients() {
    for (std::size_t slot = 0; slot < ready_.size(); slot++) {
        ENSURE(ready_[slot] == micro_batches_, "gradients of ", storage_.units()[slot].name, " were ready ",
               ready_[slot], " times in a step of ", micro_batches_, " micro-batches");
    }
    travelled_.record(traffic());
    travelled_.wait(compute_);
}

}   // namespace

template <class P, class G>
std::unique_ptr<Zero> make_zero(const ParamStorage& storage, const ZeroStates<P, G>& states, const ZeroGroups& groups,
                                Arena& arena, cudaStream_t compute) {
    return std::make_unique<ZeroRank<P, G>>(storage, states, groups, arena, compute);
}
template std::unique_ptr<Zero> make_zero(const ParamStorage&, const ZeroStates<float, float>&, const ZeroGroups&,
                                         Arena&, cudaStream_t);
#if defined(PRECISION_BF16)
template std::unique_ptr<Zero> make_zero(const ParamStorage&, const ZeroStates<bf16, float>&, const ZeroGroups&, Arena&,
                                         cudaStream_t);
template std::unique_ptr<Zero> make_zero(const ParamStorage&, const ZeroStates<bf16, bf16>&, const ZeroGroups&, Arena&,
                                         cudaStream_t);
#endif
