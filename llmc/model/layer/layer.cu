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

template <class Call>
decltype(auto) Layer::with_mlp(const LayerActivations& a, Call&& call) const {
    return experts_ ? call(*experts_, a.experts) : call(*mlp_, a.mlp);
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

void Layer::mlp_forward(floatX* out, const floatX* in, const Join& join, const ForwardPass& pass,
                        const LayerActivations& a) const {
    with_mlp(a, [&](const auto& mlp, const auto& kept) { mlp.forward(out, in, join, pass, kept); });
}

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
    if (level == Recompute::block) {
        ForwardPass again = pass;
        again.again = true;
        return forward(nullptr, in, again, a);
    }
    const bool norms = level >= Recompute::gelu_norm && !norms_after();   // their statistics are kept
    if (norms) ln_1_.forward({a.ln_1.out}, in);
    with_mlp(a, [&](const auto& mlp, const auto& kept) { mlp.recompute(kept, level); });
    if (norms) ln_2_.forward({a.ln_2.out}, a.residual2);
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

SublayerBackward Layer::of_sublayer(const Backward& args, const floatX* dout, const floatX* in, floatX* kept) const {
    return {.dout = dout,
            .in = in,
            .kept_dout = args.delayed ? kept : nullptr,
            .pass = args.pass,
            .gradients = args.gradients,
            .queue = args.queue};
}

std::byte* Layer::aside(const Backward& args, int sublayer) const {
    if (!args.delayed || !args.delayed->norms) return nullptr;
    return args.delayed->norms + sublayer * norm_elements(tools_.sizes.model) * args.gradients.element_bytes();
}

const floatX* Layer::attention_backward(const Backward& args, const SublayerBackward& attention,
                                        const LayerActivations& a) const {
    const ReusableMemory reusable = args.delayed ? ReusableMemory{} : reusable_memory(a, tools_.sizes);
    return attention_.backward(attention, a.attention, reusable, aside(args, 0));
}

const floatX* Layer::mlp_backward(const SublayerBackward& mlp_args, const LayerActivations& a) const {
    return with_mlp(a, [&](const auto& mlp, const auto& kept) { return mlp.backward(mlp_args, kept); });
}

void Layer::backward(const Backward& args, const LayerActivations& a) const {
    const ProfileRange range(name_.c_str());
    if (norms_after()) return backward_norms_after(args, a);
    floatX *const dresidual = args.dresidual, *const kept = args.delayed ? args.delayed->out : nullptr;
    const floatX* const dln_2 = mlp_backward(of_sublayer(args, dresidual, a.ln_2.out, kept), a);
    ln_2_.backward({dresidual, dln_2, a.residual2, a.ln_2, true, aside(args, 1)}, args.gradients, args.queue);
    const floatX* const dln_1 = attention_backward(args, of_sublayer(args, dresidual, a.ln_1.out, a.residual2), a);
    ln_1_.backward({dresidual, dln_1, args.in, a.ln_1, true, aside(args, 0)}, args.gradients, args.queue);
}

// The gradient of a norm's input takes the place of the input.
void Layer::backward_norms_after(const Backward& args, const LayerActivations& a) const {
    floatX* const dresidual = args.dresidual;
    ln_2_.backward({a.fcproj, dresidual, a.fcproj, a.ln_2, false, aside(args, 1)}, args.gradients, args.queue);
    const floatX* const dresidual2 = mlp_backward(of_sublayer(args, a.fcproj, a.residual2, a.fcproj), a);
    add_branch(dresidual, dresidual2, {.residual = dresidual}, tools_);
    ln_1_.backward({a.attproj, dresidual, a.attproj, a.ln_1, false, aside(args, 0)}, args.gradients, args.queue);
    const floatX* const din = attention_backward(args, of_sublayer(args, a.attproj, args.in, a.attproj), a);
    add_branch(dresidual, din, {.residual = dresidual}, tools_);
}

// ---------------------------------------------------------------------------------------------------------------------
// Generation

void Layer::cached(const CachedLayer& args, const LayerActivations& a) const {
    if (norms_after()) return cached_norms_after(args, a);
    floatX* const residual = args.residual;
    const Join then_ln_2{residual, &ln_2_, {a.ln_2.out}}, then_next{residual, args.next, {args.normed}};
    const CachedStep first{a.ln_1.out, args.cache, args.position, args.rows};
    const CachedStep second{a.ln_2.out, nullptr, args.position, args.rows};
    add_branch(residual, attention_.cached(first, a.attention), then_ln_2, tools_, args.rows);
    add_branch(residual, mlp_cached(second, a), then_next, tools_, args.rows);
}

void Layer::cached_norms_after(const CachedLayer& args, const LayerActivations& a) const {
    floatX* const residual = args.residual;
    const Join then_next{residual, args.next, {args.normed}};
    const CachedStep step{residual, args.cache, args.position, args.rows};
    ln_1_.forward({a.attproj}, attention_.cached(step, a.attention), args.rows);
    add_branch(residual, a.attproj, {.residual = residual}, tools_, args.rows);
    ln_2_.forward({a.fcproj}, mlp_cached(step, a), args.rows);
    add_branch(residual, a.fcproj, then_next, tools_, args.rows);
}

const floatX* Layer::mlp_cached(const CachedStep& step, const LayerActivations& a) const {
    return with_mlp(a, [&](const auto& mlp, const auto& kept) { return mlp.cached(step, kept); });
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
