#include "llmc/model/sublayers/qk_norms.h"

#include "llmc/kernels/attention/attention_merge.cuh"

QkNorms::QkNorms(const StageTools& tools, const ModelState<floatX>& parameters, int layer)
    : tools_(tools), row_sums_(tools.workspace.layer.attention.row_sums) {
    const RankSizes& sizes = tools.sizes;
    if (sizes.model.qk_norm == QkNorm::row) {
        row_norms_.emplace_back(tools, parameters, "attn.q_norm", layer, 0, sizes.NH);
        row_norms_.emplace_back(tools, parameters, "attn.k_norm", layer, sizes.NH, sizes.KV);
    }
    if (sizes.model.qk_norm == QkNorm::head) {
        head_norms_.emplace_back(tools, parameters, "attn.q_norm", layer);
        head_norms_.emplace_back(tools, parameters, "attn.k_norm", layer);
    }
}

std::vector<ParamRow> QkNorms::parameters(const ModelConfig& config) {
    switch (config.qk_norm) {
        case QkNorm::none: return {};
        case QkNorm::row:
            return {RowNorm::parameter("attn.q_norm", config, config.heads),
                    RowNorm::parameter("attn.k_norm", config, config.kv_heads())};
        case QkNorm::head: break;
    }
    const TensorSpec of_head{.rows = config.head_size(), .partial = {Axis::tp}, .always_partial = true};
    return {{.name = "attn.q_norm.weight", .tensor = of_head, .init = Init::ones},
            {.name = "attn.k_norm.weight", .tensor = of_head, .init = Init::ones}};
}

QkNorms::Heads QkNorms::heads(std::size_t i, const AttentionActivations& a, Rows rows) const {
    const RankSizes& sizes = tools_.sizes;
    const bool queries = i == 0, by_row = !row_norms_.empty();
    const int first = queries ? 0 : sizes.NH, count = queries ? sizes.NH : sizes.KV;
    return {first, count, at_row(queries ? a.q_raw : a.k_raw, rows, count * sizes.HS),
            at_row(queries ? a.q_rstd : a.k_rstd, rows, by_row ? 1 : count)};
}

// Returns where the gradient of norm i's weight waits: behind the two vectors of the sublayer's own norm.
void* QkNorms::delayed_norm(std::size_t i, const SublayerBackward& args) const {
    if (args.delayed_norms == nullptr) return nullptr;
    const ModelConfig& model = tools_.sizes.model;
    const std::int64_t vector = norm_elements(model) / norm_vectors(model) * args.gradients.element_bytes();
    return static_cast<std::byte*>(args.delayed_norms) + vector * (2 + static_cast<std::int64_t>(i));
}

// Copies heads between rows of qkv and `apart` (rows, heads.count, HS).
void QkNorms::copy(const Heads& heads, floatX* apart, floatX* qkv, int rows, bool from_qkv) const {
    const int HS = tools_.sizes.HS;
    const HeadsView<floatX> in_rows{qkv + heads.first * HS, 0, tools_.sizes.qkv_width(), HS};
    const HeadsView<floatX> together = contiguous_heads(apart, rows, heads.count, HS);
    copy_heads(from_qkv ? together : in_rows, from_qkv ? in_rows : together, {1, rows, heads.count, HS}, false,
               tools_.stream);
}

void QkNorms::forward(floatX* qkv, Rows rows, const AttentionActivations& a) const {
    floatX* const made = tools_.workspace.heads;
    for (std::size_t i = 0; i < head_norms_.size(); i++) {
        const Heads of = heads(i, a, rows);
        copy(of, of.raw, qkv, rows.count, true);
        head_norms_[i].forward({made, nullptr, of.rstd}, of.raw, rows.count * of.count);
        copy(of, made, qkv, rows.count, false);
    }
    if (row_norms_.empty()) return;
    float* const sums[] = {row_sums_ + 2 * rows.first, row_sums_ + 2 * rows.first + rows.count};
    for (std::size_t i = 0; i < 2; i++) {
        const Heads of = heads(i, a, rows);
        row_norms_[i].begin(sums[i], qkv, rows.count, {of.raw, of.rstd});
    }
    tools_.cut_points.sum_rows(sums[0], 2 * static_cast<std::size_t>(rows.count), tools_.stream);
    for (std::size_t i = 0; i < 2; i++) {
        const Heads of = heads(i, a, rows);
        row_norms_[i].finish(qkv, sums[i], rows.count, {of.raw, of.rstd});
    }
}

void QkNorms::backward(floatX* dqkv, const SublayerBackward& args, const AttentionActivations& a) const {
    const int R = tools_.sizes.rows();
    floatX* const gradient = tools_.workspace.heads;
    for (std::size_t i = 0; i < head_norms_.size(); i++) {
        const Heads of = heads(i, a, {0, R});
        copy(of, gradient, dqkv, R, true);
        head_norms_[i].backward({.din = gradient,
                                 .dout = gradient,
                                 .in = of.raw,
                                 .kept = {nullptr, nullptr, of.rstd},
                                 .add_to_din = false,
                                 .aside = delayed_norm(i, args),
                                 .rows = R * of.count},
                                args.gradients, args.queue);
        copy(of, gradient, dqkv, R, false);
    }
    if (row_norms_.empty()) return;
    float* const sums[] = {row_sums_, row_sums_ + R};
    for (std::size_t i = 0; i < 2; i++) {
        const Heads of = heads(i, a, {0, R});
        row_norms_[i].backward_begin(sums[i], dqkv, R, {of.raw, of.rstd}, delayed_norm(i, args), args.gradients,
                                     args.queue);
    }
    tools_.cut_points.sum_rows(sums[0], 2 * static_cast<std::size_t>(R), tools_.stream);
    for (std::size_t i = 0; i < 2; i++) {
        const Heads of = heads(i, a, {0, R});
        row_norms_[i].backward_finish(dqkv, sums[i], R, {of.raw, of.rstd});
    }
}
