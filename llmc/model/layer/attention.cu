#include "llmc/model/layer/attention.h"

#include "llmc/kernels/attention/attention_cached.cuh"
#include "llmc/kernels/init.cuh"
#include "llmc/kernels/rows/embedding.cuh"

Attention::Attention(const StageTools& tools, const ModelState<floatX>& parameters, int layer)
    : tools_(tools),
      c_attn_(tools, parameters, "attn.c_attn", layer),
      qk_norms_(tools, parameters, layer),
      c_proj_(tools, parameters, "attn.c_proj", layer),
      scratch_(tools.workspace.layer.attention) {}

std::vector<ParamRow> Attention::parameters(const ModelConfig& config) {
    const std::int64_t C = config.channels, q = config.heads * config.head_size(),
                       kv = config.kv_heads() * config.head_size();
    const std::vector<std::int64_t> qkv = {q, kv, kv};
    std::vector<std::int64_t> heads;
    if (config.kv_heads() < config.heads) heads = {config.heads, config.kv_heads(), config.kv_heads()};
    std::vector<ParamRow> rows;
    Linear::add_parameters(rows, config, "attn.c_attn",
                           {.rows = q + 2 * kv, .cols = C, .cut = TensorCut::rows, .blocks = qkv, .heads = heads},
                           {.rows = q + 2 * kv, .cut = TensorCut::rows, .blocks = qkv, .heads = heads}, false);
    for (ParamRow& row : QkNorms::parameters(config)) rows.push_back(std::move(row));
    Linear::add_parameters(rows, config, "attn.c_proj", {.rows = C, .cols = q, .cut = TensorCut::columns}, {.rows = C},
                           true);
    return rows;
}

// ---------------------------------------------------------------------------------------------------------------------
// Training

void Attention::forward(floatX* out, const floatX* in, const Join& join, const ForwardPass& pass,
                        const AttentionActivations& a) const {
    TpRegion& tp = tools_.tp;
    const floatX* const all = tp.begin_gather(in);
    for (int i = 0; i < tp.gathered_chunks(); i++) {
        const Rows rows = tp.wait_for_gathered(i);
        floatX* const qkv = at_row(a.qkv, rows, c_attn_.out_channels());
        c_attn_.forward(qkv, at_row(all, rows, c_attn_.in_channels()), rows.count);
        qk_norms_.forward(qkv, rows, tools_.sizes.T, tools_.context.positions(pass.batch), a);
    }
    tools_.context.attend(tools_.attention, forward_arguments(a, shape(pass.batch)), a.qkv, a.atty);
    c_proj_.forward_join(out, a.atty, join);
}

const floatX* Attention::backward(const SublayerBackward& args, const AttentionActivations& a,
                                  const ReusableMemory& reusable, std::byte* norms_aside) const {
    floatX *const datty = tools_.workspace.datty, *const dqkv = scratch_.dqkv;
    const floatX* const dout = c_proj_.begin_backward(args, a.atty);
    c_proj_.backward_input(datty, dout, tools_.sizes.rows());
    tools_.context.attend_backward(tools_.attention, backward_arguments(a, shape(args.pass.batch)), dqkv, datty,
                                   reusable, args.queue);
    qk_norms_.backward(dqkv, args, a, norms_aside);
    return c_attn_.end_backward(args, dqkv, a.qkv);
}

// Returns the shape with the documents of a micro-batch.
AttentionShape Attention::shape(const Batch& batch) const {
    AttentionShape shape = tools_.sizes.attention();
    shape.documents = batch.documents.first_keys;
    return shape;
}

AttentionForward<floatX> Attention::forward_arguments(const AttentionActivations& a, const AttentionShape& s) const {
    const floatX* const qkv = a.qkv;
    auto part = [&](int i) { return packed_heads(qkv, i, s.Tq, s.NH, s.HS, s.kv_heads()); };
    return {contiguous_heads(attended(a), s.Tq, s.NH, s.HS), a.lse, part(0), part(1), part(2), s};
}

AttentionBackward<floatX> Attention::backward_arguments(const AttentionActivations& a, const AttentionShape& s) const {
    const floatX *qkv = a.qkv, *out = attended(a), *dout = tools_.workspace.datty;
    auto part = [&](auto* packed, int i) { return packed_heads(packed, i, s.Tq, s.NH, s.HS, s.kv_heads()); };
    return {.dq = part(scratch_.dqkv, 0),
            .dk = part(scratch_.dqkv, 1),
            .dv = part(scratch_.dqkv, 2),
            .delta = scratch_.delta,
            .dout = contiguous_heads(dout, s.Tq, s.NH, s.HS),
            .out = contiguous_heads(out, s.Tq, s.NH, s.HS),
            .lse = a.lse,
            .q = part(qkv, 0),
            .k = part(qkv, 1),
            .v = part(qkv, 2),
            .shape = s};
}

void Attention::fill_randomly(const AttentionActivations& a) const {
    const RankSizes& sizes = tools_.sizes;
    const std::int64_t elements = std::int64_t{sizes.rows()} * sizes.NH * sizes.HS;
    fill_normal(a.qkv, std::int64_t{sizes.rows()} * sizes.attended_width(), 1.0f, 1, GlobalSpan{}, tools_.stream);
    fill_normal(tools_.workspace.datty, elements, 1.0f, 2, GlobalSpan{}, tools_.stream);
}

// ---------------------------------------------------------------------------------------------------------------------
// Generation

const floatX* Attention::cached(const CachedStep& step, const AttentionActivations& a) const {
    const RankSizes& sizes = tools_.sizes;
    floatX* const qkv = step.cache + std::int64_t{step.position} * sizes.qkv_width();
    const Rows rows{0, step.rows};
    c_attn_.forward_few(qkv, step.in, step.rows);
    qk_norms_.forward(qkv, rows, step.rows, {.first = step.position}, a);
    cached_attention(CachedAttention<floatX>{.out = a.atty,
                                             .qkv = step.cache,
                                             .first = step.position,
                                             .rows = step.rows,
                                             .NH = sizes.NH,
                                             .HS = sizes.HS,
                                             .group = sizes.NH / sizes.KV},
                     tools_.stream);
    c_proj_.forward_few(tools_.workspace.branch_out, a.atty, step.rows);
    return tools_.workspace.branch_out;
}
