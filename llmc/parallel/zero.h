// Data parallelism and ZeRO: ranks that hold the same part of the model and see other tokens stay one model.
// Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
//
// clang-format off
//   stage   each rank keeps its shard of   reduces                                 gathers
//   0       nothing: all of everything     gradients, after the last micro-batch   nothing
//   1       moments and masters            likewise, to shards                     parameters, after the update
//   2       and gradients                  to shards, every micro-batch            parameters, after the update
//   3       and parameters                 to shards, every micro-batch            every unit before each use
// clang-format on
//
// All traffic is on a stream of its own, unit by unit (embedding, layer, head), ordered against the model's stream by
// events alone; the host waits for none of it. Gradients of a unit travel as soon as backward has completed them, while
// it goes on below. Under stage 3 the parameters of the next piece of work are fetched while the current one runs.
// Layers take turns with memory for whole units (ModelState::rotating), under stages 2 and 3 with that for whole
// gradients too.
//
// Bytes sent per rank and step, f = (N - 1) / N for N ranks, P parameters (each tensor padded to N shards of a multiple
// of 64), p and g the bytes of a parameter and of a gradient, m micro-batches:
//   stage 0: 2fPg    stage 1: fP(g + p)    stage 2: fP(mg + p)    stage 3: mfP(2p + g)
// but for what stage 3 fetches once a micro-batch: the head, because nothing comes between its forward and its
// backward, and an embedding that is not the classifier, because only forward reads it. Beside these, loss, norm and
// requests to stop in one all-reduce of all ranks: 2f x 40 bytes a step at every stage. `zero_traffic` says it to the
// byte.
//
// If R groups of N ranks each keep a copy (--zero-group; N is then the group's size), gathers stay within the group.
// Gradients are reduced to shards within it, and once a step, after the last micro-batch, a shard is summed over the R
// ranks that keep it: 2Pg(R - 1) / (RN) more at stages 1, 2 and 3.
//
// Experts that are dealt out (--ep) are a span of their units (param_storage.h): they travel in the group of the ranks
// that hold the same ones, H = dp cp tp / ep of them, by the same formulas. A rank that holds its experts alone sends
// nothing for them.
//
// Under stage 1 a matrix that has an owner (param_storage.h) is reduced to it, and broadcast by it after the update.
// Single ranks then send other amounts, but all of them together as many bytes, padding apart.
//
// Sums over ranks are made of gradients in their type (fp32 unless --grad-dtype bf16; NCCL adds in the type of the
// buffer, the stand-in adds bf16 in fp32 and rounds once), and of the loss and the sum of squares in fp64.
#pragma once

#include <algorithm>
#include <vector>

#include "llmc/base/stream.h"
#include "llmc/kernels/accumulate.cuh"
#include "llmc/model/parameters/param_storage.h"
#include "llmc/model/parameters/unit_hooks.h"
#include "llmc/process/comm.h"

// States of one rank that ZeRO moves between. Kept ones are sharded as the stage says; unsharded ones are whole and, if
// nothing is sharded, the same as the kept ones.
template <class P, class G>
struct ZeroStates {
    ModelState<P> parameters, unsharded_parameters;
    ModelState<G> gradients, unsharded_gradients;
};

// One rank's part in data parallelism and ZeRO.
class Zero : public UnitHooks {
public:
    // Begins a step, in which the gradients of every unit become ready `micro_batches` times.
    virtual void begin_step(int micro_batches) = 0;
    // Ends the reductions after the last micro-batch: work queued on the compute stream from now on sees reduced
    // gradients. If the gradients of a unit have not been ready as often as begin_step() said, this is a bug and names
    // the unit (under stages 0 and 1 it has not been reduced).
    virtual void finish_gradients() = 0;
    // Starts the gathers after work on the compute stream has updated the owned parts of the parameters.
    virtual void parameters_changed() = 0;
    // Waits on the compute stream for the gathers: work queued from now on sees the parameters as their owners have
    // them.
    virtual void wait_for_all_gather() = 0;
};

// True if the span holds experts that are dealt out.
inline bool is_of_experts(const SpanPlace& span) { return span.zero.contains(Axis::holder); }

// Null: this rank alone.
struct ZeroGroups {
    Communicator* zero = nullptr;       // the ranks of zero_axes, in the order of group_rank
    Communicator* replicas = nullptr;   // the ranks of replica_axes
    Communicator* holders = nullptr;    // the ranks of holder_axes: in place of both for experts that are dealt out
};

// P: type of the parameters, G: of the gradients.
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
    Communicator* group(const SpanPlace& span) const { return is_of_experts(span) ? groups_.holders : groups_.zero; }
    Communicator* replicas(const SpanPlace& span) const { return is_of_experts(span) ? nullptr : groups_.replicas; }
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

// Bytes that a rank holds for the model itself, exactly as its buffers are allocated (padding included): kept states,
// of which ZeRO divides more with each stage, and working memory.
struct ZeroMemory {
    double parameters = 0, gradients = 0, optimizer = 0;        // kept
    double unsharded_parameters = 0, unsharded_gradients = 0;   // whole units in turns, and a shard that arrives
    double total() const { return parameters + gradients + optimizer + unsharded_parameters + unsharded_gradients; }
};
// `optimizer_bytes` per parameter: 8 for the moments, 4 more with masters.
inline ZeroMemory zero_memory(const ParamStorage& storage, double parameter_bytes, double gradient_bytes,
                              double optimizer_bytes);

// Doubles that all ranks add in a step, in one all-reduce: Step::Numbers (llmc/run/step.cu).
inline constexpr std::size_t numbers_of_step = 5;

// Logical bytes that a rank sends in a step of `micro_batches`, exactly as Communicator counts them. Padding is
// included.
struct ZeroTraffic {
    double reduce = 0, gather = 0;               // gradients, parameters; in the ZeRO group
    double reduce_to_owner = 0, broadcast = 0;   // likewise, of matrices that have an owner
    double replicas = 0;                         // gradients, between groups
    double numbers = 0;   // loss, requests to stop, checkpoints written, norm; loads and losses of experts
    double total() const { return reduce + gather + reduce_to_owner + broadcast + replicas + numbers; }
};
inline ZeroTraffic zero_traffic(const ParamStorage& storage, int micro_batches, double parameter_bytes,
                                double gradient_bytes);

// ---------------------------------------------------------------------------------------------------------------------

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

// ---- formulas

inline ZeroMemory zero_memory(const ParamStorage& storage, double parameter_bytes, double gradient_bytes,
                              double optimizer_bytes) {
    const int stage = storage.place().zero_stage;
    double unsharded = 0, largest_shard = 0;
    int layers = 0;
    for (const UnitPlace& unit : storage.units()) {
        const double padded = static_cast<double>(unit.padded);
        largest_shard = std::max(largest_shard, static_cast<double>(unit.kept));
        if (!storage.table().is_layer(unit.unit) || ++layers <= zero_layer_sets) unsharded += padded;
    }
    auto kept = [&](StateKind state) {
        double sum = 0;
        for (const UnitPlace& unit : storage.units()) sum += static_cast<double>(storage.unit_elements(unit, state));
        return sum;
    };
    ZeroMemory memory;
    memory.parameters = kept(StateKind::parameters) * parameter_bytes;
    memory.gradients = kept(StateKind::gradients) * gradient_bytes;
    memory.optimizer = kept(StateKind::optimizer) * optimizer_bytes;
    if (is_sharded(StateKind::parameters, stage)) memory.unsharded_parameters = unsharded * parameter_bytes;
    if (is_sharded(StateKind::gradients, stage)) {
        memory.unsharded_gradients = (unsharded + largest_shard) * gradient_bytes;
    }
    return memory;
}

inline ZeroTraffic zero_traffic(const ParamStorage& storage, int micro_batches, double parameter_bytes,
                                double gradient_bytes) {
    const MeshShape& mesh = storage.place().mesh;
    const int stage = storage.place().zero_stage;
    const double m = micro_batches;
    ZeroTraffic traffic;
    auto add_span = [&](const UnitPlace& unit, const SpanPlace& span) {
        const int ranks = group_size(mesh, span.zero), rank = group_rank(mesh, storage.place().at, span.zero);
        const double f = static_cast<double>(ranks - 1) / ranks;
        const double copies = is_of_experts(span) ? 1 : group_size(mesh, replica_axes);
        double padded = static_cast<double>(span.padded);
        for (int i : span.tensors) {
            const TensorPlace& tensor = storage.tensors()[static_cast<std::size_t>(i)];
            const int owner = storage.table()[tensor.param].tensor.owner;
            if (owner < 0 || stage != 1) continue;
            const double whole = static_cast<double>(tensor.padded);
            padded -= whole;
            if (owner == rank) {
                traffic.broadcast += (ranks - 1) * whole * parameter_bytes;
            } else {
                traffic.reduce_to_owner += whole * gradient_bytes;
            }
        }
        // read by one piece of work only: the head, and an embedding that is not the classifier here
        const bool classifies = storage.table().config().tied && storage.stage().head;
        const bool once =
            unit.unit == storage.table().head_unit() || (unit.unit == storage.table().embedding_unit() && !classifies);
        const double reductions = stage == 0 ? 2 : stage == 1 ? 1 : m;
        const double gathers = stage == 0 ? 0 : stage == 3 ? m * (once ? 1 : 2) : 1;
        traffic.reduce += f * padded * gradient_bytes * reductions;
        traffic.gather += f * padded * parameter_bytes * gathers;
        traffic.replicas += 2 * (copies - 1) / copies * static_cast<double>(span.kept) * gradient_bytes;
    };
    for (const UnitPlace& unit : storage.units()) {
        for (const SpanPlace& span : unit.spans) add_span(unit, span);
    }
    const int all = mesh.size();
    const ModelConfig& model = storage.table().config();
    const double of_experts =
        model.experts == 0 ? 0 : 4.0 * static_cast<double>(model.layers * model.experts) + 2 * sizeof(double);
    traffic.numbers = 2.0 * (all - 1) / all * (sizeof(double) * numbers_of_step + of_experts);
    return traffic;
}
