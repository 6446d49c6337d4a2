#include "llmc/model/layer/attention.h"

#include "llmc/kernels/attention/cache/attention_cached.cuh"
#include "llmc/kernels/rows/embedding.cuh"
#include "llmc/model/attention/kv_cache.h"

Attention::Attention(const StageTools& tools, const ModelState<floatX>& parameters, int layer)
    : tools_(tools),
      slides_(tools.sizes.model.slides(layer)),
      c_attn_(tools, parameters, "attn.c_attn", layer),
      qk_norms_(tools, parameters, layer),
      c_proj_(tools, parameters, "attn.c_proj", layer) {}

std::vector<ParamRow> Attention::parameters(const ModelConfig& config) {
    const std::int64_t C = config.channels, q = config.heads * config.head_size(),
                       kv = config.kv_heads() * config.head_size();
    const std::vector<std::int64_t> qkv = {q, kv, kv};
    std::vector<std::int64_t> heads;
    if (config.kv_heads() < config.heads) heads = {config.heads, config.kv_heads(), config.kv_heads()};
    std::vector<ParamRow> rows;
    Linear::add_parameters(
        rows, config.bias != Bias::none, "attn.c_attn",
        {.rows = q + 2 * kv, .cols = C, .cut = TensorCut::column_parallel, .blocks = qkv, .heads = heads},
        {.rows = q + 2 * kv, .cut = TensorCut::column_parallel, .blocks = qkv, .heads = heads}, false);
    for (ParamRow& row : QkNorms::parameters(config)) rows.push_back(std::move(row));
    Linear::add_parameters(rows, config.bias == Bias::all, "attn.c_proj",
                           {.rows = C, .cols = q, .cut = TensorCut::row_parallel}, {.rows = C}, true);
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
        qk_norms_.forward(qkv, rows, tools_.sizes.T, tools_.attention.positions(pass.batch), a);
    }
    tools_.attention.forward(a, pass.batch, slides_);
    c_proj_.forward_join(out, a.atty, join);
}

const floatX* Attention::backward(const SublayerBackward& args, const AttentionActivations& a,
                                  const ReusableMemory& reusable, std::byte* norms_aside) const {
    floatX* const dqkv = tools_.workspace.layer.attention.dqkv;
    const floatX* const dout = c_proj_.begin_backward(args, a.atty);
    c_proj_.backward_input(tools_.workspace.datty, dout, tools_.sizes.rows());
    tools_.attention.backward(a, args.pass.batch, reusable, args.queue, slides_);
    qk_norms_.backward(dqkv, args, a, norms_aside);
    return c_attn_.end_backward(args, dqkv, a.qkv);
}

// ---------------------------------------------------------------------------------------------------------------------
// Generation

const floatX* Attention::cached(const CachedStep& step, const AttentionActivations& a) const {
    const RankSizes& sizes = tools_.sizes;
    floatX* const qkv = a.qkv;
    const Rows rows{0, step.rows};
    c_attn_.forward_few(qkv, step.in, step.rows);
    qk_norms_.forward(qkv, rows, step.rows, {.first = step.position}, a);
    const int first = step.cache->add(qkv, sizes.qkv_width(), step.position, step.rows, tools_.stream);
    cached_attention(
        CachedAttention<floatX>{
            .out = a.atty,
            .q = qkv,
            .q_stride = sizes.qkv_width(),
            .kv = step.cache->data(),
            .first = first,
            .rows = step.rows,
            .NH = sizes.NH,
            .HS = sizes.HS,
            .group = sizes.NH / sizes.KV,
            .first_keys = slides_ && tools_.window_keys != nullptr ? tools_.window_keys + first : nullptr},
        tools_.stream);
    c_proj_.forward_few(tools_.workspace.branch_out, a.atty, step.rows);
    return tools_.workspace.branch_out;
}
