// Data parallelism and ZeRO: ranks that hold the same part of the model and see other tokens stay one model.
// Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.
//
// clang-format off
//   stage   each rank keeps its shard of   reduces                                 gathers
//   0       nothing: all of everything     gradients, after the last micro-batch   nothing
//   1       moments and masters            likewise, to shards                     every changed unit before its first use
//   2       and gradients                  to shards, every micro-batch            every changed unit before its first use
//   3       and parameters                 to shards, every micro-batch            every unit before each use
// clang-format on
//
// All traffic is on a stream of its own, unit by unit (embedding, layer, head), ordered against the model's stream by
// events alone; the host waits for none of it. Gradients of a unit travel as soon as backward has completed them, while
// it goes on below; under stages 0 and 1 most stages of a pipeline wait with that until backward has ended
// (is_reduced_at_the_end). The parameters of the next piece of work are fetched while the current one runs.
// Layers take turns with memory for whole units (ModelState::rotating), under stages 2 and 3 with that for whole
// gradients too.
//
// Bytes sent per rank and step, f = (N - 1) / N for N ranks, P parameters (each tensor padded to N shards of a multiple
// of 64), p and g the bytes of a parameter and of a gradient, m micro-batches:
//   stage 0: 2fPg    stage 1: fP(g + p)    stage 2: fP(mg + p)    stage 3: mfP(2p + g)
// but for what stage 3 fetches once a micro-batch: the head, because nothing comes between its forward and its
// backward, and an embedding that is not the classifier, because only forward reads it. `zero_traffic` says it to the
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
// A codec sums gradients in its own form instead: between groups if there are several, or else at stages 0 and 1.
//
// Sums over ranks are made of gradients in their type (fp32 unless --grad-dtype bf16; NCCL adds in the type of the
// buffer, the stand-in adds bf16 in fp32 and rounds once), and of the loss and the sum of squares in fp64.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "llmc/base/stream.h"
#include "llmc/model/parameters/param_storage.h"
#include "llmc/model/parameters/unit_hooks.h"
#include "llmc/model/precision.h"
#include "llmc/parallel/gradient_codec.h"
#include "llmc/process/comm.h"

// States of one rank that ZeRO moves between. Kept ones are sharded as the stage says; unsharded ones are whole and, if
// nothing is sharded, the same as the kept ones.
struct ZeroStates {
    ModelState<floatX> parameters, unsharded_parameters;
    StateBuffers gradients, unsharded_gradients;
    bool delayed = false;   // `gradients` are delayed ones, which reduce_delayed() reduces
};

// Null: this rank alone.
struct ZeroGroups {
    Communicator* zero = nullptr;       // the ranks of zero_axes, in the order of group_rank
    Communicator* replicas = nullptr;   // the ranks of replica_axes
    Communicator* holders = nullptr;    // the ranks of holder_axes: in place of both for experts that are dealt out
};

// One rank's part in data parallelism and ZeRO.
class Zero : public UnitHooks {
public:
    // This rank's part in `groups`, whose sizes and ranks must be those of the storage's mesh. Work of the model goes
    // to `compute`; what moves has a stream of its own.
    Zero(const ParamStorage& storage, const ZeroStates& states, const ZeroGroups& groups, Arena& arena,
         cudaStream_t compute);

    // Begins a step, in which the gradients of every unit become ready `micro_batches` times.
    void begin_step(int micro_batches);
    // Ends the reductions after the last micro-batch: work queued on the compute stream from now on sees reduced
    // gradients. If the gradients of a unit have not been ready as often as begin_step() said, this is a bug and names
    // the unit (under stages 0 and 1 it has not been reduced).
    void finish_gradients();
    // Starts the reductions of delayed gradients, which the compute stream has written. They run beside the next step,
    // whose finish_gradients() waits for them, or wait_for_reductions().
    void reduce_delayed();
    void wait_for_reductions() { travelled_.wait(compute_); }
    // Lets `codec` sum over `ZeroGroups::replicas`, or, if there are none, over `zero` at stages 0 and 1. Called once.
    void sum_by(std::unique_ptr<GradientCodec> codec) { codec_ = std::move(codec); }
    // With false, lets gradients travel as they are from now on, and the codec's states stay as they are.
    void use_codec(bool on) { uses_codec_ = on; }
    // Times sums of gradients that are zero, of which a codec keeps nothing: those between groups if there are several.
    // Before the first step; collective.
    ReductionTimes time_reductions();
    // Starts the gathers after work on the compute stream has updated the owned parts of the parameters. Those of later
    // units begin as the passes come near them.
    void parameters_changed();
    // Starts all gathers that have not begun, and waits for them on the compute stream: work queued from now on sees
    // the parameters as their owners have them. Collective under stages 1 and 2.
    void wait_for_all_gather();

    void pass_begins(const std::vector<std::vector<int>>& uses) override;
    void use_begins() override;
    void use_ends() override;
    void gradients_begin(int slot) override;
    void gradients_ready(int slot, bool at_once) override;
    bool communicates(Direction direction) const override;

private:
    bool shards(StateKind state) const { return is_sharded(state, storage_.place().zero_stage); }
    cudaStream_t traffic() const { return stream_.get(); }
    const std::vector<SpanLayout>& spans(int slot) const {
        return storage_.units()[static_cast<std::size_t>(slot)].spans;
    }
    Communicator* group(const SpanLayout& span) const {
        return span.is_expert_parallel() ? groups_.holders : groups_.zero;
    }
    Communicator* replicas(const SpanLayout& span) const {
        return span.is_expert_parallel() ? nullptr : groups_.replicas;
    }
    int owner(const TensorLayout& tensor) const { return storage_.table()[tensor.param].tensor.owner; }
    template <class PerTensor>
    void for_tensors(const SpanLayout& span, Communicator* group, PerTensor&& per_tensor) const;   // in one group call
    void all_gather(floatX* out, const floatX* in, const TensorLayout& tensor, Communicator* group) const;
    void reduce_scatter(TypedPointer out, TypedPointer in, const TensorLayout& tensor, Communicator* group) const;
    void compute_before_traffic();
    bool shares_memory(std::size_t use, int slot) const;
    void fetch(int slot);
    void gather_changed(int end);
    bool is_reduced_at_the_end(int slot) const;
    void reduce_ready();
    void reduce(int slot);
    void sum_between_groups(int slot);
    void reduce_to_shards(int slot, bool first, bool last);

    static constexpr int units_ahead = 1;   // that are gathered beside the use of another

    const ParamStorage& storage_;
    ZeroStates states_;
    ZeroGroups groups_;
    cudaStream_t compute_;
    OwnedStream stream_{StreamPriority::greatest};   // other ranks wait for it
    OwnedEvent computed_, travelled_;
    std::unique_ptr<GradientCodec> codec_;   // null: gradients travel as they are
    bool uses_codec_ = true;                 // false: they do for now
    DeviceBuffer<std::byte> arrived_;        // a unit's shard of one micro-batch's gradients, before it is added
    int micro_batches_ = 1;
    bool reducing_ = false;   // a unit's gradients have left in this step

    std::vector<int> waiting_;   // units whose gradients are ready, and whose reductions are still to be called for
    std::vector<int> ready_;     // per unit: micro-batches of the step whose gradients were ready
    std::vector<OwnedEvent> fetched_;              // per unit
    std::vector<bool> fetching_;                   // stages 1 and 2: gathered since the update, and not waited for yet
    int changed_ = 0;                              // stages 1 and 2: first unit still to be gathered after the update
    std::vector<std::size_t> memory_;              // per unit: the first one that has the same unsharded memory
    std::vector<OwnedEvent> released_, reduced_;   // per memory: its latest use ended, its latest gradients have left
    const std::vector<std::vector<int>>* uses_ = nullptr;
    std::size_t next_use_ = 0;
};
