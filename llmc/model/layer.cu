#include "llmc/model/layer.h"

#include <string_view>

#include "llmc/base/profile_range.h"
#include "llmc/kernels/rows/residual.cuh"

Layer::Layer(const StageTools& tools, const ModelState<floatX>& parameters, int layer)
    : tools_(tools), name_(text("h.", layer)) {
    std::size_t first = 0;
    for (const SublayerKind kind : tools.sizes.model.sublayers()) {
        if (!first_.empty()) first++;   // the residual stream between
        first_.push_back(first);
        sublayers_.push_back(type_of(kind).make({tools, parameters, layer, first}));
        first += type_of(kind).kept(tools.sizes).size();
    }
}

// Returns the residual stream before sublayer i > 0.
floatX* Layer::between(std::size_t i, const LayerActivations& a) const {
    return reinterpret_cast<floatX*>(a[first_[i] - 1]);
}
const floatX* Layer::input(std::size_t i, const floatX* in, const LayerActivations& a) const {
    return i == 0 ? in : between(i, a);
}

// Returns the norm before sublayer i; none if norms come after.
std::optional<Sublayer::Next> Layer::next_of(std::size_t i, const LayerActivations& a) const {
    if (tools_.sizes.model.norm_position == NormPosition::after) return std::nullopt;
    return Sublayer::Next{sublayers_[i]->norm(), sublayers_[i]->normed(a)};
}

// Runs all but the last sum, which is the layer's output.
void Layer::forward_inside(const floatX* in, const LayerActivations& a, bool again) const {
    if (const auto norm = first(a)) norm->norm.forward(norm->to, in);
    for (std::size_t i = 0; i < sublayers_.size(); i++) {
        again ? sublayers_[i]->inside_again(input(i, in, a), a) : sublayers_[i]->inside(input(i, in, a), a);
        if (i + 1 == sublayers_.size()) return;
        const auto next = next_of(i + 1, a);
        sublayers_[i]->join(between(i + 1, a), input(i, in, a), a, next ? &*next : nullptr);
    }
}

void Layer::forward(floatX* out, const floatX* in, const LayerActivations& a) const {
    const ProfileRange range(name_.c_str());
    forward_inside(in, a, false);
    sublayers_.back()->join(out, input(sublayers_.size() - 1, in, a), a, nullptr);
}

void Layer::recompute(const floatX* in, const LayerActivations& a, Recompute level) const {
    if (level == Recompute::block) {
        forward_inside(in, a, true);
        return sublayers_.back()->join_inside(a);
    }
    for (std::size_t i = 0; i < sublayers_.size(); i++) sublayers_[i]->recompute(input(i, in, a), a, level);
}

void Layer::backward(floatX* dresidual, const floatX* in, const LayerActivations& a, const Delayed* delayed,
                     AnyGradients& gradients, WeightGradientQueue& queue) const {
    const ProfileRange range(name_.c_str());
    const std::vector<KeptTensor> kept = layer_kept(tools_.sizes);
    LentMemory lent;
    const std::size_t n = sublayers_.size();
    const std::int64_t aside_bytes = norm_elements(tools_.sizes.model) * gradient_bytes(gradients);
    for (std::size_t i = n; i-- > 0;) {
        floatX* const output = delayed == nullptr ? nullptr : i + 1 < n ? between(i + 1, a) : delayed->out;
        sublayers_[i]->backward({.dresidual = dresidual,
                                 .in = input(i, in, a),
                                 .a = a,
                                 .kept_dout = output,
                                 .norm_aside = delayed && delayed->norms
                                                   ? delayed->norms + static_cast<std::int64_t>(i) * aside_bytes
                                                   : nullptr,
                                 .lent = lent,
                                 .gradients = gradients,
                                 .queue = queue});
        if (delayed) continue;
        const std::size_t end = i + 1 < n ? first_[i + 1] - 1 : kept.size();
        for (std::size_t k = first_[i]; k < end; k++) {
            if (kept[k].lent) lent.push_back({a[k], static_cast<std::size_t>(kept[k].bytes())});
        }
    }
}

void Layer::cached(floatX* residual, const std::vector<floatX*>& caches, const CachedStep& step,
                   const std::optional<Sublayer::Next>& next) const {
    for (std::size_t i = 0; i < sublayers_.size(); i++) {
        const auto own = next_of(i, step.a);
        const floatX* const added =
            sublayers_[i]->cached({step.a, own ? own->to.out : residual, caches[i], step.position, step.rows});
        const auto to = i + 1 < sublayers_.size() ? next_of(i + 1, step.a) : next;
        if (to) {
            to->norm.add_forward(residual, {to->to.out}, residual, added, step.rows);
        } else {
            residual_forward<floatX>(residual, residual, added, std::int64_t{step.rows} * tools_.sizes.C,
                                     tools_.stream);
        }
    }
}

std::vector<std::int64_t> Layer::cache_elements() const {
    std::vector<std::int64_t> elements;
    for (const auto& sublayer : sublayers_) elements.push_back(sublayer->cache_elements());
    return elements;
}

void Layer::show(const std::function<void(const char*, const floatX*, std::int64_t)>& show, const LayerActivations& a,
                 const floatX* out) const {
    const std::vector<KeptTensor> kept = layer_kept(tools_.sizes);
    for (std::size_t i = 0; i < kept.size(); i++) {
        // skip experts that are dealt out: their room for rows that did not come holds nothing
        if (tools_.sizes.ep > 1 && std::string_view(kept[i].name).starts_with("expert_")) continue;
        if (!kept[i].statistic && kept[i].elements > 0)
            show(kept[i].name, reinterpret_cast<const floatX*>(a[i]), kept[i].elements);
    }
    show("residual3", out, std::int64_t{tools_.sizes.residual_rows()} * tools_.sizes.C);
}

const Attention& Layer::attention() const {
    for (const auto& sublayer : sublayers_) {
        if (const auto* found = dynamic_cast<const Attention*>(sublayer.get())) return *found;
    }
    ENSURE(false, "a layer without attention");
}
