#include "llmc/model/layer/qk_norms.h"

#include <cmath>

#include "llmc/kernels/rows/head_norms.cuh"
#include "llmc/kernels/rows/rotary.cuh"
#include "llmc/kernels/rows/shared_rms.cuh"

// Returns the frequencies of a layer's rotary positions.
static RotaryFrequencies frequencies_of(const ModelConfig& model, int layer) {
    const auto theta = static_cast<float>(model.rope_theta);
    if (model.slides(layer) && model.rope_window_theta > 0) {
        return {.theta = static_cast<float>(model.rope_window_theta)};
    }
    const auto trained = static_cast<double>(model.rope_original_len());
    switch (model.rope_scaling) {
        case RopeScaling::none: return {.theta = theta};
        case RopeScaling::linear: return {.theta = theta, .factor = static_cast<float>(model.rope_factor)};
        case RopeScaling::llama3:
            return {.theta = theta,
                    .factor = static_cast<float>(model.rope_factor),
                    .trained = static_cast<float>(trained),
                    .low = static_cast<float>(model.rope_low_freq_factor),
                    .high = static_cast<float>(model.rope_high_freq_factor)};
        case RopeScaling::yarn: break;
    }
    const double scale =
        model.rope_attention_factor > 0 ? model.rope_attention_factor : 0.1 * std::log(model.rope_factor) + 1;
    return yarn_frequencies(model.rope_theta, model.rope_factor, trained, model.rope_beta_fast, model.rope_beta_slow,
                            scale, static_cast<int>(model.head_size()));
}

QkNorms::QkNorms(const StageTools& tools, const ModelState<floatX>& parameters, int layer)
    : tools_(tools),
      layer_(layer),
      row_sums_(tools.workspace.layer.attention.row_sums),
      sides_{Side{0, tools.sizes.NH}, Side{tools.sizes.NH, tools.sizes.KV}} {
    if (kind() == QkNorm::none) return;
    const char* const names[] = {"attn.q_norm.weight", "attn.k_norm.weight"};
    for (std::size_t i = 0; i < 2; i++) {
        sides_[i].index = parameters.index(names[i], layer);
        sides_[i].weight = parameters.tensor(sides_[i].index);
    }
}

std::vector<ParamRow> QkNorms::parameters(const ModelConfig& config) {
    auto weight = [&](const char* name, std::int64_t heads) {
        TensorSpec tensor{.rows = config.head_size(), .partial = {Axis::tp}, .always_partial = true};
        if (config.qk_norm == QkNorm::row) {
            const std::int64_t channels = heads * config.head_size();
            tensor = {.rows = channels, .cut = TensorCut::column_parallel, .blocks = {channels}};
            if (config.kv_heads() < config.heads) tensor.heads = {heads};
        }
        return ParamRow{.name = name, .tensor = std::move(tensor), .init = Init::ones};
    };
    if (config.qk_norm == QkNorm::none) return {};
    return {weight("attn.q_norm.weight", config.heads), weight("attn.k_norm.weight", config.kv_heads())};
}

QkNorms::Kept QkNorms::kept(std::size_t i, const AttentionActivations& a, Rows rows) const {
    const int heads = sides_[i].heads;
    return {at_row(i == 0 ? a.q_raw : a.k_raw, rows, heads * tools_.sizes.HS),
            at_row(i == 0 ? a.q_rstd : a.k_rstd, rows, kind() == QkNorm::row ? 1 : heads)};
}

// Returns where the gradient of norm i's weight is made. If it waits, it does so behind the two vectors of the norm
// that belongs to attention.
GradientTarget QkNorms::gradient(std::size_t i, const SublayerBackward& args, std::byte* aside) const {
    const ModelConfig& model = tools_.sizes.model;
    const std::int64_t vector = norm_elements(model) / norm_vectors(model) * args.gradients.element_bytes();
    return vector_target(args.gradients, sides_[i].index,
                         aside ? aside + vector * (2 + static_cast<std::int64_t>(i)) : nullptr);
}

// Rotates these rows' queries and keys, or their gradients, if the layer does so.
void QkNorms::rotate(floatX* qkv, Rows rows, const RotaryAngles& angles) const {
    const RankSizes& sizes = tools_.sizes;
    if (!sizes.model.rotates(layer_)) return;
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
        return NormedHeads<floatX>{sides_[i].heads, sides_[i].weight, k.raw, k.rstd};
    };
    return {.heads = qkv,
            .row = sizes.qkv_width(),
            .rows = rows.count,
            .HS = sizes.HS,
            .queries = of(0),
            .keys = of(1),
            .turns = sizes.model.rotates(layer_),
            .angles = angles};
}

SharedRows<floatX> QkNorms::shared_rows(std::size_t i, floatX* qkv, int rows) const {
    const RankSizes& sizes = tools_.sizes;
    const int tp = static_cast<int>(sizes.model.heads) / sizes.NH;
    return {qkv + sides_[i].first_head * sizes.HS, sizes.qkv_width(), rows, sides_[i].heads * sizes.HS, tp};
}

// ---------------------------------------------------------------------------------------------------------------------

void QkNorms::forward(floatX* qkv, Rows rows, int T, const Positions& positions, const AttentionActivations& a) const {
    const ModelConfig& model = tools_.sizes.model;
    const RotaryAngles angles{rows.first, T, positions, frequencies_of(model, layer_), false};
    if (kind() == QkNorm::head) {
        const bool rounds_before_weight = model.norm_position == NormPosition::before;   // as Norm
        return head_norms_forward(head_norms(qkv, rows, angles, a), static_cast<float>(model.norm_eps),
                                  rounds_before_weight, tools_.stream);
    }
    if (kind() == QkNorm::row) forward_of_rows(qkv, rows, a);
    rotate(qkv, rows, angles);
}

void QkNorms::backward(floatX* dqkv, const SublayerBackward& args, const AttentionActivations& a,
                       std::byte* aside) const {
    const RankSizes& sizes = tools_.sizes;
    const Rows all{0, sizes.rows()};
    const Positions positions = tools_.attention.positions(args.pass.batch);
    const RotaryAngles angles{0, sizes.T, positions, frequencies_of(sizes.model, layer_), true};
    if (kind() == QkNorm::head) return backward_of_heads(head_norms(dqkv, all, angles, a), args, aside);
    rotate(dqkv, all, angles);
    if (kind() == QkNorm::row) backward_of_rows(dqkv, args, a, aside);
}

void QkNorms::backward_of_heads(const HeadNorms<floatX>& norms, const SublayerBackward& args, std::byte* aside) const {
    Gradients& gradients = args.gradients;
    const GradientTarget dqueries = gradient(0, args, aside), dkeys = gradient(1, args, aside);
    ENSURE(dqueries.accumulate == dkeys.accumulate, "gradients of two norms of different micro-batches");
    with_gradient_type<floatX>(gradients.type(), [&]<class G> {
        head_norms_backward(norms, dqueries.data.as<G>(), dkeys.data.as<G>(), tools_.workspace.norm_sums.data(),
                            dqueries.accumulate, tools_.stream);
    });
    if (aside == nullptr) return;
    args.queue.then([this, &gradients, HS = norms.HS, dq = dqueries.data, dk = dkeys.data] {
        take_place(gradients, sides_[0].index, dq, HS, tools_.stream);
        take_place(gradients, sides_[1].index, dk, HS, tools_.stream);
    });
}

void QkNorms::forward_of_rows(floatX* qkv, Rows rows, const AttentionActivations& a) const {
    const auto epsilon = static_cast<float>(tools_.sizes.model.norm_eps);
    float* const sums[] = {row_sums_ + 2 * rows.first, row_sums_ + 2 * rows.first + rows.count};
    for (std::size_t i = 0; i < 2; i++) {
        shared_rms_begin(sums[i], kept(i, a, rows).raw, shared_rows(i, qkv, rows.count), tools_.stream);
    }
    tools_.tp.add_over_ranks(sums[0], 2 * static_cast<std::size_t>(rows.count));
    for (std::size_t i = 0; i < 2; i++) {
        const Kept of = kept(i, a, rows);
        shared_rms_finish<floatX>(shared_rows(i, qkv, rows.count), of.rstd, of.raw, sides_[i].weight, sums[i], epsilon,
                                  tools_.stream);
    }
}

void QkNorms::backward_of_rows(floatX* dqkv, const SublayerBackward& args, const AttentionActivations& a,
                               std::byte* aside) const {
    Gradients& gradients = args.gradients;
    const int R = tools_.sizes.rows();
    float* const sums[] = {row_sums_, row_sums_ + R};
    for (std::size_t i = 0; i < 2; i++) {
        const Kept of = kept(i, a, {0, R});
        const SharedRows<floatX> rows = shared_rows(i, dqkv, R);
        const GradientTarget dweight = gradient(i, args, aside);
        with_gradient_type<floatX>(gradients.type(), [&]<class G> {
            shared_rms_backward_begin<floatX>(sums[i], dweight.data.as<G>(), tools_.workspace.norm_sums.data(), rows,
                                              of.raw, sides_[i].weight, of.rstd, dweight.accumulate, tools_.stream);
        });
        if (aside == nullptr) continue;
        args.queue.then([this, i, &gradients, from = dweight.data, width = rows.width] {
            take_place(gradients, sides_[i].index, from, width, tools_.stream);
        });
    }
    tools_.tp.add_over_ranks(sums[0], 2 * static_cast<std::size_t>(R));
    for (std::size_t i = 0; i < 2; i++) {
        const Kept of = kept(i, a, {0, R});
        shared_rms_backward_finish<floatX>(shared_rows(i, dqkv, R), of.raw, sides_[i].weight, of.rstd, sums[i],
                                           tools_.stream);
    }
}
