#include "llmc/model/layer/layer.h"

#include <string_view>

#include "llmc/base/profile_range.h"

Layer::Layer(const StageTools& tools, const ModelState<floatX>& parameters, int layer)
    : tools_(tools),
      name_(text("h.", layer)),
      ln_1_(tools, parameters, "ln_1", layer),
      ln_2_(tools, parameters, "ln_2", layer),
      attention_(tools, parameters, layer) {
    if (tools.sizes.model.experts > 0) {
        experts_.emplace(tools, parameters, layer);
    } else {
        mlp_.emplace(tools, parameters, layer);
    }
}

std::vector<ParamRow> Layer::parameters(const ModelConfig& config) {
    std::vector<ParamRow> rows;
    for (const std::vector<ParamRow>& part :
         {Norm::parameters("ln_1", config), Attention::parameters(config), Norm::parameters("ln_2", config),
          config.experts > 0 ? Experts::parameters(config) : Mlp::parameters(config)}) {
        rows.insert(rows.end(), part.begin(), part.end());
    }
    return rows;
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

void Layer::forward(floatX* out, const floatX* in, const ForwardPass& pass, const LayerActivations& a) const {
    const ProfileRange range(name_.c_str());
    if (norms_after()) return forward_norms_after(out, in, pass, a);
    ln_1_.forward(a.ln_1, in);
    attention_.forward(a.residual2, a.ln_1.out, {.residual = in, .norm = &ln_2_, .to = a.ln_2}, pass, a.attention);
    mlp_forward(out, a.ln_2.out, {.residual = a.residual2}, pass, a);
}

void Layer::forward_norms_after(floatX* out, const floatX* in, const ForwardPass& pass,
                                const LayerActivations& a) const {
    floatX* const normed = tools_.workspace.branch_out;   // (Rr, C)
    attention_.forward(a.attproj, in, {}, pass, a.attention);
    ln_1_.forward({normed, a.ln_1.mean, a.ln_1.rstd}, a.attproj);
    add_branch(a.residual2, normed, {.residual = in}, tools_);
    mlp_forward(a.fcproj, a.residual2, {}, pass, a);
    ln_2_.forward({normed, a.ln_2.mean, a.ln_2.rstd}, a.fcproj);
    if (out) add_branch(out, normed, {.residual = a.residual2}, tools_);
}

void Layer::recompute(const floatX* in, const ForwardPass& pass, const LayerActivations& a, Recompute level) const {
    if (level == Recompute::block) return forward(nullptr, in, {pass.batch, pass.capacity_factor, 0, true}, a);
    const bool norms = level >= Recompute::gelu_norm && !norms_after();   // their statistics are kept
    if (norms) ln_1_.forward({a.ln_1.out}, in);
    experts_ ? experts_->recompute(a.experts, level) : mlp_->recompute(a.mlp, level);
    if (norms) ln_2_.forward({a.ln_2.out}, a.residual2);
}

void Layer::mlp_forward(floatX* out, const floatX* in, const Join& join, const ForwardPass& pass,
                        const LayerActivations& a) const {
    experts_ ? experts_->forward(out, in, join, pass, a.experts) : mlp_->forward(out, in, join, a.mlp);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

SublayerBackward Layer::of_attention(const Backward& args, const floatX* dout, const floatX* in, floatX* kept) const {
    return {.dout = dout,
            .in = in,
            .kept_dout = args.delayed ? kept : nullptr,
            .delayed_norms = args.delayed ? args.delayed->norms : nullptr,
            .pass = args.pass,
            .gradients = args.gradients,
            .queue = args.queue};
}

SublayerBackward Layer::of_mlp(const Backward& args, const floatX* dout, const floatX* in, floatX* kept) const {
    SublayerBackward mlp = of_attention(args, dout, in, kept);
    const std::int64_t norm_bytes = norm_elements(tools_.sizes.model) * args.gradients.element_bytes();
    if (mlp.delayed_norms) mlp.delayed_norms = args.delayed->norms + norm_bytes;
    return mlp;
}

ReusableMemory Layer::reusable(const Backward& args, const LayerActivations& a) const {
    return args.delayed ? ReusableMemory{} : reusable_memory(a, tools_.sizes);
}

void Layer::backward(const Backward& args, const LayerActivations& a) const {
    const ProfileRange range(name_.c_str());
    if (norms_after()) return backward_norms_after(args, a);
    auto add_through = [&](const Norm& ln, const floatX* dnormed, const floatX* in, const NormOutput& kept,
                           void* aside) {
        ln.backward(
            {.din = args.dresidual, .dout = dnormed, .in = in, .kept = kept, .add_to_din = true, .aside = aside},
            args.gradients, args.queue);
    };
    const SublayerBackward mlp = of_mlp(args, args.dresidual, a.ln_2.out, args.delayed ? args.delayed->out : nullptr);
    const SublayerBackward attention = of_attention(args, args.dresidual, a.ln_1.out, a.residual2);
    const floatX* const dln_2 = mlp_backward(mlp, a);
    add_through(ln_2_, dln_2, a.residual2, a.ln_2, mlp.delayed_norms);
    const floatX* const dln_1 = attention_.backward(attention, a.attention, reusable(args, a));
    add_through(ln_1_, dln_1, args.in, a.ln_1, attention.delayed_norms);
}

// The gradient of a norm's input takes the place of the input.
void Layer::backward_norms_after(const Backward& args, const LayerActivations& a) const {
    floatX* const dresidual = args.dresidual;
    auto through = [&](const Norm& ln, floatX* projected, const NormOutput& kept, void* aside) {
        ln.backward(
            {.din = projected, .dout = dresidual, .in = projected, .kept = kept, .add_to_din = false, .aside = aside},
            args.gradients, args.queue);
    };
    auto add = [&](const floatX* din) { add_branch(dresidual, din, {.residual = dresidual}, tools_); };
    const SublayerBackward mlp = of_mlp(args, a.fcproj, a.residual2, a.fcproj);
    const SublayerBackward attention = of_attention(args, a.attproj, args.in, a.attproj);
    through(ln_2_, a.fcproj, a.ln_2, mlp.delayed_norms);
    add(mlp_backward(mlp, a));
    through(ln_1_, a.attproj, a.ln_1, attention.delayed_norms);
    add(attention_.backward(attention, a.attention, reusable(args, a)));
}

const floatX* Layer::mlp_backward(const SublayerBackward& args, const LayerActivations& a) const {
    return experts_ ? experts_->backward(args, a.experts) : mlp_->backward(args, a.mlp);
}

// ---------------------------------------------------------------------------------------------------------------------
// Generation

void Layer::cached(const CachedLayer& args, const LayerActivations& a) const {
    auto add = [&](const floatX* branch, const Norm* norm, floatX* normed) {
        add_branch(args.residual, branch, {args.residual, norm, {normed}}, tools_, args.rows);
    };
    auto normed = [&](const Norm& ln, floatX* to, const floatX* branch) {
        ln.forward({to}, branch, args.rows);
        return to;
    };
    CachedStep step{a.ln_1.out, args.cache, args.position, args.rows};
    if (norms_after()) {
        step.in = args.residual;
        add(normed(ln_1_, a.attproj, attention_.cached(step, a.attention)), nullptr, nullptr);
        add(normed(ln_2_, a.fcproj, mlp_cached(step, a)), args.next, args.normed);
    } else {
        add(attention_.cached(step, a.attention), &ln_2_, a.ln_2.out);
        step.in = a.ln_2.out;
        add(mlp_cached(step, a), args.next, args.normed);
    }
}

const floatX* Layer::mlp_cached(const CachedStep& step, const LayerActivations& a) const {
    return experts_ ? experts_->cached(step, a.experts) : mlp_->cached(step, a.mlp);
}

void Layer::show(const std::function<void(const char*, const floatX*, std::int64_t)>& show, const ForwardPass& pass,
                 const LayerActivations& a, const floatX* out) const {
    LayerActivations all = a;
    all.visit(tools_.sizes, [&](const KeptTensor& tensor, void*& values) {
        // skip experts that are dealt out or drop rows: the room for rows that did not come holds nothing
        if ((tools_.sizes.ep > 1 || pass.capacity_factor > 0) && std::string_view(tensor.name).starts_with("expert_"))
            return;
        if (!tensor.statistic && tensor.elements > 0) {
            show(tensor.name, static_cast<const floatX*>(values), tensor.elements);
        }
    });
    show("residual3", out, tools_.sizes.residual_elements());
}
