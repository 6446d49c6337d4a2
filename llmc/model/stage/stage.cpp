#include "llmc/model/stage/stage.h"

#include <algorithm>

namespace {

void check_options(const ModelConfig& config, const StageOptions& options) {
    if (options.B < 1) {
        throw Error(ErrorKind::usage, text("a micro-batch of ", options.B, " sequences"),
                    "--micro-batch must be at least 1.");
    }
    if (options.T < 1 || options.T > config.max_seq_len) {
        throw Error(
            ErrorKind::usage,
            text("sequences of ", options.T, " tokens do not fit a model of ", config.max_seq_len, " positions"),
            config.positions == PositionKind::rotary
                ? text("--seq-len must be between 1 and ", config.max_seq_len,
                       "; a training that continues this model with a longer one gives it more (docs/models.md).")
                : text("--seq-len must be between 1 and ", config.max_seq_len,
                       ": learned positions are parameters, which longer sequences lack. A model with --positions "
                       "rotary can be continued with a longer --seq-len."));
    }
    check_tensor_parallel(config, options.place.mesh, options.sequence_parallel, options.B, options.T);
    const std::int64_t widest = std::max(
        std::max(config.mlp_width(), config.experts_per_token() * config.expert_width()), config.padded_vocab_size);
    if (std::int64_t{options.B} * options.T > INT32_MAX / 2 || widest > INT32_MAX / 2) {
        throw Error(ErrorKind::usage, text("a micro-batch of ", options.B, " x ", options.T, " tokens"),
                    "Lower --micro-batch.");
    }
}

// Returns options without sequence parallelism where there are no ranks for it.
StageOptions settled(StageOptions options) {
    const bool shares = options.place.mesh.tp > 1 || options.groups.tp != nullptr;
    options.sequence_parallel = options.sequence_parallel && shares;
    return options;
}

StageUnits units_of(const std::vector<Chunk>& chunks) {
    StageUnits units{{}, false, false};
    for (const Chunk& chunk : chunks) {
        units.chunks.push_back(chunk.layers);
        units.embedding = units.embedding || chunk.embedding;
        units.head = units.head || chunk.head;
    }
    return units;
}

Gradients make_gradients(const StageOptions& options, Arena& arena, const ParamStorage& storage, cudaStream_t stream) {
    if (!options.backward) return {};
    if (size_of(options.grad_dtype) < sizeof(floatX)) {
        throw Error(ErrorKind::usage, "--grad-dtype bf16: expected fp32 in a build with PRECISION=fp32");
    }
    return {arena, options.grad_dtype, storage, stream};
}

}   // namespace

Stage::Stage(const ModelConfig& config, const StageOptions& options, Arena& arena, cudaStream_t stream)
    : config_(config),
      options_(settled(options)),
      stream_(stream),
      matmul_(arena, options.matmul),
      tp_(options.groups.tp, options_.sequence_parallel, options.tp_chunks, arena, stream),
      vocabulary_(options.groups.tp, arena, stream),
      router_bias_(config, arena, stream) {
    check_options(config, options_);
    if (options_.chunks.empty()) options_.chunks.push_back({{0, config.layers}, true, true});
    storage_ = std::make_unique<ParamStorage>(ParamTable(config), options.place, units_of(options_.chunks));
    parameters_ = ModelState<floatX>(arena, "parameters", *storage_, StateKind::parameters);
    unsharded_ = is_sharded(StateKind::parameters, options.place.zero_stage)
                     ? ModelState<floatX>::rotating(arena, "unsharded parameters", *storage_, zero_layer_sets)
                     : parameters_;
    gradients_ = make_gradients(options, arena, *storage_, stream);

    sizes_ = sizes_of(options.B, options.T);
    max_rows_ = sizes_.rows();
    const int classifier_rows = options.classifier_rows > 0 ? std::min(options.classifier_rows, max_rows_)
                                                            : default_classifier_rows(max_rows_, sizes_.Vp);
    const bool head = std::ranges::any_of(options_.chunks, &Chunk::head);
    if (!options_.chunks.front().embedding) {   // one buffer at least, to receive the input
        options_.in_flight.inputs = std::max(options_.in_flight.inputs, 1);
    }
    if (!options.backward) options_.in_flight = {1, 0, 0, options_.in_flight.inputs, 1};
    const bool shards_gradients = is_sharded(StateKind::gradients, options.place.zero_stage);
    const std::int64_t norm_bytes = shards_gradients ? static_cast<std::int64_t>(size_of(options.grad_dtype)) : 0;
    micro_batches_.emplace(arena, options_.chunks, sizes_, options.recompute, options_.in_flight, norm_bytes, stream);
    workspace_.emplace(arena, sizes_, head ? classifier_rows : 0, options.backward);
    CoreAttentionOptions attention{options.attention, options.backward, context(), options.groups.ring,
                                   options.groups.ulysses};
    attention.reusable = options.in_flight.delayed == 0;   // else delayed gradients of weights read that memory
    for (int length : options.shorter_lengths) {
        attention.other_shapes.push_back(sizes_of(options.B * (options.T / length), length).attention());
    }
    attention_.emplace(attention, sizes_, micro_batches_->any_activations().layers[0].attention, *workspace_, arena,
                       stream);
    ENSURE(sizes_.ep == 1 || options.expert_ranks != nullptr, "experts are dealt out to ", sizes_.ep,
           " ranks, and nobody exchanges their rows");
    tools_.emplace(StageTools{matmul_, *attention_, tp_, vocabulary_,
                              options.expert_ranks ? *options.expert_ranks : one_device_of_experts_, sizes_,
                              *workspace_, options_, stream});
    tools_->router_bias = router_bias_.data();
    if (config.experts > 0 && options.backward) {
        expert_totals_ = ExpertTotalsMemory(config, options, arena);
        begin_expert_totals();
        // without sequence parallelism tp ranks have the same tokens: the first one counts them
        if (options_.sequence_parallel || options.place.at.tp == 0) {
            tools_->expert_totals = expert_totals_.addresses();
        }
    }
    tell_sizes();
    for (const Chunk& chunk : options_.chunks) {
        if (chunk.embedding) embedding_.emplace(*tools_, unsharded_);
        for (int layer = static_cast<int>(chunk.layers.begin); layer < static_cast<int>(chunk.layers.end); layer++) {
            layers_.push_back({Layer(*tools_, unsharded_, layer), table().layer_unit(layer),
                               slot_of(table().unit_params(table().layer_unit(layer)).front())});
        }
        if (chunk.head) head_.emplace(*tools_, unsharded_, classifier_rows);
    }
}

Stage::~Stage() = default;

RankSizes Stage::sizes_of(int B, int T) const {
    RankSizes sizes = rank_sizes(config_, options_.place, options_.sequence_parallel, B, T, options_.ulysses);
    sizes.documents = options_.document_mask;
    sizes.fp8 = options_.matmul_dtype != MatmulDType::stored;
    return sizes;
}

void Stage::set_batch_shape(int B, int T) {
    ENSURE(B >= 1 && T >= 1 && T <= config_.max_seq_len &&
               std::int64_t{B} * T <= std::int64_t{max_rows_} * options_.place.mesh.cp,
           "a micro-batch of ", B, " x ", T, " tokens, room for ", max_rows_);
    options_.B = B;
    options_.T = T;
    sizes_ = sizes_of(B, T);
    tell_sizes();
}

void Stage::tell_sizes() {
    tp_.set_sizes(sizes_);
    vocabulary_.set_sizes(sizes_);
    attention_->set_sizes(sizes_);
}

// Returns the layers of a chunk.
std::span<const Stage::Placed> Stage::layers_of(int chunk_index) const {
    std::size_t first = 0;
    for (int i = 0; i < chunk_index; i++) first += static_cast<std::size_t>(chunk(i).layers.size());
    return std::span(layers_).subspan(first, static_cast<std::size_t>(chunk(chunk_index).layers.size()));
}

// ---------------------------------------------------------------------------------------------------------------------
// Parameters that actions read

// Adds the use of the head. A tied classifier reads wte: the embedding's, or its own copy if another rank has the
// embedding.
void Stage::add_head_reads(UnitReads& reads) const {
    std::vector<int> slots{slot_of(table().index("ln_f.weight"))};
    const int classifier = slot_of(table().classifier());
    if (classifier != slots[0]) slots.insert(slots.begin(), classifier);
    reads.push_back(std::move(slots));
}

void Stage::add_forward_reads(UnitReads& reads, int chunk_index, Purpose purpose) const {
    if (chunk(chunk_index).embedding) reads.push_back({slot_of(table().unit_params(table().embedding_unit()).back())});
    for (const Placed& placed : layers_of(chunk_index)) reads.push_back({placed.slot});
    if (chunk(chunk_index).head && purpose != Purpose::training) add_head_reads(reads);
}

void Stage::add_backward_reads(UnitReads& reads, int chunk_index) const {
    if (chunk(chunk_index).head) add_head_reads(reads);
    const std::span<const Placed> layers = layers_of(chunk_index);
    for (std::size_t i = layers.size(); i-- > 0;) reads.push_back({layers[i].slot});
}

void Stage::begin_pass(const UnitReads& reads) const {
    ENSURE(hooks_ || unsharded_.state() != StateKind::unsharded, "parameters are shared out, and nobody fetches them");
    if (hooks_) hooks_->pass_begins(reads);
}

// Runs work that reads the parameters of the pass's next entry.
template <class Work>
void Stage::use(Direction direction, Work&& work) {
    if (hooks_) hooks_->use_begins();
    matmul_.reserve_multiprocessors(multiprocessors_beside(direction));
    work();
    if (hooks_) hooks_->use_ends();
}

// Returns how many multiprocessors to leave to communication beside the next work.
int Stage::multiprocessors_beside(Direction direction) const {
    const bool ring = direction == Direction::backward && context().ring_size() > 1;   // its last hop
    const bool collectives = options_.place.mesh.tp > 1 || ring || (hooks_ && hooks_->communicates(direction));
    return (collectives ? options_.comm_sms : 0) + options_.link_sms;
}

void Stage::gradients_begin(int slot) const {
    if (hooks_) hooks_->gradients_begin(slot);
}

void Stage::gradients_ready(int slot, bool at_once) {
    matmul_.add_bias_gradients(stream_);
    gradients_.unit_ready(slot);
    if (hooks_) hooks_->gradients_ready(slot, at_once);
}

// ---------------------------------------------------------------------------------------------------------------------
// Actions

bool Stage::forward_reads_batch(int chunk_index, Purpose purpose) const {
    const Chunk& what = chunk(chunk_index);
    return options_.document_mask || what.embedding || (what.head && purpose == Purpose::loss);
}

bool Stage::backward_reads_batch(int chunk_index) const {
    return options_.document_mask || chunk(chunk_index).embedding || chunk(chunk_index).head;
}

ForwardPass Stage::training_pass(const Batch& batch) const {
    return {batch, options_.capacity_factor, sequence_share_};
}

void Stage::forward(int chunk_index, int micro_batch, const Batch& batch, Purpose purpose) {
    const MicroBatches::State& state =
        micro_batches_->begin_forward(chunk_index, micro_batch, purpose == Purpose::training);
    const ForwardPass pass = purpose == Purpose::training ? training_pass(batch) : ForwardPass{batch};
    const Activations& a = *state.activations;
    const std::span<const Placed> layers = layers_of(chunk_index);
    if (chunk(chunk_index).embedding) {
        use(Direction::forward, [&] { embedding_->forward(a.residual[0], batch); });
        if (show_) show_(table().embedding_unit(), "encoded", a.residual[0], sizes_.residual_elements());
    }
    for (std::size_t i = 0; i < layers.size(); i++) {
        use(Direction::forward, [&] { layers[i].layer.forward(a.residual[i + 1], a.residual[i], pass, a.layers[i]); });
        if (!show_) continue;
        layers[i].layer.show([&, unit = layers[i].unit](const char* name, const floatX* values,
                                                        std::int64_t count) { show_(unit, name, values, count); },
                             pass, a.layers[i], a.residual[i + 1]);
    }
    if (!chunk(chunk_index).head || purpose == Purpose::training) return;
    use(Direction::forward, [&] {
        if (purpose == Purpose::loss) head_->loss(a.residual[layers.size()], batch);
        if (purpose == Purpose::logits) head_->final_norm(a.residual[layers.size()]);
    });
    if (show_) show_(table().head_unit(), "lnf", workspace_->lnf.data(), sizes_.residual_elements());
}

void Stage::backward_input(int chunk_index, int micro_batch, const Batch& batch, float dloss) {
    const bool delays = options_.in_flight.delayed > 0;
    const bool sends = options_.place.mesh.tp > 1 || context().ring_size() > 1;
    MicroBatches::State& state = micro_batches_->begin_backward(chunk_index, micro_batch,
                                                                delays  ? WeightGradients::at_schedule
                                                                : sends ? WeightGradients::behind_collective
                                                                        : WeightGradients::at_once);
    const std::span<const Placed> layers = layers_of(chunk_index);
    if (chunk(chunk_index).head) head_backward(state, state.activations->residual[layers.size()], batch, dloss);
    for (std::size_t i = layers.size(); i-- > 0;) layer_backward(layers[i], i, state, batch);
    if (chunk(chunk_index).embedding) {
        const int slot = slot_of(table().unit_params(table().embedding_unit()).back());
        gradients_begin(slot);
        embedding_->backward(state.dresidual->data, batch, gradients_, state.weights);
        gradients_ready(slot);
    }
    if (!delays) state.weights.drain();
    micro_batches_->end_backward(chunk_index, micro_batch);
}

void Stage::head_backward(const MicroBatches::State& state, const floatX* out, const Batch& batch, float dloss) {
    const int slot = slot_of(table().index("ln_f.weight"));
    const int classifier = slot_of(table().classifier());
    if (classifier != slot) gradients_begin(classifier);   // the embedding's, to which it is tied
    gradients_begin(slot);
    use(Direction::backward, [&] { head_->loss_and_backward(state.dresidual->data, out, batch, dloss, gradients_); });
    gradients_ready(slot);
}

// Runs backward of a chunk's layer i.
void Stage::layer_backward(const Placed& placed, std::size_t i, MicroBatches::State& state, const Batch& batch) {
    const Activations& a = *state.activations;
    const DelayedMemory* const delayed = state.delayed;
    const int slot = placed.slot;
    // Recompute overwrites what waiting gradients of weights read.
    const bool at_once = delayed == nullptr && options_.recompute >= Recompute::gelu_norm;
    if (delayed != nullptr) {   // until then another unit may use this gradient memory
        state.weights.add({.run = [this, slot] { gradients_begin(slot); }});
    }
    use(Direction::backward, [&] {
        LayerActivations kept = a.layers[i];
        std::optional<Layer::Delayed> late;
        if (delayed != nullptr) {
            kept = moved(kept, delayed->recomputed[i], sizes_);
            late = {a.residual[i + 1], delayed->norms.empty() ? nullptr : delayed->norms[i]};
        }
        const ForwardPass pass = training_pass(batch);
        placed.layer.recompute(a.residual[i], pass, kept, options_.recompute);
        if (delayed == nullptr) gradients_begin(slot);
        placed.layer.backward({.dresidual = state.dresidual->data,
                               .in = a.residual[i],
                               .pass = pass,
                               .delayed = late ? &*late : nullptr,
                               .gradients = gradients_,
                               .queue = state.weights},
                              kept);
    });
    // The last gradients of weights hide the next layer's first collective, unless they are made at once: then those of
    // its recompute come first.
    const bool recompute_follows = at_once && i > 0;
    state.weights.then([this, slot, recompute_follows] { gradients_ready(slot, !recompute_follows); });
    if (at_once) state.weights.drain();
}

void Stage::backward_weight(int chunk_index, int micro_batch) { micro_batches_->run_delayed(chunk_index, micro_batch); }

void Stage::keep_margins(float* margins) {
    if (head_) head_->keep_margins(margins);
}

void Stage::logits(floatX* out, int first_row, int count) const {
    ENSURE(first_row >= 0 && count >= 0 && first_row + count <= sizes_.rows(), "rows ", first_row, " + ", count, " of ",
           sizes_.rows());
    head_->logits(out, first_row, count);
}
