#include "llmc/model/gpt.h"

#include <algorithm>

namespace {

// Rows of logits that exist at once when the user does not say: a multiple of 128 that keeps them within half a GiB.
int default_classifier_rows(std::int64_t padded_vocab_size) {
    const std::int64_t bytes = std::int64_t{512} << 20, multiple = 128;
    const std::int64_t rows = bytes / (padded_vocab_size * static_cast<std::int64_t>(sizeof(floatX)));
    return static_cast<int>(std::max(rows / multiple * multiple, multiple));
}

void check_options(const ModelConfig& config, const GptOptions& options) {
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
    const std::int64_t widest = std::max(4 * config.channels, config.padded_vocab_size);
    if (std::int64_t{options.B} * options.T > INT32_MAX / 2 || widest > INT32_MAX / 2) {
        throw Error(ErrorKind::usage, text("a micro-batch of ", options.B, " x ", options.T, " tokens"),
                    "Lower --micro-batch.");
    }
}

}   // namespace

Gpt::Gpt(const ModelConfig& config, const GptOptions& options, Arena& arena, cudaStream_t stream)
    : config_(config), options_(options), stream_(stream), matmul_(arena, options.matmul) {
    check_options(config, options);
    storage_ =
        std::make_unique<ParamStorage>(ParamTable(config), options.place, StageUnits{{{0, config.layers}}, true, true});
    parameters_ = ModelState<floatX>(arena, "parameters", *storage_, StateKind::parameters);
    unsharded_ = is_sharded(StateKind::parameters, options.place.zero_stage)
                     ? ModelState<floatX>::rotating(arena, "unsharded parameters", *storage_, zero_layer_sets)
                     : parameters_;
    list_uses();
    sizes_ = rank_sizes(config, options.place.mesh, options.B, options.T);
    max_rows_ = sizes_.rows();
    int classifier_rows = options.classifier_rows > 0 ? options.classifier_rows : default_classifier_rows(sizes_.Vp);
    classifier_rows = std::min(classifier_rows, max_rows_);
    pool_ =
        std::make_unique<ActivationPool>(arena, sizes_, static_cast<int>(config.layers), options.recompute, InFlight{});
    activations_ = pool_->activations.take();
    attention_ = std::make_unique<AttentionChoice<floatX>>(options.attention, sizes_.attention(), arena);
    workspace_ = std::make_unique<Workspace>(arena, sizes_, classifier_rows);
    tools_ = std::make_unique<StageTools>(
        StageTools{matmul_, *attention_, cut_points_, sizes_, *workspace_, options.gelu_fusion, stream});
    embedding_ = std::make_unique<Embedding>(*tools_, unsharded_);
    for (int layer = 0; layer < static_cast<int>(config.layers); layer++) {
        blocks_.emplace_back(*tools_, unsharded_, layer);
    }
    head_ = std::make_unique<Head>(*tools_, unsharded_, classifier_rows);
    if (options.attention != AttentionKind::auto_) use_attention(options.attention);
}

Gpt::~Gpt() = default;

// Units in the storage: embedding, layers, head. With a tied classifier the head's piece reads the embedding's wte too.
void Gpt::list_uses() {
    const int layers = static_cast<int>(config_.layers), head = layers + 1;
    for (int slot = 0; slot <= layers; slot++) forward_uses_.push_back({slot});
    forward_uses_.push_back(config_.tied ? std::vector<int>{0, head} : std::vector<int>{head});
    training_uses_ = forward_uses_;
    for (int slot = layers; slot >= 1; slot--) training_uses_.push_back({slot});
}

void Gpt::set_batch_shape(int B, int T) {
    ENSURE(B >= 1 && T >= 1 && T <= config_.max_seq_len && std::int64_t{B} * T <= max_rows_, "a micro-batch of ", B,
           " x ", T, " tokens, room for ", max_rows_);
    options_.B = sizes_.B = B;
    options_.T = sizes_.T = T;
}

void Gpt::initialize(std::uint64_t seed) { initialize_parameters(parameters_, seed, stream_); }

void Gpt::layers_forward(const Batch& batch) {
    const Activations& a = *activations_;
    use([&] { embedding_->forward(a.residual[0], batch); });
    for (std::size_t i = 0; i < blocks_.size(); i++) {
        use([&] { blocks_[i].forward(a.residual[i + 1], a.residual[i], a.blocks[i]); });
    }
}

void Gpt::forward_layers(const Batch& batch) {
    begin_pass(forward_uses_);
    layers_forward(batch);
    use([&] { head_->final_layernorm(activations_->residual.back()); });
}

void Gpt::logits_of_rows(floatX* logits, int first_row, int count) {
    ENSURE(first_row >= 0 && count >= 0 && first_row + count <= sizes_.rows(), "rows ", first_row, " + ", count, " of ",
           sizes_.rows());
    head_->logits(logits, first_row, count);
}

void Gpt::forward_loss(const Batch& batch) {
    begin_pass(forward_uses_);
    layers_forward(batch);
    use([&] { head_->loss(activations_->residual.back(), batch); });
}

template <class G>
void Gpt::forward_backward(Gradients<G>& gradients, const Batch& batch, float dloss) {
    const int layers = static_cast<int>(config_.layers), head = layers + 1;
    const Activations& a = *activations_;
    floatX** const dresidual = pool_->gradients.take();
    WeightGradientQueue queue;
    begin_pass(training_uses_);
    layers_forward(batch);
    auto ready = [&](int slot) {
        gradients.unit_ready(slot);
        gradients_ready(slot);
    };

    if (config_.tied) gradients_begin(0);   // the classifier writes the embedding's
    gradients_begin(head);
    use([&] { head_->loss_and_backward(*dresidual, a.residual.back(), batch, dloss, gradients); });
    ready(head);
    for (int layer = layers - 1; layer >= 0; layer--) {
        const auto i = static_cast<std::size_t>(layer);
        gradients_begin(layer + 1);
        use([&] {
            blocks_[i].recompute(a.residual[i], a.blocks[i], options_.recompute);
            blocks_[i].backward(*dresidual, a.residual[i], a.blocks[i], nullptr, gradients, queue);
        });
        ready(layer + 1);
    }
    if (!config_.tied) gradients_begin(0);
    embedding_->backward(*dresidual, batch, gradients);
    ready(0);
    pool_->gradients.give_back(dresidual);
}

template void Gpt::forward_backward(Gradients<float>&, const Batch&, float);
#if defined(PRECISION_BF16)
template void Gpt::forward_backward(Gradients<bf16>&, const Batch&, float);
#endif
