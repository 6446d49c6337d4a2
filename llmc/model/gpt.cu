#include "llmc/model/gpt.h"

#include "llmc/kernels/classifier.cuh"
#include "llmc/kernels/encoder.cuh"
#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/layernorm.cuh"
#include "llmc/kernels/residual.cuh"

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

static std::size_t staging_size(int B, int T) {
    const std::size_t positions = static_cast<std::size_t>(B) * static_cast<std::size_t>(T);
    return 2 * positions + token_groups_capacity(positions);
}

BatchBuffer::BatchBuffer(Arena& arena, int B, int T, std::int64_t vocab_size)
    : vocab_size_(static_cast<int>(vocab_size)),
      staging_{Staging{PinnedBuffer<int>(staging_size(B, T)), {}}, Staging{PinnedBuffer<int>(staging_size(B, T)), {}}} {
    const std::size_t positions = static_cast<std::size_t>(B) * static_cast<std::size_t>(T);
    tokens_ = arena.allocate<int>("batch/tokens", positions);
    targets_ = arena.allocate<int>("batch/targets", positions);
    groups_ = arena.allocate<int>("batch/token_groups", token_groups_capacity(positions));
}

void BatchBuffer::upload(std::span<const int> tokens, std::span<const int> targets, cudaStream_t stream) {
    ENSURE(tokens.size() == tokens_.size(), "a batch of ", tokens.size(), " tokens, expected ", tokens_.size());
    ENSURE(targets.empty() || targets.size() == tokens.size(), targets.size(), " targets for ", tokens.size(),
           " tokens");
    const TokenGroups groups = group_tokens(tokens, vocab_size_);
    const Staging& staging = staging_[next_staging_++ % staging_.size()];
    CUDA_CHECK(cudaEventSynchronize(staging.copied.get()));   // what it held two uploads ago has left
    std::span<int> room = staging.values.values();
    auto send = [&](const DeviceBuffer<int>& to, std::span<const int> values) {
        std::copy(values.begin(), values.end(), room.begin());
        to.upload(room.first(values.size()), stream);
        room = room.subspan(values.size());
    };
    send(tokens_, tokens);
    send(targets_, targets);
    send(groups_, groups.data);
    staging.copied.record(stream);
    batch_ = {tokens_.data(), targets.empty() ? nullptr : targets_.data(), groups.view(groups_.data())};
}

Gpt::Gpt(const ModelConfig& config, const GptOptions& options, Arena& arena, cudaStream_t stream)
    : config_(config),
      options_(options),
      stream_(stream),
      C_(static_cast<int>(config.channels)),
      NH_(static_cast<int>(config.heads)),
      HS_(static_cast<int>(config.head_size())),
      V_(static_cast<int>(config.vocab_size)),
      Vp_(static_cast<int>(config.padded_vocab_size)),
      matmul_(arena, options.matmul) {
    check_options(config, options);
    classifier_rows_ = options.classifier_rows > 0 ? options.classifier_rows : default_classifier_rows(Vp_);
    classifier_rows_ = std::min(classifier_rows_, rows());
    max_rows_ = rows();
    storage_ =
        std::make_unique<ParamStorage>(ParamTable(config), options.place, StageUnits{{{0, config.layers}}, true, true});
    parameters_ = ModelState<floatX>(arena, "parameters", *storage_, StateKind::parameters);
    unsharded_ = is_sharded(StateKind::parameters, options.place.zero_stage)
                     ? ModelState<floatX>::rotating(arena, "unsharded parameters", *storage_, zero_layer_sets)
                     : parameters_;
    list_uses();
    activations_ = std::make_unique<Activations>(arena, config, options.B, options.T, LayerRange{0, config.layers},
                                                 options.recompute);
    attention_ = std::make_unique<AttentionChoice<floatX>>(options.attention, attention_shape(), arena);
    workspace_ = std::make_unique<Workspace>(arena, config, options.B, options.T, classifier_rows_, true);
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
    options_.B = B;
    options_.T = T;
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward, piece by piece

void Gpt::embedding_forward(const Batch& batch, Activations& activations) {
    EncoderForward<floatX> encoder{};
    encoder.out = activations.residual(0);
    encoder.tokens = batch.tokens;
    encoder.wte = unsharded_.tensor(Param::wte);
    encoder.wpe = unsharded_.tensor(Param::wpe);
    encoder.B = options_.B;
    encoder.T = options_.T;
    encoder.C = C_;
    encoder.V = Vp_;
    encoder_forward(encoder, stream_);
}

// Everything of a block that backward may need: all but its output.
void Gpt::block_activations(int layer, Activations& activations) {
    const BlockTensors<floatX> w = unsharded_.block(layer);
    const BlockActivations& a = activations.block(layer);
    const floatX* input = activations.residual(layer);
    floatX* projected = workspace_->rows_c.data();

    layernorm_forward(LayerNormForward<floatX>{a.ln1, a.ln1_mean, a.ln1_rstd, input, w.ln1w, w.ln1b, rows(), C_},
                      stream_);
    matmul_.forward<floatX>(a.qkv, a.ln1, w.qkvw, w.qkvb, linear(3 * C_, C_), stream_);
    attention_->forward(attention_forward_of(a), stream_);
    matmul_.forward<floatX>(projected, a.atty, w.attprojw, w.attprojb, linear(C_, C_), stream_);
    residual_layernorm_forward(ResidualLayerNormForward<floatX>{a.residual2, a.ln2, a.ln2_mean, a.ln2_rstd, input,
                                                                projected, w.ln2w, w.ln2b, rows(), C_},
                               stream_);
    if (options_.gelu_fusion >= 1) {
        matmul_.forward_gelu<floatX>(a.fch_gelu, a.fch, a.ln2, w.fcw, w.fcb, linear(4 * C_, C_), stream_);
    } else {
        matmul_.forward<floatX>(a.fch, a.ln2, w.fcw, w.fcb, linear(4 * C_, C_), stream_);
        gelu_forward<floatX>(a.fch_gelu, a.fch, std::int64_t{rows()} * 4 * C_, stream_);
    }
}

void Gpt::block_forward(int layer, Activations& activations) {
    block_activations(layer, activations);
    const BlockTensors<floatX> w = unsharded_.block(layer);
    const BlockActivations& a = activations.block(layer);
    floatX* projected = workspace_->rows_c.data();
    matmul_.forward<floatX>(projected, a.fch_gelu, w.fcprojw, w.fcprojb, linear(C_, 4 * C_), stream_);
    residual_forward<floatX>(activations.residual(layer + 1), a.residual2, projected, std::int64_t{rows()} * C_,
                             stream_);
}

void Gpt::final_layernorm(Activations& activations) {
    const floatX* input = activations.residual(static_cast<int>(config_.layers));
    layernorm_forward(
        LayerNormForward<floatX>{activations.lnf, activations.lnf_mean, activations.lnf_rstd, input,
                                 unsharded_.tensor(Param::lnfw), unsharded_.tensor(Param::lnfb), rows(), C_},
        stream_);
}

void Gpt::logits_forward(floatX* logits, const Activations& activations, int first_row, int count) {
    const floatX* in = activations.lnf + std::int64_t{first_row} * C_;
    matmul_.forward<floatX>(logits, in, unsharded_.tensor(table().classifier()), nullptr, MatmulShape{count, Vp_, C_},
                            stream_);
}

void Gpt::head_forward(const Batch& batch, Activations& activations) {
    final_layernorm(activations);
    floatX* logits = workspace_->logits.data();
    for (int row = 0; row < rows(); row += classifier_rows_) {
        logits_forward(logits, activations, row, chunk_rows(row));
        fused_classifier(Classifier<floatX>{logits, activations.losses + row, batch.targets + row, chunk_rows(row), V_,
                                            Vp_, 0.0f, ClassifierOutput::loss},
                         stream_);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward of a whole micro-batch

void Gpt::layers_forward(const Batch& batch) {
    use([&] { embedding_forward(batch, *activations_); });
    for (int layer = 0; layer < static_cast<int>(config_.layers); layer++) {
        use([&] { block_forward(layer, *activations_); });
    }
}

void Gpt::forward_layers(const Batch& batch) {
    begin_pass(forward_uses_);
    layers_forward(batch);
    use([&] { final_layernorm(*activations_); });
}

void Gpt::logits_of_rows(floatX* logits, int first_row, int count) {
    ENSURE(first_row >= 0 && count >= 0 && first_row + count <= rows(), "rows ", first_row, " + ", count, " of ",
           rows());
    logits_forward(logits, *activations_, first_row, count);
}

void Gpt::forward_loss(const Batch& batch) {
    begin_pass(forward_uses_);
    layers_forward(batch);
    use([&] { head_forward(batch, *activations_); });
}
