#include "llmc/model/layer/qk_norms.h"

#include "llmc/kernels/rows/head_norms.cuh"
#include "llmc/kernels/rows/rotary.cuh"

QkNorms::QkNorms(const StageTools& tools, const ModelState<floatX>& parameters, int layer)
    : tools_(tools), row_sums_(tools.workspace.layer.attention.row_sums) {
    const RankSizes& sizes = tools.sizes;
    if (sizes.model.qk_norm == QkNorm::row) {
        row_norms_.emplace_back(tools, parameters, "attn.q_norm", layer, 0, sizes.NH);
        row_norms_.emplace_back(tools, parameters, "attn.k_norm", layer, sizes.NH, sizes.KV);
    }
    if (sizes.model.qk_norm == QkNorm::head) {
        for (const char* const name : {"attn.q_norm.weight", "attn.k_norm.weight"}) {
            const int index = parameters.index(name, layer);
            head_weights_.push_back({index, parameters.tensor(index)});
        }
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

QkNorms::Kept QkNorms::kept(std::size_t i, const AttentionActivations& a, Rows rows) const {
    const RankSizes& sizes = tools_.sizes;
    const bool queries = i == 0, by_row = !row_norms_.empty();
    const int count = queries ? sizes.NH : sizes.KV;
    return {count, at_row(queries ? a.q_raw : a.k_raw, rows, count * sizes.HS),
            at_row(queries ? a.q_rstd : a.k_rstd, rows, by_row ? 1 : count)};
}

// Returns where the gradient of norm i's weight waits: behind the two vectors of the sublayer's own norm.
void* QkNorms::delayed_norm(std::size_t i, const SublayerBackward& args) const {
    if (args.delayed_norms == nullptr) return nullptr;
    const ModelConfig& model = tools_.sizes.model;
    const std::int64_t vector = norm_elements(model) / norm_vectors(model) * args.gradients.element_bytes();
    return static_cast<std::byte*>(args.delayed_norms) + vector * (2 + static_cast<std::int64_t>(i));
}

static RotaryFrequencies rotary_frequencies(const ModelConfig& model) {
    const bool by_wavelength = model.rope_scaling == RopeScaling::llama3;
    return {.theta = static_cast<float>(model.rope_theta),
            .factor = static_cast<float>(model.rope_factor),
            .trained = by_wavelength ? static_cast<float>(model.rope_original_len()) : 0.0f,
            .low = static_cast<float>(model.rope_low_freq_factor),
            .high = static_cast<float>(model.rope_high_freq_factor)};
}

// Rotates these rows' queries and keys, or their gradients, if the model does so.
void QkNorms::rotate(floatX* qkv, Rows rows, const RotaryAngles& angles) const {
    const RankSizes& sizes = tools_.sizes;
    if (sizes.model.positions != PositionKind::rotary) return;
    rotary(Rotary<floatX>{.heads = qkv,
                          .row = sizes.qkv_width(),
                          .rows = rows.count,
                          .turned = sizes.NH + sizes.KV,
                          .HS = sizes.HS,
                          .angles = angles},
           tools_.stream);
}

HeadNorms<floatX> QkNorms::head_norms(floatX* qkv, Rows rows, const RotaryAngles& angles,
                                      const AttentionActivations& a) const {
    const RankSizes& sizes = tools_.sizes;
    auto of = [&](std::size_t i) {
        const Kept k = kept(i, a, rows);
        return NormedHeads<floatX>{k.count, head_weights_[i].data, k.raw, k.rstd};
    };
    return {.heads = qkv,
            .row = sizes.qkv_width(),
            .rows = rows.count,
            .HS = sizes.HS,
            .queries = of(0),
            .keys = of(1),
            .turns = sizes.model.positions == PositionKind::rotary,
            .angles = angles};
}

// ---------------------------------------------------------------------------------------------------------------------

void QkNorms::forward(floatX* qkv, Rows rows, int T, const Positions& positions, const AttentionActivations& a) const {
    const ModelConfig& model = tools_.sizes.model;
    const RotaryAngles angles{rows.first, T, positions, rotary_frequencies(model), false};
    if (!head_weights_.empty()) {
        const bool rounds_before_weight = model.norm_position == NormPosition::before;   // as Norm
        return head_norms_forward(head_norms(qkv, rows, angles, a), static_cast<float>(model.norm_eps),
                                  rounds_before_weight, tools_.stream);
    }
    if (!row_norms_.empty()) forward_of_rows(qkv, rows, a);
    rotate(qkv, rows, angles);
}

void QkNorms::backward(floatX* dqkv, const SublayerBackward& args, const AttentionActivations& a) const {
    const RankSizes& sizes = tools_.sizes;
    const Rows all{0, sizes.rows()};
    const RotaryAngles angles{0, sizes.T, tools_.context.positions(args.pass.batch), rotary_frequencies(sizes.model),
                              true};
    if (!head_weights_.empty()) return backward_of_heads(head_norms(dqkv, all, angles, a), args);
    rotate(dqkv, all, angles);
    if (!row_norms_.empty()) backward_of_rows(dqkv, args, a);
}

void QkNorms::backward_of_heads(const HeadNorms<floatX>& norms, const SublayerBackward& args) const {
    Gradients& gradients = args.gradients;
    const int queries = head_weights_[0].index, keys = head_weights_[1].index, HS = norms.HS;
    const GradientTarget dqueries = vector_target(gradients, queries, delayed_norm(0, args)),
                         dkeys = vector_target(gradients, keys, delayed_norm(1, args));
    ENSURE(dqueries.accumulate == dkeys.accumulate, "gradients of two norms of different micro-batches");
    with_gradient_type<floatX>(gradients.type(), [&]<class G> {
        head_norms_backward(norms, dqueries.data.as<G>(), dkeys.data.as<G>(), tools_.workspace.norm_sums.data(),
                            dqueries.accumulate, tools_.stream);
    });
    if (args.delayed_norms == nullptr) return;
    args.queue.then([this, &gradients, queries, keys, HS, dq = dqueries.data, dk = dkeys.data] {
        take_place(gradients, queries, dq, HS, tools_.stream);
        take_place(gradients, keys, dk, HS, tools_.stream);
    });
}

void QkNorms::forward_of_rows(floatX* qkv, Rows rows, const AttentionActivations& a) const {
    float* const sums[] = {row_sums_ + 2 * rows.first, row_sums_ + 2 * rows.first + rows.count};
    for (std::size_t i = 0; i < 2; i++) {
        const Kept of = kept(i, a, rows);
        row_norms_[i].begin(sums[i], qkv, rows.count, {of.raw, of.rstd});
    }
    tools_.tp.add_over_ranks(sums[0], 2 * static_cast<std::size_t>(rows.count));
    for (std::size_t i = 0; i < 2; i++) {
        const Kept of = kept(i, a, rows);
        row_norms_[i].finish(qkv, sums[i], rows.count, {of.raw, of.rstd});
    }
}

void QkNorms::backward_of_rows(floatX* dqkv, const SublayerBackward& args, const AttentionActivations& a) const {
    const int R = tools_.sizes.rows();
    float* const sums[] = {row_sums_, row_sums_ + R};
    for (std::size_t i = 0; i < 2; i++) {
        const Kept of = kept(i, a, {0, R});
        row_norms_[i].backward_begin(sums[i], dqkv, R, {of.raw, of.rstd}, delayed_norm(i, args), args.gradients,
                                     args.queue);
    }
    tools_.tp.add_over_ranks(sums[0], 2 * static_cast<std::size_t>(R));
    for (std::size_t i = 0; i < 2; i++) {
        const Kept of = kept(i, a, {0, R});
        row_norms_[i].backward_finish(dqkv, sums[i], R, {of.raw, of.rstd});
    }
}
