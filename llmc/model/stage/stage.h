// A rank's part of a GPT, and the actions of a step on it: forward, backward_input and backward_weight of one chunk of
// layers for one micro-batch. One device holds one chunk: everything.
//
//   residual(0)   = embedding(tokens)                    in the first chunk
//   residual(l+1) = layer l (residual(l))
//   loss          = head(residual(L), targets)           in the last chunk; in training with its backward
// A list of actions gives their order (llmc/parallel/schedule.h), and Pipeline carries it out
// (llmc/parallel/pipeline.h). Any order is allowed in which forward of a chunk comes before its backward_input, that
// before its backward_weight, and each micro-batch passes through the chunks in order and back; so any number of
// micro-batches may be in flight, as far as there is room (micro_batches.h).
//
// Losses and gradients are normalised by the global number of tokens of the step, given as `dloss`. Everything is
// asynchronous on one stream, and deterministic.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "llmc/mesh/context_cut.h"
#include "llmc/model/batch.h"
#include "llmc/model/embedding.h"
#include "llmc/model/head.h"
#include "llmc/model/layer/expert_ranks.h"
#include "llmc/model/layer/layer.h"
#include "llmc/model/layer/router_bias.h"
#include "llmc/model/parameters/unit_hooks.h"
#include "llmc/model/stage/expert_totals.h"
#include "llmc/model/stage/stage_options.h"
#include "llmc/model/weights.h"

class Stage {
public:
    Stage(const ModelConfig& config, const StageOptions& options, Arena& arena, cudaStream_t stream);
    ~Stage();   // in stage.cpp, so that not every file that has a stage compiles it
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;

    const ModelConfig& config() const { return config_; }
    const StageOptions& options() const { return options_; }
    const ParamStorage& storage() const { return *storage_; }
    const ParamTable& table() const { return storage_->table(); }
    cudaStream_t stream() const { return stream_; }
    Matmul& matmul() { return matmul_; }
    CoreAttention& attention() { return *attention_; }
    const CoreAttention& attention() const { return *attention_; }
    MicroBatches& micro_batches() { return *micro_batches_; }

    const ModelState<floatX>& parameters() const { return parameters_; }   // this rank's part
    // Returns the parameters that actions read: the same, or under ZeRO-3 whole units, valid only while hooks have
    // fetched them.
    const ModelState<floatX>& unsharded_parameters() const { return unsharded_; }
    Gradients& gradients() { return gradients_; }

    // Hooks that are told about every pass; null: none. The caller keeps them alive.
    UnitHooks* hooks() const { return hooks_; }
    void set_hooks(UnitHooks* hooks) { hooks_ = hooks; }

    // ---- sizes of the current micro-batches; cp ranks share their tokens evenly
    const RankSizes& sizes() const { return sizes_; }
    int tokens() const { return sizes_.rows(); }
    // Number of this rank among those that read other samples, over all replicas, and their number.
    int data_rank() const { return options_.replica * options_.place.mesh.dp + options_.place.at.dp; }
    int data_ranks() const { return options_.replicas * options_.place.mesh.dp; }
    ContextCut context() const { return {options_.place.mesh.cp, options_.ulysses, options_.place.at.cp}; }
    std::vector<TokenRange> token_ranges() const { return ::token_ranges(context(), options_.T); }   // per sequence
    std::size_t attended_tokens() const {   // elements of MicroBatch::starts; 0 unless documents are masked
        return options_.document_mask ? static_cast<std::size_t>(tokens()) * static_cast<std::size_t>(options_.ulysses)
                                      : 0;
    }
    // Runs micro-batches of another shape in the same memory, until changed again (sampling): at most as many tokens as
    // the stage was made for.
    void set_batch_shape(int B, int T);

    // ---- experts
    // Sets ForwardPass::sequence_share for the next steps.
    void set_sequence_share(float share) { sequence_share_ = share; }
    const ExpertTotalsMemory& expert_totals() const { return expert_totals_; }
    void begin_expert_totals() { expert_totals_.begin(stream_); }
    RouterBias& router_bias() { return router_bias_; }
    const RouterBias& router_bias() const { return router_bias_; }

    // ---- actions
    int chunks() const { return static_cast<int>(options_.chunks.size()); }
    const Chunk& chunk(int index) const { return options_.chunks[static_cast<std::size_t>(index)]; }

    // Units whose parameters each piece of an action's work reads, as UnitHooks::pass_begins takes them. A pass is all
    // actions between two updates; begin_pass() takes the reads of all its actions, before the first of them.
    using UnitReads = std::vector<std::vector<int>>;
    void add_forward_reads(UnitReads& reads, int chunk_index, Purpose purpose) const;
    void add_backward_reads(UnitReads& reads,
                            int chunk_index) const;   // for backward_input; backward_weight reads none
    void begin_pass(const UnitReads& reads) const;    // `reads` outlives the pass

    bool forward_reads_batch(int chunk_index, Purpose purpose) const;
    bool backward_reads_batch(int chunk_index) const;

    // Runs a chunk's forward. A chunk that follows another on this rank takes its input from that one's output; except
    // in training it takes over the activations too.
    void forward(int chunk_index, int micro_batch, const Batch& batch, Purpose purpose);
    // Runs a chunk's backward. If the next chunk is on this rank, takes the output's gradient from that one. Makes
    // gradients of weights too, unless they are delayed (InFlight::delayed).
    void backward_input(int chunk_index, int micro_batch, const Batch& batch, float dloss);
    void backward_weight(int chunk_index, int micro_batch);   // only if they are delayed

    // Makes the next forward passes show each activation once the work that makes it is queued: `count` values on the
    // device, of a unit of the table. `show` may wait for the stream. Empty: none is shown.
    using Show = std::function<void(int unit, const char* name, const floatX* values, std::int64_t count)>;
    void show_activations(Show show) { show_ = std::move(show); }

    // ---- the head's results
    bool has_head() const { return head_.has_value(); }
    // True if this rank adds its losses to sums over all ranks.
    bool adds_losses() const { return ::adds_losses(options_.place.at, head_.has_value()); }
    // Losses of the latest action that made them: negative log likelihood of each of this rank's positions, (B, T).
    const float* losses() const { return workspace_->losses.data(); }
    // Makes forwards for losses write how far each target is from the likeliest token (Classifier::margins), (B, T);
    // null: no more. Does nothing if another stage has the head.
    void keep_margins(float* margins);
    // Computes logits of this rank's rows [first_row, first_row + count) of the latest forward for them, over the whole
    // vocabulary, into out (count, logits_columns()) on the device.
    void logits(floatX* out, int first_row, int count) const;
    int logits_columns() const { return sizes_.Vp * options_.place.mesh.tp; }

private:
    // A layer of this rank, its unit of the table and its index in the storage's units.
    struct Placed {
        Layer layer;
        int unit, slot;
    };

    int slot_of(int param) const { return storage_->find(param)->slot; }
    void add_head_reads(UnitReads& reads) const;
    RankSizes sizes_of(int B, int T) const;
    void tell_sizes();
    std::span<const Placed> layers_of(int chunk_index) const;
    ForwardPass training_pass(const Batch& batch) const;
    template <class Work>
    void use(Direction direction, Work&& work);
    int multiprocessors_beside(Direction direction) const;
    void head_backward(const MicroBatches::State& state, const floatX* out, const Batch& batch, float dloss);
    void layer_backward(const Placed& placed, std::size_t i, MicroBatches::State& state, const Batch& batch);
    void gradients_begin(int slot) const;
    void gradients_ready(int slot, bool at_once = true);

    ModelConfig config_;
    StageOptions options_;
    cudaStream_t stream_;
    Matmul matmul_;
    TpRegion tp_;
    VocabularyRegion vocabulary_;
    ExpertRanks one_device_of_experts_;
    std::unique_ptr<ParamStorage> storage_;
    ModelState<floatX> parameters_, unsharded_;
    Gradients gradients_;
    ExpertTotalsMemory expert_totals_;
    float sequence_share_ = 0;
    RouterBias router_bias_;
    UnitHooks* hooks_ = nullptr;
    Show show_;
    RankSizes sizes_;
    int max_rows_;   // B x T that there is room for
    std::optional<MicroBatches> micro_batches_;
    std::optional<Workspace> workspace_;
    std::optional<CoreAttention> attention_;
    std::optional<StageTools> tools_;
    std::optional<Embedding> embedding_;
    std::vector<Placed> layers_;
    std::optional<Head> head_;
};
