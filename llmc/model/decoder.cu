#include "llmc/model/decoder.h"

#include <algorithm>

#include "llmc/kernels/attention/attention_cached.cuh"
#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/matmul/matvec.cuh"
#include "llmc/kernels/rows/embedding.cuh"
#include "llmc/kernels/rows/layernorm.cuh"
#include "llmc/kernels/rows/residual.cuh"

namespace {

constexpr int kRows = 128;   // of a prompt, read at once

}   // namespace

Decoder::Decoder(const ModelConfig& config, Arena& arena, cudaStream_t stream)
    : stream_(stream),
      storage_(ParamTable(config)),
      parameters_(arena, "parameters", storage_, StateKind::parameters),
      matmul_(arena),
      C_(static_cast<int>(config.channels)),
      NH_(static_cast<int>(config.heads)) {
    const auto C = static_cast<std::size_t>(C_), T = static_cast<std::size_t>(config.max_seq_len);
    for (int l = 0; l < static_cast<int>(config.layers); l++) {
        cache_.push_back(arena.allocate<floatX>(text("cache/h.", l), T * 3 * C));
    }
    tokens_ = arena.allocate<std::int32_t>("writing/tokens", kRows);
    residual_ = arena.allocate<floatX>("writing/residual", kRows * C);
    normed_ = arena.allocate<floatX>("writing/normed", kRows * C);
    added_ = arena.allocate<floatX>("writing/added", kRows * C);
    hidden_ = arena.allocate<floatX>("writing/hidden", kRows * 4 * C);
    logits_ = arena.allocate<floatX>("writing/logits", static_cast<std::size_t>(config.padded_vocab_size));
}

void Decoder::matmul(floatX* out, const floatX* in, Param weight, Param bias, int l, const MatmulShape& shape) {
    const floatX *const w = parameters_.tensor(weight, l), *const b = parameters_.tensor(bias, l);
    if (shape.M == 1) return matrix_vector<floatX>({out, in, w, b, shape.N, shape.K}, stream_);
    matmul_.forward<floatX>(out, in, w, b, shape, stream_);
}

// residual += added; normed = layernorm(residual)
void Decoder::add_and_normalise(int rows, Param weight, Param bias, int l) {
    residual_layernorm_forward(
        ResidualLayerNormForward<floatX>{residual_.data(), normed_.data(), nullptr, nullptr, residual_.data(),
                                         added_.data(), parameters_.tensor(weight, l), parameters_.tensor(bias, l),
                                         rows, C_},
        stream_);
}

// From the layer's normed input to the next layer's.
void Decoder::layer(int l, int rows) {
    floatX* const cache = cache_[static_cast<std::size_t>(l)].data();
    matmul(cache + std::int64_t{position_} * 3 * C_, normed_.data(), Param::qkvw, Param::qkvb, l, {rows, 3 * C_, C_});
    cached_attention(CachedAttention<floatX>{normed_.data(), cache, position_, rows, NH_, C_ / NH_}, stream_);
    matmul(added_.data(), normed_.data(), Param::attprojw, Param::attprojb, l, {rows, C_, C_});
    add_and_normalise(rows, Param::ln2w, Param::ln2b, l);
    matmul(hidden_.data(), normed_.data(), Param::fcw, Param::fcb, l, {rows, 4 * C_, C_});
    gelu_forward<floatX>(hidden_.data(), hidden_.data(), std::int64_t{rows} * 4 * C_, stream_);
    matmul(added_.data(), hidden_.data(), Param::fcprojw, Param::fcprojb, l, {rows, C_, 4 * C_});
    if (l + 1 < static_cast<int>(config().layers)) {
        add_and_normalise(rows, Param::ln1w, Param::ln1b, l + 1);
    } else {
        add_and_normalise(rows, Param::lnfw, Param::lnfb, -1);
    }
}

void Decoder::read_rows(std::span<const std::int32_t> tokens) {
    const int rows = static_cast<int>(tokens.size());
    tokens_.upload(tokens, stream_);
    EmbeddingForward<floatX> args{};
    args.out = residual_.data();
    args.tokens = tokens_.data();
    args.wte = parameters_.tensor(Param::wte);
    args.wpe = parameters_.tensor(Param::wpe);
    args.B = 1;
    args.T = rows;
    args.C = C_;
    args.V = static_cast<int>(config().padded_vocab_size);
    args.positions.first = position_;
    embedding_forward(args, stream_);
    layernorm_forward(
        LayerNormForward<floatX>{normed_.data(), nullptr, nullptr, residual_.data(), parameters_.tensor(Param::ln1w, 0),
                                 parameters_.tensor(Param::ln1b, 0), rows, C_},
        stream_);
    for (int l = 0; l < static_cast<int>(config().layers); l++) layer(l, rows);
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
    const floatX* const last = normed_.data() + (static_cast<std::int64_t>(rows) - 1) * C_;
    matrix_vector<floatX>({logits_.data(), last, parameters_.tensor(storage_.table().classifier()), nullptr,
                           static_cast<int>(config().vocab_size), C_},
                          stream_);
    const std::vector<floatX> all = logits_.download(stream_, 0, static_cast<std::size_t>(config().vocab_size));
    return {all.begin(), all.end()};
}
