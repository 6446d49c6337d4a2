#include "llmc/model/sublayers/attention.h"

#include "llmc/kernels/attention/attention_cached.cuh"
#include "llmc/kernels/init.cuh"

// ---------------------------------------------------------------------------------------------------------------------
// What it has

std::vector<ParamRow> Attention::parameters(const ModelConfig& config) {
    const std::int64_t C = config.channels;
    const std::vector<std::int64_t> qkv = {C, C, C};
    std::vector<ParamRow> rows = Norm::parameters("ln_1", config);
    rows.push_back({.name = "attn.c_attn.weight",
                    .tensor = {.rows = 3 * C, .cols = C, .cut = TensorCut::rows, .blocks = qkv},
                    .init = Init::normal,
                    .decays = true,
                    .hf_transposed = true});
    rows.push_back({.name = "attn.c_attn.bias", .tensor = {.rows = 3 * C, .cut = TensorCut::rows, .blocks = qkv}});
    rows.push_back({.name = "attn.c_proj.weight",
                    .tensor = {.rows = C, .cols = C, .cut = TensorCut::columns},
                    .init = Init::normal,
                    .writes_residual = true,
                    .decays = true,
                    .hf_transposed = true});
    rows.push_back({.name = "attn.c_proj.bias", .tensor = {.rows = C}});
    return rows;
}

std::vector<KeptTensor> Attention::kept(const RankSizes& sizes) {
    const std::int64_t R = sizes.rows(), heads = std::int64_t{sizes.NH} * sizes.HS;
    // (B, T, 3, NH, HS); in delayed backward its gradient
    std::vector<KeptTensor> all =
        Branch::kept("ln1", "ln1_mean", "ln1_rstd", {.name = "qkv", .elements = R * 3 * heads}, sizes);
    all.push_back({.name = "atty", .elements = R * heads});   // (B, T, NH, HS) what is projected
    // (B, NH, T) log-sum-exp of each query's scores
    all.push_back({.name = "lse", .elements = R * sizes.NH, .statistic = true});
    all.push_back({.name = "attended", .elements = sizes.ulysses > 1 ? R * heads : 0});
    return all;
}

std::vector<ScratchTensor> Attention::scratch(const RankSizes& sizes) {
    const std::int64_t R = sizes.rows();
    return {{.name = "rows_3c", .elements = R * 3 * sizes.NH * sizes.HS, .backward_only = false},   // dqkv
            {.name = "attention_delta", .elements = R * sizes.NH, .fp32 = true, .backward_only = false}};
}

Attention::Attention(const SublayerPlace& place)
    : Branch(place, "ln_1", "attn.c_attn", "attn.c_proj", place.tools.workspace.scratch<floatX>("rows_3c")),
      delta_(place.tools.workspace.scratch<float>("attention_delta")) {}

// ---------------------------------------------------------------------------------------------------------------------
// What it does

void Attention::enter(const floatX* normed, Rows rows, const LayerActivations& a) const {
    in().forward(at_row(at(a, kQkv), rows, in().out_channels()), at_row(normed, rows, in().in_channels()), rows.count,
                 tools().stream);
}

void Attention::mix(const LayerActivations& a) const {
    tools().cut_points.attend(tools().attention, forward_arguments(a), at(a, kQkv), at(a, kAtty), tools().stream);
}

AttentionForward<floatX> Attention::forward_arguments(const LayerActivations& a) const {
    const AttentionShape s = tools().sizes.attention();
    const floatX* qkv = at(a, kQkv);
    auto part = [&](int i) { return packed_heads(qkv, i, s.Tq, s.NH, s.HS); };
    return {contiguous_heads(attended(a), s.Tq, s.NH, s.HS), at<float>(a, kLse), part(0), part(1), part(2), s};
}

AttentionBackward<floatX> Attention::backward_arguments(const LayerActivations& a) const {
    const AttentionShape s = tools().sizes.attention();
    const floatX *qkv = at(a, kQkv), *out = attended(a), *dout = tools().workspace.rows_c.data();
    auto part = [&](auto* packed, int i) { return packed_heads(packed, i, s.Tq, s.NH, s.HS); };
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
}

void Attention::cached_inside(const CachedStep& step) const {
    const RankSizes& sizes = tools().sizes;
    in().forward_few(step.cache + step.position * cache_elements(), normed(step.a).out, step.rows, tools().stream);
    cached_attention(CachedAttention<floatX>{.out = at(step.a, kAtty),
                                             .qkv = step.cache,
                                             .first = step.position,
                                             .rows = step.rows,
                                             .NH = sizes.NH,
                                             .HS = sizes.HS},
                     tools().stream);
}

void Attention::fill_randomly(const LayerActivations& a) const {
    const std::int64_t elements = std::int64_t{tools().sizes.rows()} * tools().sizes.NH * tools().sizes.HS;
    fill_normal(at(a, kQkv), 3 * elements, 1.0f, 1, GlobalSpan{}, tools().stream);
    fill_normal(tools().workspace.rows_c.data(), elements, 1.0f, 2, GlobalSpan{}, tools().stream);
}
