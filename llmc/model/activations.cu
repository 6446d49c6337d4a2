#include "llmc/model/activations.h"

#include "llmc/kernels/layernorm.cuh"

Activations::Activations(Arena& arena, const ModelConfig& config, int B, int T, const LayerRange& layers,
                         Recompute recompute, bool keep_for_backward)
    : layers_(layers), recompute_(keep_for_backward ? recompute : Recompute::block) {
    const std::size_t rows = static_cast<std::size_t>(B) * static_cast<std::size_t>(T);
    const std::size_t C = static_cast<std::size_t>(config.channels), NH = static_cast<std::size_t>(config.heads);
    auto elements = [&](const std::string& name, std::size_t count) {
        buffers_.push_back(arena.allocate<floatX>("activations/" + name, count));
        return buffers_.back().data();
    };
    auto floats = [&](const std::string& name, std::size_t count) {
        float_buffers_.push_back(arena.allocate<float>("activations/" + name, count));
        return float_buffers_.back().data();
    };

    BlockActivations shared{};   // what this recompute level does not keep per layer
    for (std::int64_t layer = layers.begin; layer < layers.end; layer++) {
        const bool first = layer == layers.begin;
        BlockActivations& block = blocks_.emplace_back();
        // A tensor that level `dropped_from` and those above do not keep is allocated once, with the first layer.
        auto place = [&](auto BlockActivations::*member, const char* name, std::size_t count, Recompute dropped_from,
                         auto& allocate) {
            const bool dropped = recompute_ >= dropped_from;
            if (!dropped || first) {
                shared.*member = allocate(dropped ? text("shared/", name) : text("h.", layer, "/", name), count);
            }
            block.*member = shared.*member;
        };
        using Block = BlockActivations;
        place(&Block::ln1, "ln1", rows * C, Recompute::gelu_norm, elements);
        place(&Block::ln1_mean, "ln1_mean", rows, Recompute::block, floats);
        place(&Block::ln1_rstd, "ln1_rstd", rows, Recompute::block, floats);
        place(&Block::qkv, "qkv", rows * 3 * C, Recompute::block, elements);
        place(&Block::atty, "atty", rows * C, Recompute::block, elements);
        place(&Block::lse, "lse", rows * NH, Recompute::block, floats);
        place(&Block::residual2, "residual2", rows * C, Recompute::block, elements);
        place(&Block::ln2, "ln2", rows * C, Recompute::gelu_norm, elements);
        place(&Block::ln2_mean, "ln2_mean", rows, Recompute::block, floats);
        place(&Block::ln2_rstd, "ln2_rstd", rows, Recompute::block, floats);
        place(&Block::fch, "fch", rows * 4 * C, Recompute::block, elements);
        place(&Block::fch_gelu, "fch_gelu", rows * 4 * C, Recompute::gelu, elements);
    }
    for (std::int64_t layer = layers.begin; layer <= layers.end; layer++) {
        // without backward two are enough: the input of a layer is dead once its output stands
        const bool reuse = !keep_for_backward && layer >= layers.begin + 2;
        residuals_.push_back(reuse ? residuals_[residuals_.size() - 2]
                                   : elements(text("h.", layer, "/residual"), rows * C));
    }
    lnf = elements("lnf", rows * C);
    lnf_mean = floats("lnf_mean", rows);
    lnf_rstd = floats("lnf_rstd", rows);
    losses = floats("losses", rows);
    dresidual = keep_for_backward ? elements("dresidual", rows * C) : nullptr;
}

Workspace::Workspace(Arena& arena, const ModelConfig& config, int B, int T, int classifier_rows, bool backward) {
    const std::size_t rows = static_cast<std::size_t>(B) * static_cast<std::size_t>(T);
    const std::size_t C = static_cast<std::size_t>(config.channels), NH = static_cast<std::size_t>(config.heads);
    logits = arena.allocate<floatX>("workspace/logits", static_cast<std::size_t>(classifier_rows) *
                                                            static_cast<std::size_t>(config.padded_vocab_size));
    rows_c = arena.allocate<floatX>("workspace/rows_c", rows * C);
    if (!backward) return;
    rows_3c = arena.allocate<floatX>("workspace/rows_3c", rows * 3 * C);
    rows_4c = arena.allocate<floatX>("workspace/rows_4c", rows * 4 * C);
    delta = arena.allocate<float>("workspace/attention_delta", rows * NH);
    layernorm = arena.allocate<float>("workspace/layernorm",
                                      layernorm_backward_scratch(static_cast<int>(rows), static_cast<int>(C)));
}
