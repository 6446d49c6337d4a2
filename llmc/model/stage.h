// What one rank holds of a GPT, and the actions of a step on it: forward, backward_input and backward_weight of one
// chunk of layers for one micro-batch. One device holds one chunk: everything.
//
//   residual(0)   = embedding(tokens)                    in the first chunk
//   residual(l+1) = layer l (residual(l))
//   loss          = head(residual(L), targets)           in the last chunk; in training with its backward
// A list of actions says when each of them happens (llmc/parallel/schedule.h), and somebody carries it out
// (llmc/parallel/pipeline.h). Any order is allowed in which forward of a chunk comes before its backward_input, that
// before its backward_weight, and each micro-batch passes through the chunks in order and back; so any number of
// micro-batches may be in flight, as far as the pool has room. At the boundaries of a chunk are residual streams and
// their gradients: what another rank has made of them is received into this rank's memory, and sent from it.
//
// Losses and gradients are normalised by the global number of tokens of the step, given as `dloss`. Everything is
// asynchronous on one stream, and deterministic.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "llmc/mesh/context_cut.h"
#include "llmc/model/attention_choice.h"
#include "llmc/model/batch.h"
#include "llmc/model/embedding.h"
#include "llmc/model/head.h"
#include "llmc/model/layer.h"
#include "llmc/model/parameters/unit_hooks.h"
#include "llmc/model/parameters/weights.h"
#include "llmc/model/sublayers/expert_ranks.h"
#include "llmc/model/sublayers/router_bias.h"

// Consecutive layers, and what stands before the first and behind the last layer of the model.
struct Chunk {
    LayerRange layers;
    bool embedding = false, head = false;
};

struct StageOptions {
    int B = 4;      // sequences of a micro-batch
    int T = 1024;   // tokens of a whole sequence, at most max_seq_len
    AttentionKind attention = AttentionKind::auto_;
    Recompute recompute = Recompute::none;
    int gelu_fusion = 2;       // as in StageTools
    int classifier_rows = 0;   // rows of logits that exist at once; 0: chosen so that they take at most 2.25 GiB
    float z_loss = 0;          // of training's losses: Classifier::z_loss
    MatmulOptions matmul = {};
    int comm_sms = 0, link_sms = 0;   // multiprocessors that collectives, and links of a pipeline, take beside matmuls
    DType grad_dtype = DType::fp32;   // or bf16, where parameters are
    bool backward = true;             // false: only forward passes, and no memory for anything else
    bool sequence_parallel = false;   // tp ranks share the rows of the residual region
    int tp_chunks = 1;                // of rows, in forward: one's collective hides behind the next one's matmul
    ShardPlace place = {};            // which part of the model this rank keeps; by default all of it
    bool documents = false;           // batches say where they begin, and they do not see each other
    int ulysses = 1;                  // of its cp ranks, those that exchange heads for tokens (mesh/context_cut.h)
    std::vector<Chunk> chunks = {};   // in the order of the model; none: one with everything
    InFlight in_flight = {};
    // Outlive the stage; null: those of one device.
    CutPoints* cut_points = nullptr;
    ExpertRanks* expert_ranks = nullptr;
};

// What a forward is for, and so what its last chunk does.
enum class Purpose : std::uint8_t {
    training,   // activations are kept; the head waits for backward_input
    loss,       // the loss of every position
    logits,     // logits of some rows may be asked for
};

class Stage {
public:
    Stage(const ModelConfig& config, const StageOptions& options, Arena& arena, cudaStream_t stream);
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;

    const ModelConfig& config() const { return config_; }
    const StageOptions& options() const { return options_; }
    const ParamStorage& storage() const { return *storage_; }
    const ParamTable& table() const { return storage_->table(); }
    cudaStream_t stream() const { return stream_; }
    Matmul& matmul() { return matmul_; }

    const ModelState<floatX>& parameters() const { return parameters_; }   // what this rank keeps
    // What it computes with: the same, or under ZeRO-3 whole units, there only while hooks have fetched them.
    const ModelState<floatX>& unsharded_parameters() const { return unsharded_; }
    AnyGradients& gradients() { return *gradients_; }
    void initialize(std::uint64_t seed) { initialize_parameters(parameters_, seed, stream_); }

    // Who is told about every pass from now on; null: nobody. The caller keeps it alive.
    UnitHooks* hooks() const { return hooks_; }
    void set_hooks(UnitHooks* hooks) { hooks_ = hooks; }

    // ---- which attention (stage_attention.cpp)

    AttentionKind attention() const { return attention_->chosen(); }   // never auto_
    bool attention_is_open() const { return attention_->open(); }      // both can serve, the faster one is not known
    // Why the library cannot serve micro-batches of the present shape; empty where it can.
    std::string library_attention_refusal() const { return attention_->refusal(sizes_.attention()); }
    // From now on this one, with all the memory it will need for micro-batches of the present shape. Waits for the
    // stream. Error(no_device) where there is none or no room; then it is our own.
    void use_attention(AttentionKind kind);
    // The fastest of those that serve, for a micro-batch of this model, measured. Takes none. Own where the library
    // fails, for lack of memory, say; `library_failed` says then why.
    struct FasterAttention {
        AttentionKind kind;
        std::string library_failed;
    };
    FasterAttention faster_attention();
    // How long a hop of the ring takes, and the block of attention that it is to hide behind; none where there is no
    // ring. Collective over its ranks; waits for the stream.
    std::optional<RingTimes> time_ring();

    // ---- actions

    // Of the micro-batches at hand. This rank has all tokens of their sequences, or as many as other cp ranks.
    const RankSizes& sizes() const { return sizes_; }
    int tokens() const { return sizes_.rows(); }
    ContextCut context() const { return {options_.place.mesh.cp, options_.ulysses, options_.place.at.cp}; }
    std::vector<TokenRange> token_ranges() const { return ::token_ranges(context(), options_.T); }   // of a sequence
    std::size_t attended_tokens() const {   // of MicroBatch::starts, where documents are masked
        return options_.documents ? static_cast<std::size_t>(tokens()) * static_cast<std::size_t>(options_.ulysses) : 0;
    }

    // Runs micro-batches of another shape in the same memory, until changed again (sampling): at most as many tokens as
    // the stage was made for.
    void set_batch_shape(int B, int T);
    // Of the steps from now on: StageTools::sequence_share.
    void set_sequence_share(float share) { tools_->sequence_share = share; }
    // What the backwards from the last call of begin_expert_totals have added up on this rank; rows of layers of other
    // stages are 0. Nothing where the model has no experts, or there is no backward.
    const DeviceBuffer<std::int32_t>& expert_counts() const { return expert_counts_; }   // (L, E)
    const DeviceBuffer<double>& router_losses() const { return router_losses_; }         // the balance loss, the z-loss
    void begin_expert_totals();
    RouterBias& router_bias() { return router_bias_; }
    const RouterBias& router_bias() const { return router_bias_; }

    int chunks() const { return static_cast<int>(chunks_.size()); }
    const Chunk& chunk(int index) const { return chunks_[static_cast<std::size_t>(index)].what; }
    // Whether a chunk's input is the output of the chunk before it on this rank.
    bool follows(int chunk_index) const;

    // The units whose parameters each piece of an action's work reads, as UnitHooks takes them. A pass, all actions
    // between two updates, must be begun with those of all its actions, before the first of them.
    using Uses = std::vector<std::vector<int>>;
    void add_forward_uses(Uses& uses, int chunk_index, Purpose purpose) const;
    void add_backward_uses(Uses& uses, int chunk_index) const;   // of backward_input; backward_weight reads none
    void begin_pass(const Uses& uses) const;                     // `uses` outlives the pass

    // Whether the forward of a chunk reads the batch, and its backward_input.
    bool forward_reads_batch(int chunk_index, Purpose purpose) const {
        return options_.documents || chunk(chunk_index).embedding ||
               (chunk(chunk_index).head && purpose == Purpose::loss);
    }
    bool backward_reads_batch(int chunk_index) const {
        return options_.documents || chunk(chunk_index).embedding || chunk(chunk_index).head;
    }

    // A chunk that follows one on this rank takes its input from that; without backward it takes its activations too.
    void forward(int chunk_index, int micro_batch, const Batch& batch, Purpose purpose);
    // Ends a forward after which no backward comes: its output is no longer needed.
    void release(int chunk_index, int micro_batch);
    // A chunk that another one follows on this rank takes the gradient from that. Makes gradients of weights too,
    // unless they are delayed (InFlight::delayed).
    void backward_input(int chunk_index, int micro_batch, const Batch& batch, float dloss);
    void backward_weight(int chunk_index, int micro_batch);   // where they are delayed
    bool nothing_in_flight() const { return states_.empty(); }

    // ---- boundaries between ranks: (residual rows, C) each. What another stream does with one is ordered by its event
    // against the stage's own stream (BoundaryTensor).

    std::int64_t boundary_elements() const { return std::int64_t{sizes_.residual_rows()} * sizes_.C; }
    // Where the input of a forward goes that follows none on this rank and has no embedding. Asked for before that.
    BoundaryTensor& input(int chunk_index, int micro_batch);
    // Of a forward that has been, until its backward or release. Whoever reads it on another stream records `sent`.
    struct Output {
        const floatX* data;
        OwnedEvent& sent;
    };
    Output output(int chunk_index, int micro_batch);
    // Where the gradient of that goes when the chunk after it is on another rank. Asked for before backward_input.
    BoundaryTensor& output_gradient(int chunk_index, int micro_batch);
    // Of a backward_input that has been, until it is released; a chunk before it on this rank takes it instead.
    BoundaryTensor& input_gradient(int chunk_index, int micro_batch);
    void release_input_gradient(int chunk_index, int micro_batch);

    // ---- looking at activations

    // Of the forward passes from now on, who is shown each activation when all that makes it is queued: on the device,
    // as many values, of a unit of the table. It may wait for the stream. Empty: nobody.
    using Show = std::function<void(int unit, const char* name, const floatX* values, std::int64_t count)>;
    void show_activations(Show show) { show_ = std::move(show); }

    // Lines for people: sets of activations, boundaries and what delayed gradients need, as the schedule asks for them.
    std::string memory_by_schedule() const;

    bool has_head() const { return head_.has_value(); }
    // Whether a rank adds its losses to sums over all ranks.
    bool adds_losses() const { return ::adds_losses(options_.place.at, head_.has_value()); }
    // Of the latest action that made losses: negative log likelihood of each of this rank's positions, (B, T).
    const float* losses() const { return workspace_->losses.data(); }
    // Where forwards for losses put how far each target is from the likeliest token (Classifier::margins), (B, T);
    // null: nowhere. Nothing where another stage has the head.
    void keep_margins(float* margins) {
        if (head_) head_->keep_margins(margins);
    }
    // Logits of rows [first_row, first_row + count) of the latest forward for them, over the whole vocabulary, into
    // (count, logits_columns()) on the device; rows of this rank.
    void logits(floatX* out, int first_row, int count) const;
    int logits_columns() const { return sizes_.Vp * options_.place.mesh.tp; }

private:
    struct ChunkPlace {
        Chunk what;
        std::size_t first_layer;
    };
    // A chunk of a micro-batch, from its input to its last gradient.
    struct MicroBatchState {
        enum class Phase : std::uint8_t { input, forward, output_gradient, backward } phase = Phase::input;
        BoundaryTensor* input = nullptr;   // from another rank, until forward takes it
        Activations* activations = nullptr;
        BoundaryTensor* dresidual = nullptr;   // of the output, then of the input: until it is taken or released
        DelayedMemory* delayed = nullptr;
        WeightGradientQueue weights;
    };

    int slot_of(int param) const { return storage_->find(param)->slot; }
    void add_head_use(Uses& uses) const;
    RankSizes sizes_of(int B, int T) const;
    std::size_t layers_of(int chunk_index) const { return static_cast<std::size_t>(chunk(chunk_index).layers.size()); }
    std::size_t residual_bytes() const { return sizeof(floatX) * static_cast<std::size_t>(boundary_elements()); }
    MicroBatchState& state_of(int chunk_index, int micro_batch);
    MicroBatchState& begin_state(int chunk_index, int micro_batch);
    Activations* take_activations();
    void take_input(int chunk_index, int micro_batch, Purpose purpose);
    void take_output_gradient(int chunk_index, int micro_batch);
    void finish(int chunk_index, int micro_batch, bool activations_are_done);
    // Work that reads the parameters of the next entry of the pass.
    template <class Work>
    void use(Direction direction, Work&& work) {
        if (hooks_) hooks_->use_begins();
        matmul_.leave_free(multiprocessors_beside(direction));
        work();
        if (hooks_) hooks_->use_ends();
    }
    // Of the device's, how many have communication beside the work that comes next.
    int multiprocessors_beside(Direction direction) const {
        const bool ring = direction == Direction::backward && context().ring_size() > 1;   // its last hop
        const bool collectives = options_.place.mesh.tp > 1 || ring || (hooks_ && hooks_->communicates(direction));
        return (collectives ? options_.comm_sms : 0) + options_.link_sms;
    }
    void gradients_begin(int slot) const {
        if (hooks_) hooks_->gradients_begin(slot);
    }
    void backward(MicroBatchState& own, int chunk_index, const Batch& batch, float dloss);
    void gradients_ready(int slot) {
        matmul_.add_bias_gradients(stream_);
        std::visit([slot](auto& gradients) { gradients.unit_ready(slot); }, *gradients_);
        if (hooks_) hooks_->gradients_ready(slot);
    }

    ModelConfig config_;
    StageOptions options_;
    cudaStream_t stream_;
    Matmul matmul_;
    CutPoints one_device_;
    ExpertRanks one_device_of_experts_;
    std::unique_ptr<ParamStorage> storage_;
    ModelState<floatX> parameters_, unsharded_;
    std::optional<AnyGradients> gradients_;
    DeviceBuffer<std::int32_t> expert_counts_;
    DeviceBuffer<double> router_losses_;
    RouterBias router_bias_;
    UnitHooks* hooks_ = nullptr;
    Show show_;
    RankSizes sizes_;
    int max_rows_;     // B x T that there is room for
    int max_layers_;   // of a chunk
    std::optional<ActivationPool> pool_;
    std::optional<AttentionChoice<floatX>> attention_;
    std::optional<Workspace> workspace_;
    std::optional<StageTools> tools_;
    std::optional<Embedding> embedding_;
    std::vector<Layer> layers_;
    std::vector<int> layer_slots_;   // in the storage's units
    std::optional<Head> head_;
    std::vector<ChunkPlace> chunks_;
    std::map<std::pair<int, int>, MicroBatchState> states_;   // by chunk and micro-batch
};
