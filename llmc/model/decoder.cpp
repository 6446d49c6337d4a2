#include "llmc/model/decoder.h"

#include <algorithm>

namespace {

constexpr int kRows = 128;   // rows of a prompt that are read at once

}   // namespace

Decoder::Decoder(const ModelConfig& config, Arena& arena, cudaStream_t stream)
    : stream_(stream),
      storage_(ParamTable(config)),
      parameters_(arena, "parameters", storage_, StateKind::parameters),
      matmul_(arena),
      sizes_(rank_sizes(config, {}, false, 1, kRows)),
      workspace_(arena, sizes_, 0, false),
      activations_(arena, sizes_, 1, Recompute::none, {.gradients = 0}),
      attention_({AttentionKind::own, false}, sizes_, activations_.activations.any().layers[0].attention, workspace_,
                 arena, stream),
      tp_(nullptr, false, 1, arena, stream),
      vocabulary_(nullptr, arena, stream),
      router_bias_(config, arena, stream),
      tools_{.matmul = matmul_,
             .attention = attention_,
             .tp = tp_,
             .vocabulary = vocabulary_,
             .expert_ranks = expert_ranks_,
             .sizes = sizes_,
             .workspace = workspace_,
             .choices = choices_,
             .stream = stream,
             .router_bias = router_bias_.data()},
      embedding_(tools_, parameters_),
      head_(tools_, parameters_, 1),
      tokens_(arena.allocate<std::int32_t>("writing/tokens", kRows)),
      normed_(arena.allocate<floatX>("writing/normed", kRows * static_cast<std::size_t>(config.channels))),
      logits_(arena.allocate<floatX>("writing/logits", static_cast<std::size_t>(config.padded_vocab_size))) {
    if (config.window_cuts(config.max_seq_len)) {
        const std::vector<std::int32_t> whole(static_cast<std::size_t>(config.max_seq_len), 0);
        window_keys_ = arena.allocate<std::int32_t>("writing/window", whole.size());
        window_keys_.upload(window_starts(whole, {}, config.max_seq_len, config.window), stream);
        tools_.window_keys = window_keys_.data();
    }
    for (int l = 0; l < static_cast<int>(config.layers); l++) {
        layers_.emplace_back(tools_, parameters_, l);
        const bool slides = config.slides(l) && tools_.window_keys != nullptr;
        caches_.emplace_back(arena, text("cache/h.", l), config.max_seq_len, 2 * sizes_.KV * sizes_.HS,
                             slides ? config.window : 0, kRows);
    }
}

void Decoder::read_rows(std::span<const std::int32_t> tokens) {
    const int rows = static_cast<int>(tokens.size());
    const Activations& memory = activations_.activations.any();
    const LayerActivations& a = memory.layers[0];
    floatX* const residual = memory.residual[0];
    tokens_.upload(tokens, stream_);
    embedding_.cached(residual, tokens_.data(), position_, rows);
    if (const Norm* const ln_1 = layers_[0].first_norm()) ln_1->forward({a.ln_1.out}, residual, rows);
    for (std::size_t l = 0; l < layers_.size(); l++) {
        const bool last = l + 1 == layers_.size();
        const Norm* const next = last ? &head_.norm() : layers_[l + 1].first_norm();
        floatX* const normed = last ? normed_.data() : a.ln_1.out;
        layers_[l].cached({residual, &caches_[l], position_, rows, next, normed}, a);
    }
    position_ += rows;
}

std::vector<float> Decoder::read(std::span<const std::int32_t> tokens) {
    ENSURE(!tokens.empty() && tokens.size() <= static_cast<std::size_t>(positions() - position_), tokens.size(),
           " tokens to read after ", position_, ", room for ", positions());
    for (const std::int32_t token : tokens) {
        ENSURE(token >= 0 && token < config().vocab_size, "token ", token, " of a vocabulary of ", config().vocab_size);
    }
    std::size_t rows = 0;
    for (std::size_t done = 0; done < tokens.size(); done += rows) {
        rows = std::min<std::size_t>(kRows, tokens.size() - done);
        read_rows(tokens.subspan(done, rows));
    }
    head_.cached_logits(logits_.data(), normed_.data() + (static_cast<std::int64_t>(rows) - 1) * config().channels);
    const std::vector<floatX> all = logits_.download(stream_, 0, static_cast<std::size_t>(config().vocab_size));
    return {all.begin(), all.end()};
}
