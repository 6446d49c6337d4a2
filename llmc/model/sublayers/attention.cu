#include "llmc/model/sublayers/attention.h"

#include "llmc/kernels/attention/attention_cached.cuh"
#include "llmc/kernels/attention/attention_merge.cuh"
#include "llmc/kernels/init.cuh"
#include "llmc/kernels/rows/rotary.cuh"

// ---------------------------------------------------------------------------------------------------------------------
// Parameters and memory

std::vector<ParamRow> Attention::parameters(const ModelConfig& config) {
    const std::int64_t C = config.channels, q = config.heads * config.head_size(),
                       kv = config.kv_heads() * config.head_size();
    const std::vector<std::int64_t> qkv = {q, kv, kv};
    std::vector<std::int64_t> heads;
    if (config.kv_heads() < config.heads) heads = {config.heads, config.kv_heads(), config.kv_heads()};
    std::vector<ParamRow> rows = Norm::parameters("ln_1", config);
    add_linear(rows, config, "attn.c_attn",
               {.rows = q + 2 * kv, .cols = C, .cut = TensorCut::rows, .blocks = qkv, .heads = heads},
               {.rows = q + 2 * kv, .cut = TensorCut::rows, .blocks = qkv, .heads = heads}, false);
    if (config.qk_norm == QkNorm::head) {
        const TensorSpec of_head{.rows = config.head_size(), .partial = {Axis::tp}, .always_partial = true};
        for (const char* name : {"attn.q_norm.weight", "attn.k_norm.weight"}) {
            rows.push_back({.name = name, .tensor = of_head, .init = Init::ones});
        }
    }
    if (config.qk_norm == QkNorm::row) {
        rows.push_back(RowNorm::parameter("attn.q_norm", config, config.heads));
        rows.push_back(RowNorm::parameter("attn.k_norm", config, config.kv_heads()));
    }
    add_linear(rows, config, "attn.c_proj", {.rows = C, .cols = q, .cut = TensorCut::columns}, {.rows = C}, true);
    return rows;
}

std::vector<KeptTensor> Attention::kept(const RankSizes& sizes) {
    const std::int64_t R = sizes.rows(), heads = std::int64_t{sizes.NH} * sizes.HS;
    // (B, T, NH of q, KV of k, KV of v, HS), rotated if positions are rotary; in delayed backward its gradient
    std::vector<KeptTensor> all = Branch::kept({"ln1", "attproj", "ln1_mean", "ln1_rstd"},
                                               {.name = "qkv", .elements = R * sizes.attended_width()}, sizes);
    all.push_back({.name = "atty", .elements = R * heads});   // (B, T, NH, HS) input of c_proj
    // (B, NH, T) log-sum-exp of each query's scores
    all.push_back({.name = "lse", .elements = R * sizes.NH, .statistic = true});
    all.push_back({.name = "attended", .elements = sizes.ulysses > 1 ? R * heads : 0});
    // inputs of the norms of heads or rows, and their statistics
    const QkNorm kind = sizes.model.qk_norm;
    const std::int64_t normed = kind != QkNorm::none ? R : 0;
    all.push_back({.name = "q_raw", .elements = normed * heads});
    all.push_back({.name = "k_raw", .elements = normed * sizes.KV * sizes.HS});
    all.push_back({.name = "q_rstd", .elements = normed * (kind == QkNorm::row ? 1 : sizes.NH), .statistic = true});
    all.push_back({.name = "k_rstd", .elements = normed * (kind == QkNorm::row ? 1 : sizes.KV), .statistic = true});
    return all;
}

std::vector<ScratchTensor> Attention::scratch(const RankSizes& sizes) {
    const std::int64_t R = sizes.rows();
    std::vector<ScratchTensor> all{
        {.name = "rows_3c", .elements = R * sizes.attended_width(), .backward_only = false},   // dqkv
        {.name = "attention_delta", .elements = R * sizes.NH, .fp32 = true, .backward_only = false}};
    if (sizes.model.qk_norm == QkNorm::row) {
        all.push_back({.name = "row_sums", .elements = 2 * R, .fp32 = true, .backward_only = false});
    }
    return all;
}

Attention::Attention(const SublayerPlace& place)
    : Branch(place, "ln_1", "attn.c_attn", "attn.c_proj", place.tools.workspace.scratch<floatX>("rows_3c")),
      delta_(place.tools.workspace.scratch<float>("attention_delta")),
      row_sums_(place.tools.workspace.scratch<float>("row_sums")) {
    const RankSizes& sizes = place.tools.sizes;
    if (sizes.model.qk_norm == QkNorm::row) {
        row_norms_.emplace_back(place.tools, place.parameters, "attn.q_norm", place.layer, 0, sizes.NH);
        row_norms_.emplace_back(place.tools, place.parameters, "attn.k_norm", place.layer, sizes.NH, sizes.KV);
    }
    if (sizes.model.qk_norm != QkNorm::head) return;
    auto norm_of = [&](const char* name) { return Norm(place.tools, place.parameters, name, place.layer); };
    head_norms_.push_back({norm_of("attn.q_norm"), 0, sizes.NH, kQRaw, kQRstd});
    head_norms_.push_back({norm_of("attn.k_norm"), sizes.NH, sizes.KV, kKRaw, kKRstd});
}

// ---------------------------------------------------------------------------------------------------------------------
// Computation

void Attention::enter(const floatX* entered, Rows rows, const LayerActivations& a) const {
    floatX* const qkv = at_row(at(a, kQkv), rows, in().out_channels());
    in().forward(qkv, at_row(entered, rows, in().in_channels()), rows.count, tools().stream);
    norm_heads(qkv, rows, a);
    norm_rows(qkv, rows, a);
    turn(qkv, rows, tools().sizes.T, tools().positions(), false);
}

// Views the heads that a norm is for, in rows of qkv.
HeadsView<floatX> Attention::heads_at(floatX* qkv, const HeadNorm& of) const {
    return {qkv + of.first * tools().sizes.HS, 0, tools().sizes.qkv_width(), tools().sizes.HS};
}

// Norms heads in place; keeps the inputs.
void Attention::norm_heads(floatX* qkv, Rows rows, const LayerActivations& a) const {
    const int HS = tools().sizes.HS;
    floatX* const made = tools().workspace.rows_c.data();
    for (const HeadNorm& of : head_norms_) {
        const HeadSizes sizes{1, rows.count, of.heads, HS};
        floatX* const raw = at_row(at(a, of.raw), rows, of.heads * HS);
        copy_heads(contiguous_heads(raw, rows.count, of.heads, HS), heads_at(qkv, of), sizes, false, tools().stream);
        of.norm.forward({made, nullptr, at_row(at<float>(a, of.rstd), rows, of.heads)}, raw, rows.count * of.heads);
        copy_heads(heads_at(qkv, of), contiguous_heads(made, rows.count, of.heads, HS), sizes, false, tools().stream);
    }
}

void Attention::norm_heads_backward(const SublayerBackward& args) const {
    const int HS = tools().sizes.HS, R = tools().sizes.rows();
    floatX* const gradient = tools().workspace.rows_c.data();
    for (std::size_t i = 0; i < head_norms_.size(); i++) {
        const HeadNorm& of = head_norms_[i];
        const HeadSizes sizes{1, R, of.heads, HS};
        const auto together = contiguous_heads(gradient, R, of.heads, HS);
        copy_heads(together, heads_at(din(), of), sizes, false, tools().stream);
        of.norm.backward({.din = gradient,
                          .dout = gradient,
                          .in = at(args.a, of.raw),
                          .kept = {nullptr, nullptr, at<float>(args.a, of.rstd)},
                          .add_to_din = false,
                          .aside = norm_aside(i, args),
                          .rows = R * of.heads},
                         args.gradients, args.queue);
        copy_heads(heads_at(din(), of), together, sizes, false, tools().stream);
    }
}

void* Attention::norm_aside(std::size_t i, const SublayerBackward& args) const {
    if (args.norm_aside == nullptr) return nullptr;
    const ModelConfig& model = tools().sizes.model;
    const std::int64_t vector = norm_elements(model) / norm_vectors(model) * gradient_bytes(args.gradients);
    return static_cast<std::byte*>(args.norm_aside) + vector * (2 + static_cast<std::int64_t>(i));
}

RowNorm::Kept Attention::kept_of_row_norm(std::size_t i, const LayerActivations& a, Rows rows) const {
    return {at_row(at(a, kQRaw + i), rows, row_norms_[i].width()), at<float>(a, kQRstd + i) + rows.first};
}

// Norms whole rows of queries and of keys in place.
void Attention::norm_rows(floatX* qkv, Rows rows, const LayerActivations& a) const {
    if (row_norms_.empty()) return;
    float* const sums = row_sums_ + 2 * rows.first;   // (2, rows)
    for (std::size_t i = 0; i < row_norms_.size(); i++) {
        const std::size_t at_sum = i * static_cast<std::size_t>(rows.count);
        row_norms_[i].begin(sums + at_sum, qkv, rows.count, kept_of_row_norm(i, a, rows));
    }
    tools().cut_points.sum_rows(sums, 2 * static_cast<std::size_t>(rows.count), tools().stream);
    for (std::size_t i = 0; i < row_norms_.size(); i++) {
        const std::size_t at_sum = i * static_cast<std::size_t>(rows.count);
        row_norms_[i].finish(qkv, sums + at_sum, rows.count, kept_of_row_norm(i, a, rows));
    }
}

void Attention::norm_rows_backward(const SublayerBackward& args) const {
    if (row_norms_.empty()) return;
    const Rows rows{0, tools().sizes.rows()};
    for (std::size_t i = 0; i < row_norms_.size(); i++) {
        row_norms_[i].backward_begin(row_sums_ + i * static_cast<std::size_t>(rows.count), din(), rows.count,
                                     kept_of_row_norm(i, args.a, rows), norm_aside(i, args), args.gradients,
                                     args.queue);
    }
    tools().cut_points.sum_rows(row_sums_, 2 * static_cast<std::size_t>(rows.count), tools().stream);
    for (std::size_t i = 0; i < row_norms_.size(); i++) {
        row_norms_[i].backward_finish(din(), row_sums_ + i * static_cast<std::size_t>(rows.count), rows.count,
                                      kept_of_row_norm(i, args.a, rows));
    }
}

// Rotates these rows' queries and keys, or their gradients, by their positions.
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

// Returns the shape with the documents of the current micro-batch.
AttentionShape Attention::shape() const {
    AttentionShape shape = tools().sizes.attention();
    shape.documents = tools().documents.first_keys;
    return shape;
}

AttentionForward<floatX> Attention::forward_arguments(const LayerActivations& a) const {
    const AttentionShape s = shape();
    const floatX* qkv = at(a, kQkv);
    auto part = [&](int i) { return packed_heads(qkv, i, s.Tq, s.NH, s.HS, s.kv_heads()); };
    return {contiguous_heads(attended(a), s.Tq, s.NH, s.HS), at<float>(a, kLse), part(0), part(1), part(2), s};
}

AttentionBackward<floatX> Attention::backward_arguments(const LayerActivations& a) const {
    const AttentionShape s = shape();
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
    turn(din(), {0, tools().sizes.rows()}, tools().sizes.T, tools().positions(), true);
    norm_heads_backward(args);
    norm_rows_backward(args);
}

void Attention::cached_inside(const CachedStep& step) const {
    const RankSizes& sizes = tools().sizes;
    floatX* const qkv = step.cache + step.position * cache_elements();
    in().forward_few(qkv, step.in, step.rows, tools().stream);
    norm_heads(qkv, {0, step.rows}, step.a);
    norm_rows(qkv, {0, step.rows}, step.a);
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
    fill_normal(at(a, kQkv), std::int64_t{sizes.rows()} * sizes.attended_width(), 1.0f, 1, GlobalSpan{},
                tools().stream);
    fill_normal(tools().workspace.rows_c.data(), elements, 1.0f, 2, GlobalSpan{}, tools().stream);
}
