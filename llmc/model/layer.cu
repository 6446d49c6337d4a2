#include "llmc/model/layer.h"

#include <string_view>

#include "llmc/base/profile_range.h"
#include "llmc/kernels/rows/residual.cuh"

Layer::Layer(const StageTools& tools, const ModelState<floatX>& parameters, int layer)
    : tools_(tools), name_(text("h.", layer)), attention_(tools, parameters, layer) {
    if (tools.sizes.model.experts > 0) {
        experts_.emplace(tools, parameters, layer);
    } else {
        mlp_.emplace(tools, parameters, layer);
    }
}

std::vector<ParamRow> Layer::parameters(const ModelConfig& config) {
    std::vector<ParamRow> rows = Attention::parameters(config);
    for (ParamRow& row : config.experts > 0 ? Experts::parameters(config) : Mlp::parameters(config)) {
        rows.push_back(std::move(row));
    }
    return rows;
}

std::optional<NextNorm> Layer::first_norm(const LayerActivations& a) const {
    if (tools_.sizes.model.norm_after()) return std::nullopt;
    return NextNorm{attention_.norm(), a.attention.norm};
}

std::optional<NextNorm> Layer::second_norm(const LayerActivations& a) const {
    if (tools_.sizes.model.norm_after()) return std::nullopt;
    return experts_ ? NextNorm{experts_->norm(), a.experts.norm} : NextNorm{mlp_->norm(), a.mlp.norm};
}

// ---------------------------------------------------------------------------------------------------------------------
// Training

void Layer::forward(floatX* out, const floatX* in, const Batch& batch, const LayerActivations& a) const {
    const ProfileRange range(name_.c_str());
    run(out, in, batch, a, false);
}

// Runs forward; `again` without the last sum.
void Layer::run(floatX* out, const floatX* in, const Batch& batch, const LayerActivations& a, bool again) const {
    if (const auto ln_1 = first_norm(a)) ln_1->norm.forward(ln_1->to, in);
    attention_.forward({.out = a.residual2, .in = in, .batch = batch, .next = second_norm(a), .again = again},
                       a.attention);
    const SublayerForward second{.out = out, .in = a.residual2, .batch = batch, .again = again};
    experts_ ? experts_->forward(second, a.experts) : mlp_->forward(second, a.mlp);
}

void Layer::recompute(const floatX* in, const Batch& batch, const LayerActivations& a, Recompute level) const {
    if (level == Recompute::block) return run(nullptr, in, batch, a, true);
    attention_.recompute(in, a.attention, level);
    experts_ ? experts_->recompute(a.residual2, a.experts, level) : mlp_->recompute(a.residual2, a.mlp, level);
}

void Layer::backward(floatX* dresidual, const floatX* in, const Batch& batch, const LayerActivations& a,
                     const Delayed* delayed, Gradients& gradients, WeightGradientQueue& queue) const {
    const ProfileRange range(name_.c_str());
    const std::int64_t norm_bytes = norm_elements(tools_.sizes.model) * gradients.element_bytes();
    std::byte* const delayed_norms = delayed ? delayed->norms : nullptr;
    const SublayerBackward second{.dresidual = dresidual,
                                  .in = a.residual2,
                                  .batch = batch,
                                  .delayed_dout = delayed ? delayed->out : nullptr,
                                  .delayed_norms = delayed_norms ? delayed_norms + norm_bytes : nullptr,
                                  .gradients = gradients,
                                  .queue = queue};
    experts_ ? experts_->backward(second, a.experts) : mlp_->backward(second, a.mlp);
    attention_.backward({.dresidual = dresidual,
                         .in = in,
                         .batch = batch,
                         .delayed_dout = delayed ? a.residual2 : nullptr,
                         .delayed_norms = delayed_norms,
                         .gradients = gradients,
                         .queue = queue},
                        a.attention, delayed ? ReusableMemory{} : reusable_memory(a, tools_.sizes));
}

// ---------------------------------------------------------------------------------------------------------------------
// Generation

void Layer::cached(floatX* residual, floatX* cache, int position, int rows, const LayerActivations& a,
                   const std::optional<NextNorm>& next) const {
    auto add = [&](const floatX* branch, const std::optional<NextNorm>& norm) {
        if (norm) return norm->norm.add_forward(residual, {norm->to.out}, residual, branch, rows);
        residual_forward<floatX>(residual, residual, branch, std::int64_t{rows} * tools_.sizes.C, tools_.stream);
    };
    const std::optional<NextNorm> ln_1 = first_norm(a), ln_2 = second_norm(a);
    add(attention_.cached({ln_1 ? ln_1->to.out : residual, cache, position, rows}, a.attention), ln_2);
    const CachedStep second{ln_2 ? ln_2->to.out : residual, nullptr, position, rows};
    add(experts_ ? experts_->cached(second, a.experts) : mlp_->cached(second, a.mlp), next);
}

void Layer::show(const std::function<void(const char*, const floatX*, std::int64_t)>& show, const LayerActivations& a,
                 const floatX* out) const {
    LayerActivations all = a;
    all.visit(tools_.sizes, [&](const KeptTensor& tensor, void*& values) {
        // skip experts that are dealt out or drop rows: the room for rows that did not come holds nothing
        if ((tools_.sizes.ep > 1 || tools_.capacity_factor > 0) && std::string_view(tensor.name).starts_with("expert_"))
            return;
        if (!tensor.statistic && tensor.elements > 0) {
            show(tensor.name, static_cast<const floatX*>(values), tensor.elements);
        }
    });
    show("residual3", out, tools_.sizes.residual_elements());
}
