#include "llmc/model/stage.h"

#include <algorithm>
#include <utility>

#include "llmc/base/log.h"

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
            text("--seq-len must be between 1 and ", config.max_seq_len, "."));
    }
    check_tensor_parallel(config, options.place.mesh, options.sequence_parallel, options.B, options.T);
    const std::int64_t widest = std::max(
        std::max(config.mlp_width(), config.experts_per_token() * config.expert_width()), config.padded_vocab_size);
    if (std::int64_t{options.B} * options.T > INT32_MAX / 2 || widest > INT32_MAX / 2) {
        throw Error(ErrorKind::usage, text("a micro-batch of ", options.B, " x ", options.T, " tokens"),
                    "Lower --micro-batch.");
    }
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

AnyGradients make_gradients(const StageOptions& options, Arena& arena, const ParamStorage& storage,
                            cudaStream_t stream) {
    if (!options.backward) return {};
    if (size_of(options.grad_dtype) < sizeof(floatX)) {
        throw Error(ErrorKind::usage, "--grad-dtype bf16: expected fp32 in a build with PRECISION=fp32");
    }
    return {arena, options.grad_dtype, storage, stream};
}

}   // namespace

Stage::Stage(const ModelConfig& config, const StageOptions& options, Arena& arena, cudaStream_t stream)
    : config_(config),
      options_(options),
      stream_(stream),
      matmul_(arena, options.matmul),
      router_bias_(config, arena, stream) {
    check_options(config, options);
    if (options_.chunks.empty()) options_.chunks.push_back({{0, config.layers}, true, true});
    storage_ = std::make_unique<ParamStorage>(ParamTable(config), options.place, units_of(options_.chunks));
    parameters_ = ModelState<floatX>(arena, "parameters", *storage_, StateKind::parameters);
    unsharded_ = is_sharded(StateKind::parameters, options.place.zero_stage)
                     ? ModelState<floatX>::rotating(arena, "unsharded parameters", *storage_, zero_layer_sets)
                     : parameters_;
    gradients_.emplace(make_gradients(options, arena, *storage_, stream));

    sizes_ = sizes_of(options.B, options.T);
    max_rows_ = sizes_.rows();
    const int classifier_rows = options.classifier_rows > 0 ? std::min(options.classifier_rows, max_rows_)
                                                            : classifier_chunk_rows(max_rows_, sizes_.Vp);
    max_layers_ = 0;
    bool head = false;
    for (const Chunk& chunk : options_.chunks) {
        max_layers_ = std::max(max_layers_, static_cast<int>(chunk.layers.size()));
        head = head || chunk.head;
    }
    if (!options_.chunks.front().embedding) {   // one buffer at least, to receive the input
        options_.in_flight.inputs = std::max(options_.in_flight.inputs, 1);
    }
    if (!options.backward) options_.in_flight = {1, 0, 0, options_.in_flight.inputs, 1};
    const bool shards_gradients = is_sharded(StateKind::gradients, options.place.zero_stage);
    const std::int64_t norm_bytes = !shards_gradients ? 0 : options.grad_dtype == DType::fp32 ? 4 : 2;
    pool_.emplace(arena, sizes_, max_layers_, options.recompute, options_.in_flight, norm_bytes);
    attention_.emplace(options.attention, sizes_.attention(), arena,
                       AttentionUse{context().ring_size() > 1, options.backward});
    workspace_.emplace(arena, sizes_, head ? classifier_rows : 0, options.backward);
    tools_.emplace(StageTools{matmul_, *attention_, options.cut_points ? *options.cut_points : one_device_,
                              options.expert_ranks ? *options.expert_ranks : one_device_of_experts_, sizes_,
                              *workspace_, options.gelu_fusion, stream, options.z_loss});
    tools_->router_bias = router_bias_.data();
    if (config.experts > 0 && options.backward) {
        expert_counts_ =
            arena.allocate<std::int32_t>("experts/counts", static_cast<std::size_t>(config.layers * config.experts));
        router_losses_ = arena.allocate<double>("experts/router losses", 2);
        begin_expert_totals();
        // without sequence parallelism tp ranks have the same tokens: the first one counts them
        if (options.sequence_parallel || options.place.at.tp == 0) {
            tools_->expert_totals = {expert_counts_.data(), router_losses_.data()};
        }
    }
    tools_->cut_points.set_sizes(sizes_);
    for (const Chunk& chunk : options_.chunks) {
        chunks_.push_back({chunk, layers_.size()});
        if (chunk.embedding) embedding_.emplace(*tools_, unsharded_);
        for (int layer = static_cast<int>(chunk.layers.begin); layer < static_cast<int>(chunk.layers.end); layer++) {
            layers_.emplace_back(*tools_, unsharded_, layer);
            layer_slots_.push_back(slot_of(table().unit_params(table().layer_unit(layer)).front()));
        }
        if (chunk.head) head_.emplace(*tools_, unsharded_, classifier_rows);
    }
    if (options.attention != AttentionKind::auto_) use_attention(options.attention);
}

void Stage::begin_expert_totals() {
    expert_counts_.zero(stream_);
    router_losses_.zero(stream_);
}

RankSizes Stage::sizes_of(int B, int T) const {
    RankSizes sizes = rank_sizes(config_, options_.place, options_.sequence_parallel, B, T, options_.ulysses);
    sizes.documents = options_.documents;
    return sizes;
}

void Stage::set_batch_shape(int B, int T) {
    ENSURE(B >= 1 && T >= 1 && T <= config_.max_seq_len &&
               std::int64_t{B} * T <= std::int64_t{max_rows_} * options_.place.mesh.cp,
           "a micro-batch of ", B, " x ", T, " tokens, room for ", max_rows_);
    options_.B = B;
    options_.T = T;
    sizes_ = sizes_of(B, T);
    tools_->cut_points.set_sizes(sizes_);
}

bool Stage::follows(int chunk_index) const {
    return chunk_index > 0 && chunk(chunk_index - 1).layers.end == chunk(chunk_index).layers.begin;
}

// ---------------------------------------------------------------------------------------------------------------------
// Parameters that actions read

// Adds the use of the head. A tied classifier reads wte: the embedding's, or its own copy if another rank has the
// embedding.
void Stage::add_head_use(Uses& uses) const {
    std::vector<int> slots{slot_of(table().index("ln_f.weight"))};
    const int classifier = slot_of(table().classifier());
    if (classifier != slots[0]) slots.insert(slots.begin(), classifier);
    uses.push_back(std::move(slots));
}

void Stage::add_forward_uses(Uses& uses, int chunk_index, Purpose purpose) const {
    const ChunkPlace& place = chunks_[static_cast<std::size_t>(chunk_index)];
    if (place.what.embedding) uses.push_back({slot_of(table().unit_params(table().embedding_unit()).back())});
    for (std::size_t i = 0; i < layers_of(chunk_index); i++) uses.push_back({layer_slots_[place.first_layer + i]});
    if (place.what.head && purpose != Purpose::training) add_head_use(uses);
}

void Stage::add_backward_uses(Uses& uses, int chunk_index) const {
    const ChunkPlace& place = chunks_[static_cast<std::size_t>(chunk_index)];
    if (place.what.head) add_head_use(uses);
    for (std::size_t i = layers_of(chunk_index); i-- > 0;) uses.push_back({layer_slots_[place.first_layer + i]});
}

void Stage::begin_pass(const Uses& uses) const {
    ENSURE(hooks_ || unsharded_.state() != StateKind::unsharded, "parameters are shared out, and nobody fetches them");
    if (hooks_) hooks_->pass_begins(uses);
}

// ---------------------------------------------------------------------------------------------------------------------
// Actions

Stage::MicroBatchState& Stage::state_of(int chunk_index, int micro_batch) {
    const auto found = states_.find({chunk_index, micro_batch});
    ENSURE(found != states_.end(), "chunk ", chunk_index, " of micro-batch ", micro_batch,
           " is not in flight: it has no input, or its gradients are complete");
    return found->second;
}

Stage::MicroBatchState& Stage::begin_state(int chunk_index, int micro_batch) {
    const auto [at, is_new] = states_.try_emplace({chunk_index, micro_batch});
    ENSURE(is_new, "forward of chunk ", chunk_index, " of micro-batch ", micro_batch, " twice");
    return at->second;
}

Activations* Stage::take_activations() {
    Activations* const set = pool_->activations.take();
    set->sent.wait(stream_);
    return set;
}

BoundaryTensor& Stage::input(int chunk_index, int micro_batch) {
    ENSURE(!chunk(chunk_index).embedding && !follows(chunk_index), "the input of chunk ", chunk_index, " is made here");
    MicroBatchState& own = begin_state(chunk_index, micro_batch);
    own.input = pool_->inputs.take();
    return *own.input;
}

Stage::Output Stage::output(int chunk_index, int micro_batch) {
    const MicroBatchState& own = state_of(chunk_index, micro_batch);
    ENSURE(own.phase != MicroBatchState::Phase::input && own.activations, "chunk ", chunk_index, " of micro-batch ",
           micro_batch, " has no output before its forward, nor after its backward");
    return {own.activations->residual[layers_of(chunk_index)], own.activations->sent};
}

BoundaryTensor& Stage::output_gradient(int chunk_index, int micro_batch) {
    MicroBatchState& own = state_of(chunk_index, micro_batch);
    ENSURE(own.phase == MicroBatchState::Phase::forward && !chunk(chunk_index).head, "the output of chunk ",
           chunk_index, " of micro-batch ", micro_batch,
           " is given a gradient twice, or before its forward, or is the loss");
    own.phase = MicroBatchState::Phase::output_gradient;
    own.dresidual = pool_->gradients.take();
    return *own.dresidual;
}

BoundaryTensor& Stage::input_gradient(int chunk_index, int micro_batch) {
    const MicroBatchState& own = state_of(chunk_index, micro_batch);
    ENSURE(own.phase == MicroBatchState::Phase::backward && own.dresidual, "chunk ", chunk_index, " of micro-batch ",
           micro_batch, " has no gradient of its input: it begins with the embedding, or its backward has not been");
    return *own.dresidual;
}

void Stage::release_input_gradient(int chunk_index, int micro_batch) {
    input_gradient(chunk_index, micro_batch);
    pool_->gradients.give_back(std::exchange(state_of(chunk_index, micro_batch).dresidual, nullptr));
    finish(chunk_index, micro_batch, false);
}

// Takes the input: the embedding makes it, the chunk before on this rank has it, or it was received.
void Stage::take_input(int chunk_index, int micro_batch, Purpose purpose) {
    if (chunk(chunk_index).embedding) {
        begin_state(chunk_index, micro_batch).activations = take_activations();
    } else if (follows(chunk_index)) {
        const floatX* const from = output(chunk_index - 1, micro_batch).data;
        Activations* set = nullptr;
        if (purpose == Purpose::training) {
            set = take_activations();
        } else {
            set = std::exchange(state_of(chunk_index - 1, micro_batch).activations, nullptr);
            finish(chunk_index - 1, micro_batch, true);
        }
        begin_state(chunk_index, micro_batch).activations = set;
        CUDA_CHECK(cudaMemcpyAsync(set->residual[0], from, residual_bytes(), cudaMemcpyDeviceToDevice, stream_));
    } else {
        MicroBatchState& own = state_of(chunk_index, micro_batch);
        ENSURE(own.input != nullptr, "forward of chunk ", chunk_index, " of micro-batch ", micro_batch, " twice");
        own.activations = take_activations();
        own.input->used.wait(stream_);
        std::swap(own.activations->residual[0], own.input->data);   // instead of a copy
        own.input->used.record(stream_);
        pool_->inputs.give_back(std::exchange(own.input, nullptr));
    }
}

void Stage::forward(int chunk_index, int micro_batch, const Batch& batch, Purpose purpose) {
    take_input(chunk_index, micro_batch, purpose);
    MicroBatchState& own = state_of(chunk_index, micro_batch);
    ENSURE(own.phase == MicroBatchState::Phase::input, "forward of chunk ", chunk_index, " of micro-batch ",
           micro_batch, " twice");
    own.phase = MicroBatchState::Phase::forward;
    tools_->documents = batch.documents;
    const Activations& a = *own.activations;
    const ChunkPlace& place = chunks_[static_cast<std::size_t>(chunk_index)];
    const std::size_t layers = layers_of(chunk_index);
    if (place.what.embedding) use(Direction::forward, [&] { embedding_->forward(a.residual[0], batch); });
    if (show_ && place.what.embedding) show_(table().embedding_unit(), "encoded", a.residual[0], boundary_elements());
    for (std::size_t i = 0; i < layers; i++) {
        const Layer& layer = layers_[place.first_layer + i];
        use(Direction::forward, [&] { layer.forward(a.residual[i + 1], a.residual[i], a.layers[i]); });
        if (!show_) continue;
        const int unit = table().layer_unit(static_cast<int>(place.what.layers.begin + static_cast<std::int64_t>(i)));
        layer.show(
            [&](const char* name, const floatX* values, std::int64_t count) { show_(unit, name, values, count); },
            a.layers[i], a.residual[i + 1]);
    }
    if (!place.what.head || purpose == Purpose::training) return;
    use(Direction::forward, [&] {
        if (purpose == Purpose::loss) head_->loss(a.residual[layers], batch);
        if (purpose == Purpose::logits) head_->final_norm(a.residual[layers]);
    });
    if (show_) show_(table().head_unit(), "lnf", workspace_->lnf.data(), boundary_elements());
}

// Ends the state once nobody needs its activations, nor its gradient of the input.
void Stage::finish(int chunk_index, int micro_batch, bool activations_are_done) {
    MicroBatchState& own = state_of(chunk_index, micro_batch);
    if (activations_are_done && own.activations) pool_->activations.give_back(std::exchange(own.activations, nullptr));
    if (!own.activations && !own.dresidual) states_.erase({chunk_index, micro_batch});
}

void Stage::release(int chunk_index, int micro_batch) { finish(chunk_index, micro_batch, true); }

// Takes the output's gradient: the head makes it, the chunk after on this rank has it, or it was received.
void Stage::take_output_gradient(int chunk_index, int micro_batch) {
    MicroBatchState& own = state_of(chunk_index, micro_batch);
    ENSURE(own.phase == MicroBatchState::Phase::forward || own.phase == MicroBatchState::Phase::output_gradient,
           "backward_input of chunk ", chunk_index, " of micro-batch ", micro_batch, " twice, or before its forward");
    if (own.phase == MicroBatchState::Phase::forward) {
        if (chunk(chunk_index).head) {
            own.dresidual = pool_->gradients.take();
            own.dresidual->used.wait(stream_);
        } else {
            ENSURE(chunk_index + 1 < chunks() && follows(chunk_index + 1), "chunk ", chunk_index, " of micro-batch ",
                   micro_batch, " was given no gradient of its output");
            own.dresidual = std::exchange(state_of(chunk_index + 1, micro_batch).dresidual, nullptr);
            ENSURE(own.dresidual != nullptr, "backward of chunk ", chunk_index, " of micro-batch ", micro_batch,
                   " before that of the chunk after it");
            finish(chunk_index + 1, micro_batch, false);
        }
    }
    if (own.phase == MicroBatchState::Phase::output_gradient) own.dresidual->used.wait(stream_);
    own.phase = MicroBatchState::Phase::backward;
}

void Stage::backward_input(int chunk_index, int micro_batch, const Batch& batch, float dloss) {
    take_output_gradient(chunk_index, micro_batch);
    MicroBatchState& own = state_of(chunk_index, micro_batch);
    tools_->documents = batch.documents;
    const bool delays = options_.in_flight.delayed > 0;
    const bool sends = options_.place.mesh.tp > 1 || context().ring_size() > 1;
    own.weights = WeightGradientQueue(delays  ? WeightGradients::at_schedule
                                      : sends ? WeightGradients::behind_collective
                                              : WeightGradients::at_once);
    if (delays) {
        own.delayed = pool_->delayed.take();
        own.activations->sent.wait(stream_);   // gradients take the output's place
    }
    backward(own, chunk_index, batch, dloss);
    if (chunk(chunk_index).embedding) {
        own.dresidual->used.record(stream_);
        pool_->gradients.give_back(std::exchange(own.dresidual, nullptr));
    }
    finish(chunk_index, micro_batch, !delays);
}

void Stage::backward(MicroBatchState& own, int chunk_index, const Batch& batch, float dloss) {
    const ChunkPlace& place = chunks_[static_cast<std::size_t>(chunk_index)];
    const Activations& a = *own.activations;
    const std::size_t layers = layers_of(chunk_index);
    floatX* const dresidual = own.dresidual->data;
    if (place.what.head) {
        const int slot = slot_of(table().index("ln_f.weight"));
        const int classifier = slot_of(table().classifier());
        if (classifier != slot) gradients_begin(classifier);   // the embedding's, to which it is tied
        gradients_begin(slot);
        use(Direction::backward,
            [&] { head_->loss_and_backward(dresidual, a.residual[layers], batch, dloss, *gradients_); });
        gradients_ready(slot);
    }
    for (std::size_t i = layers; i-- > 0;) {
        const Layer& layer = layers_[place.first_layer + i];
        const int slot = layer_slots_[place.first_layer + i];
        if (own.delayed != nullptr) {   // until then another unit may use this gradient memory
            own.weights.add([this, slot] { gradients_begin(slot); });
        } else {
            gradients_begin(slot);
        }
        use(Direction::backward, [&] {
            if (own.delayed == nullptr) {
                layer.recompute(a.residual[i], a.layers[i], options_.recompute);
                layer.backward(dresidual, a.residual[i], a.layers[i], nullptr, *gradients_, own.weights);
                return;
            }
            const LayerActivations made = moved(a.layers[i], own.delayed->recomputed[i]);
            const Layer::Delayed kept{a.residual[i + 1], own.delayed->norms.empty() ? nullptr : own.delayed->norms[i]};
            layer.recompute(a.residual[i], made, options_.recompute);
            layer.backward(dresidual, a.residual[i], made, &kept, *gradients_, own.weights);
        });
        own.weights.then([this, slot] { gradients_ready(slot); });
        // Recompute overwrites what waiting gradients read: run them now. Else the last ones hide the next layer's
        // first collective.
        if (own.delayed == nullptr && options_.recompute >= Recompute::gelu_norm) own.weights.drain();
    }
    if (place.what.embedding) {
        const int slot = slot_of(table().unit_params(table().embedding_unit()).back());
        gradients_begin(slot);
        embedding_->backward(dresidual, batch, *gradients_, own.weights);
        gradients_ready(slot);
    }
    if (own.delayed == nullptr) own.weights.drain();
}

void Stage::backward_weight(int chunk_index, int micro_batch) {
    MicroBatchState& own = state_of(chunk_index, micro_batch);
    ENSURE(own.delayed != nullptr, "backward_weight of chunk ", chunk_index, " of micro-batch ", micro_batch,
           " before its backward_input, or where gradients of weights are not delayed");
    own.weights.drain();
    pool_->delayed.give_back(std::exchange(own.delayed, nullptr));
    finish(chunk_index, micro_batch, true);
}

void Stage::logits(floatX* out, int first_row, int count) const {
    ENSURE(first_row >= 0 && count >= 0 && first_row + count <= sizes_.rows(), "rows ", first_row, " + ", count, " of ",
           sizes_.rows());
    head_->logits(out, first_row, count);
}

std::string Stage::memory_by_schedule() const {
    const InFlight& most = options_.in_flight;
    auto mebibytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    const std::int64_t set = activation_set_bytes(sizes_, max_layers_, options_.recompute);
    const std::int64_t made_again = activation_set_bytes(sizes_, max_layers_, Recompute::none) - set;
    const auto boundary = static_cast<std::int64_t>(residual_bytes());
    std::string line =
        formatted("  by the schedule: %d sets of activations of %.2f MiB, %d + %d boundaries of %.2f MiB",
                  most.activations, mebibytes(set), most.inputs, most.gradients, mebibytes(boundary));
    if (most.delayed > 0 && made_again > 0) {
        line += formatted(", %d x %.2f MiB of what is computed again, for delayed gradients of weights", most.delayed,
                          mebibytes(made_again));
    }
    return line;
}
