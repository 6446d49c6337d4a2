// A rank's part of a GPT, and the actions of a step on it: forward, backward_input and backward_weight of one chunk of
// layers for one micro-batch. One device holds one chunk: everything.
//
//   residual(0)   = embedding(tokens)                    in the first chunk
//   residual(l+1) = layer l (residual(l))
//   loss          = head(residual(L), targets)           in the last chunk; in training with its backward
// A list of actions gives their order (llmc/parallel/schedule.h), and Pipeline carries it out
// (llmc/parallel/pipeline.h). Any order is allowed in which forward of a chunk comes before its backward_input, that
// before its backward_weight, and each micro-batch passes through the chunks in order and back; so any number of
// micro-batches may be in flight, as far as the pool has room. At the boundaries of a chunk are residual streams and
// their gradients: this rank receives them from other ranks into its own memory, and sends them from it.
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

// Consecutive layers, with the embedding before the model's first and the head after its last.
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
    float z_loss = 0;          // Classifier::z_loss of training's losses
    MatmulOptions matmul = {};
    int comm_sms = 0, link_sms = 0;   // multiprocessors that collectives, and links of a pipeline, take beside matmuls
    DType grad_dtype = DType::fp32;   // or bf16, if parameters are
    bool backward = true;             // false: only forward passes, and no memory for anything else
    bool sequence_parallel = false;   // tp ranks share the rows of the residual region
    int tp_chunks = 1;                // chunks of rows in forward: one's collective hides behind the next one's matmul
    ShardPlace place = {};            // which part of the model this rank keeps; by default all of it
    bool documents = false;           // attention is masked between documents; batches say where these begin
    int ulysses = 1;                  // cp ranks of a group that exchanges heads for tokens (context_cut.h)
    std::vector<Chunk> chunks = {};   // in the order of the model; empty: one chunk with everything
    InFlight in_flight = {};
    // Both must outlive the stage; null: those of one device.
    CutPoints* cut_points = nullptr;
    ExpertRanks* expert_ranks = nullptr;
};

// Purpose of a forward: it decides what the last chunk does.
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

    const ModelState<floatX>& parameters() const { return parameters_; }   // this rank's part
    // Returns the parameters that actions read: the same, or under ZeRO-3 whole units, valid only while hooks have
    // fetched them.
    const ModelState<floatX>& unsharded_parameters() const { return unsharded_; }
    AnyGradients& gradients() { return *gradients_; }
    void initialize(std::uint64_t seed) { initialize_parameters(parameters_, seed, stream_); }

    // Hooks that are told about every pass; null: none. The caller keeps them alive.
    UnitHooks* hooks() const { return hooks_; }
    void set_hooks(UnitHooks* hooks) { hooks_ = hooks; }

    // ---- which attention (stage_attention.cpp)

    AttentionKind attention() const { return attention_->chosen(); }   // never auto_
    bool attention_is_open() const { return attention_->open(); }      // several can serve, the fastest is not known
    // Returns why the library cannot serve micro-batches of the current shape; empty if it can.
    std::string library_attention_refusal() const { return attention_->refusal(sizes_.attention()); }
    // Switches to `kind` and allocates the memory for micro-batches of the current shape. Waits for the stream. Throws
    // Error(no_device) if it cannot serve or lacks room; another that serves is used then.
    void use_attention(AttentionKind kind);
    // Measures the kinds that can serve a micro-batch of this model, and returns the fastest; does not switch. If the
    // library failed, for lack of memory for example, `library_failed` says why.
    struct FasterAttention {
        AttentionKind kind;
        std::string library_failed;
    };
    FasterAttention faster_attention();
    // Measures a hop of the ring, and the block of attention that is to hide it; none without a ring. Collective over
    // the ring's ranks; waits for the stream.
    std::optional<RingTimes> time_ring();

    // ---- actions

    // Sizes of the current micro-batches; cp ranks share their tokens evenly.
    const RankSizes& sizes() const { return sizes_; }
    int tokens() const { return sizes_.rows(); }
    ContextCut context() const { return {options_.place.mesh.cp, options_.ulysses, options_.place.at.cp}; }
    std::vector<TokenRange> token_ranges() const { return ::token_ranges(context(), options_.T); }   // per sequence
    std::size_t attended_tokens() const {   // elements of MicroBatch::starts; 0 unless documents are masked
        return options_.documents ? static_cast<std::size_t>(tokens()) * static_cast<std::size_t>(options_.ulysses) : 0;
    }

    // Runs micro-batches of another shape in the same memory, until changed again (sampling): at most as many tokens as
    // the stage was made for.
    void set_batch_shape(int B, int T);
    // Sets StageTools::sequence_share for the next steps.
    void set_sequence_share(float share) { tools_->sequence_share = share; }
    // Totals that backwards have added up on this rank since begin_expert_totals(); rows of other stages' layers are 0.
    // Empty if the model has no experts or the stage no backward.
    const DeviceBuffer<std::int32_t>& expert_counts() const { return expert_counts_; }   // (L, E)
    const DeviceBuffer<double>& router_losses() const { return router_losses_; }         // the balance loss, the z-loss
    void begin_expert_totals();
    RouterBias& router_bias() { return router_bias_; }
    const RouterBias& router_bias() const { return router_bias_; }

    int chunks() const { return static_cast<int>(chunks_.size()); }
    const Chunk& chunk(int index) const { return chunks_[static_cast<std::size_t>(index)].what; }
    // True if a chunk's input is the output of the chunk before it on this rank.
    bool follows(int chunk_index) const;

    // Units whose parameters each piece of an action's work reads, as UnitHooks::pass_begins takes them. A pass is all
    // actions between two updates; begin_pass() takes the uses of all its actions, before the first of them.
    using Uses = std::vector<std::vector<int>>;
    void add_forward_uses(Uses& uses, int chunk_index, Purpose purpose) const;
    void add_backward_uses(Uses& uses, int chunk_index) const;   // for backward_input; backward_weight reads none
    void begin_pass(const Uses& uses) const;                     // `uses` outlives the pass

    // Return true if the forward of a chunk reads the batch, and if its backward_input does.
    bool forward_reads_batch(int chunk_index, Purpose purpose) const {
        return options_.documents || chunk(chunk_index).embedding ||
               (chunk(chunk_index).head && purpose == Purpose::loss);
    }
    bool backward_reads_batch(int chunk_index) const {
        return options_.documents || chunk(chunk_index).embedding || chunk(chunk_index).head;
    }

    // Runs a chunk's forward. A chunk that follows another on this rank takes its input from that one's output; except
    // in training it takes over the activations too.
    void forward(int chunk_index, int micro_batch, const Batch& batch, Purpose purpose);
    // Ends a forward without a backward: its output is no longer needed.
    void release(int chunk_index, int micro_batch);
    // Runs a chunk's backward. If the next chunk is on this rank, takes the output's gradient from that one. Makes
    // gradients of weights too, unless they are delayed (InFlight::delayed).
    void backward_input(int chunk_index, int micro_batch, const Batch& batch, float dloss);
    void backward_weight(int chunk_index, int micro_batch);   // only if they are delayed
    bool nothing_in_flight() const { return states_.empty(); }

    // ---- boundary buffers between ranks, (residual rows, C) each. Another stream that uses one is ordered against the
    // stage's stream by its event (BoundaryTensor).

    std::int64_t boundary_elements() const { return std::int64_t{sizes_.residual_rows()} * sizes_.C; }
    // Returns the buffer to receive a forward's input into; call it before that forward. Only for a chunk without the
    // embedding whose input is made on another rank.
    BoundaryTensor& input(int chunk_index, int micro_batch);
    // Output of a finished forward; valid until its backward or release(). A reader on another stream must record
    // `sent`.
    struct Output {
        const floatX* data;
        OwnedEvent& sent;
    };
    Output output(int chunk_index, int micro_batch);
    // Returns the buffer to receive the output's gradient into, if the next chunk is on another rank; call it before
    // backward_input.
    BoundaryTensor& output_gradient(int chunk_index, int micro_batch);
    // Input's gradient after backward_input, for another rank; valid until release_input_gradient(). A chunk before it
    // on this rank takes it instead.
    BoundaryTensor& input_gradient(int chunk_index, int micro_batch);
    void release_input_gradient(int chunk_index, int micro_batch);

    // ---- looking at activations

    // Makes the next forward passes show each activation once the work that makes it is queued: `count` values on the
    // device, of a unit of the table. `show` may wait for the stream. Empty: none is shown.
    using Show = std::function<void(int unit, const char* name, const floatX* values, std::int64_t count)>;
    void show_activations(Show show) { show_ = std::move(show); }

    // Returns a line for people: the sets of activations, boundary buffers and memory of delayed gradients that the
    // schedule needs.
    std::string memory_by_schedule() const;

    bool has_head() const { return head_.has_value(); }
    // True if this rank adds its losses to sums over all ranks.
    bool adds_losses() const { return ::adds_losses(options_.place.at, head_.has_value()); }
    // Losses of the latest action that made them: negative log likelihood of each of this rank's positions, (B, T).
    const float* losses() const { return workspace_->losses.data(); }
    // Makes forwards for losses write how far each target is from the likeliest token (Classifier::margins), (B, T);
    // null: no more. Does nothing if another stage has the head.
    void keep_margins(float* margins) {
        if (head_) head_->keep_margins(margins);
    }
    // Computes logits of this rank's rows [first_row, first_row + count) of the latest forward for them, over the whole
    // vocabulary, into out (count, logits_columns()) on the device.
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
        BoundaryTensor* dresidual = nullptr;   // gradient of the output, then of the input, until taken or released
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
    // Runs work that reads the parameters of the pass's next entry.
    template <class Work>
    void use(Direction direction, Work&& work) {
        if (hooks_) hooks_->use_begins();
        matmul_.leave_free(multiprocessors_beside(direction));
        work();
        if (hooks_) hooks_->use_ends();
    }
    // Returns how many multiprocessors to leave to communication beside the next work.
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
        gradients_->unit_ready(slot);
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
    int max_layers_;   // most layers of a chunk
    std::optional<ActivationPool> pool_;
    std::optional<AttentionChoice<floatX>> attention_;
    std::optional<Workspace> workspace_;
    std::optional<StageTools> tools_;
    std::optional<Embedding> embedding_;
    std::vector<Layer> layers_;
    std::vector<int> layer_slots_;   // index of each layer in the storage's units
    std::optional<Head> head_;
    std::vector<ChunkPlace> chunks_;
    std::map<std::pair<int, int>, MicroBatchState> states_;   // by chunk and micro-batch
};
