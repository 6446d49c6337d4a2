// A layer: its sublayers in order, joined along the residual stream.
//
//   residual(0) = in;  residual(i+1) = residual(i) + sublayer i (norm i (residual(i)));  out = residual(n)
// or, if norms come after sublayers, residual(i) + norm i (sublayer i (residual(i))).
// The sum after a sublayer and the norm of the next one are one kernel, unless a matmul adds the sum itself.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/model/sublayer.h"
#include "llmc/model/sublayers/attention.h"

class Layer {
public:
    Layer(const StageTools& tools, const ModelState<floatX>& parameters, int layer);

    // Runs the layer: out, in (residual rows, C). Leaves in `a` what backward needs besides `in`.
    void forward(floatX* out, const floatX* in, const LayerActivations& a) const;
    // Computes again the activations that `level` drops.
    void recompute(const floatX* in, const LayerActivations& a, Recompute level) const;
    // Memory for delayed gradients of weights: the layer's output, whose place a copy of its gradient takes; and
    // (sublayers, norm_elements) of the gradients' type for gradients of norms, or null if these go to their place at
    // once.
    struct Delayed {
        floatX* out;
        std::byte* norms;
    };
    // Runs backward. dresidual (residual rows, C): before, the gradient of `out`; after, that of `in`. `delayed`: null
    // unless gradients of weights are delayed.
    void backward(floatX* dresidual, const floatX* in, const LayerActivations& a, const Delayed* delayed,
                  AnyGradients& gradients, WeightGradientQueue& queue) const;

    // Generation: runs the layer on the rows of `step`, whose residual stream is `residual`; the layer's first norm has
    // been applied already. `next`: the norm of the output, of the next layer or the head, if any.
    void cached(floatX* residual, const std::vector<floatX*>& caches, const CachedStep& step,
                const std::optional<Sublayer::Next>& next) const;
    // Returns the norm that reads the layer's input, if any.
    std::optional<Sublayer::Next> first(const LayerActivations& a) const { return next_of(0, a); }
    std::vector<std::int64_t> cache_elements() const;   // per position, for each sublayer

    // Calls show(name, values, count) for each activation, in the order of forward, with llm.c's names.
    void show(const std::function<void(const char*, const floatX*, std::int64_t)>& show, const LayerActivations& a,
              const floatX* out) const;
    const Attention& attention() const;

private:
    floatX* between(std::size_t i, const LayerActivations& a) const;
    const floatX* input(std::size_t i, const floatX* in, const LayerActivations& a) const;
    void forward_inside(const floatX* in, const LayerActivations& a, bool again) const;
    std::optional<Sublayer::Next> next_of(std::size_t i, const LayerActivations& a) const;

    const StageTools& tools_;
    std::string name_;   // "h.3", for profilers
    std::vector<std::unique_ptr<Sublayer>> sublayers_;
    std::vector<std::size_t> first_;   // each sublayer's first activation; before it is the stream that it reads
};
