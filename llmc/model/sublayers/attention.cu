#include "llmc/model/sublayers/attention.h"

#include "llmc/kernels/attention/attention_cached.cuh"
#include "llmc/kernels/init.cuh"
#include "llmc/kernels/rows/rotary.cuh"

// ---------------------------------------------------------------------------------------------------------------------
// What it has

std::vector<ParamRow> Attention::parameters(const ModelConfig& config) {
    const std::int64_t C = config.channels, q = config.heads * config.head_size(),
                       kv = config.kv_heads() * config.head_size();
    const std::vector<std::int64_t> qkv = {q, kv, kv};
    std::vector<ParamRow> rows = Norm::parameters("ln_1", config);
    add_linear(rows, config, "attn.c_attn", {.rows = q + 2 * kv, .cols = C, .cut = TensorCut::rows, .blocks = qkv},
               {.rows = q + 2 * kv, .cut = TensorCut::rows, .blocks = qkv}, false);
    add_linear(rows, config, "attn.c_proj", {.rows = C, .cols = q, .cut = TensorCut::columns}, {.rows = C}, true);
    return rows;
}

std::vector<KeptTensor> Attention::kept(const RankSizes& sizes) {
    const std::int64_t R = sizes.rows(), heads = std::int64_t{sizes.NH} * sizes.HS;
    // (B, T, NH of q, KV of k, KV of v, HS), turned where positions are rotary; in delayed backward its gradient
    std::vector<KeptTensor> all =
        Branch::kept("ln1", "ln1_mean", "ln1_rstd", {.name = "qkv", .elements = R * sizes.qkv_width()}, sizes);
    all.push_back({.name = "atty", .elements = R * heads});   // (B, T, NH, HS) what is projected
    // (B, NH, T) log-sum-exp of each query's scores
    all.push_back({.name = "lse", .elements = R * sizes.NH, .statistic = true});
    all.push_back({.name = "attended", .elements = sizes.ulysses > 1 ? R * heads : 0});
    return all;
}

std::vector<ScratchTensor> Attention::scratch(const RankSizes& sizes) {
    const std::int64_t R = sizes.rows();
    return {{.name = "rows_3c", .elements = R * sizes.qkv_width(), .backward_only = false},   // dqkv
            {.name = "attention_delta", .elements = R * sizes.NH, .fp32 = true, .backward_only = false}};
}

Attention::Attention(const SublayerPlace& place)
    : Branch(place, "ln_1", "attn.c_attn", "attn.c_proj", place.tools.workspace.scratch<floatX>("rows_3c")),
      delta_(place.tools.workspace.scratch<float>("attention_delta")) {}

// ---------------------------------------------------------------------------------------------------------------------
// What it does

void Attention::enter(const floatX* normed, Rows rows, const LayerActivations& a) const {
    floatX* const qkv = at_row(at(a, kQkv), rows, in().out_channels());
    in().forward(qkv, at_row(normed, rows, in().in_channels()), rows.count, tools().stream);
    turn(qkv, rows, tools().sizes.T, tools().cut_points.positions(), false);
}

// Rotary positions of these rows' queries and keys, or of their gradients.
void Attention::turn(floatX* qkv, Rows rows, int T, const Positions& positions, bool backward) const {
    const RankSizes& sizes = tools().sizes;
    const ModelConfig& model = sizes.model;
    if (model.positions != PositionKind::rotary) return;
    rotary(Rotary<floatX>{.heads = qkv,
                          .row = sizes.qkv_width(),
                          .rows = rows.count,
                          .turned = sizes.NH + sizes.KV,
                          .HS = sizes.HS,
                          .first_row = rows.first,
                          .T = T,
                          .positions = positions,
                          .theta = static_cast<float>(model.rope_theta),
                          .factor = static_cast<float>(model.rope_factor),
                          .backward = backward},
           tools().stream);
}

void Attention::mix(const LayerActivations& a) const {
    tools().cut_points.attend(tools().attention, forward_arguments(a), at(a, kQkv), at(a, kAtty), tools().stream);
}

AttentionForward<floatX> Attention::forward_arguments(const LayerActivations& a) const {
    const AttentionShape s = tools().sizes.attention();
    const floatX* qkv = at(a, kQkv);
    auto part = [&](int i) { return packed_heads(qkv, i, s.Tq, s.NH, s.HS, s.kv_heads()); };
    return {contiguous_heads(attended(a), s.Tq, s.NH, s.HS), at<float>(a, kLse), part(0), part(1), part(2), s};
}

AttentionBackward<floatX> Attention::backward_arguments(const LayerActivations& a) const {
    const AttentionShape s = tools().sizes.attention();
    const floatX *qkv = at(a, kQkv), *out = attended(a), *dout = tools().workspace.rows_c.data();
    auto part = [&](auto* packed, int i) { return packed_heads(packed, i, s.Tq, s.NH, s.HS, s.kv_heads()); };
    return {.dq = part(din(), 0),
            .dk = part(din(), 1),
            .dv = part(din(), 2),
            .delta = delta_,
            .dout = contiguous_heads(dout, s.Tq, s.NH, s.HS),
            .out = contiguous_heads(out, s.Tq, s.NH, s.HS),
            .lse = at<float>(a, kLse),
            .q = part(qkv, 0),
            .k = part(qkv, 1),
            .v = part(qkv, 2),
            .shape = s};
}

void Attention::inside_backward(const floatX* dout, const SublayerBackward& args) const {
    floatX* const datty = tools().workspace.rows_c.data();
    out().backward_input(datty, dout, tools().sizes.rows(), tools().stream);
    tools().cut_points.attend_backward(tools().attention, backward_arguments(args.a), din(), datty, args.lent,
                                       args.queue, tools().stream);
    turn(din(), {0, tools().sizes.rows()}, tools().sizes.T, tools().cut_points.positions(), true);
}

void Attention::cached_inside(const CachedStep& step) const {
    const RankSizes& sizes = tools().sizes;
    floatX* const qkv = step.cache + step.position * cache_elements();
    in().forward_few(qkv, normed(step.a).out, step.rows, tools().stream);
    turn(qkv, {0, step.rows}, step.rows, {.first = step.position}, false);
    cached_attention(CachedAttention<floatX>{.out = at(step.a, kAtty),
                                             .qkv = step.cache,
                                             .first = step.position,
                                             .rows = step.rows,
                                             .NH = sizes.NH,
                                             .HS = sizes.HS,
                                             .group = sizes.NH / sizes.KV},
                     tools().stream);
}

void Attention::fill_randomly(const LayerActivations& a) const {
    const RankSizes& sizes = tools().sizes;
    const std::int64_t elements = std::int64_t{sizes.rows()} * sizes.NH * sizes.HS;
    fill_normal(at(a, kQkv), std::int64_t{sizes.rows()} * sizes.qkv_width(), 1.0f, 1, GlobalSpan{}, tools().stream);
    fill_normal(tools().workspace.rows_c.data(), elements, 1.0f, 2, GlobalSpan{}, tools().stream);
}
