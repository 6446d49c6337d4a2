// A layer: its sublayers in order, joined along the residual stream.
//
//   residual(0) = in;  residual(i+1) = residual(i) + sublayer i (norm i (residual(i)));  out = residual(n)
// or, where norms come after, residual(i) + norm i (sublayer i (residual(i))).
// The sum behind a sublayer and the norm of the next one are one kernel where no matmul has added already.
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

    // out, in (residual rows, C). What backward needs besides `in` is left in `a`.
    void forward(floatX* out, const floatX* in, const LayerActivations& a) const;
    // Makes again what this level has not kept.
    void recompute(const floatX* in, const LayerActivations& a, Recompute level) const;
    // Where delayed gradients of weights find what they read: memory of the layer's output, and for gradients of norms
    // (sublayers, norm_elements) of the gradients' type, or null where these have their place.
    struct Delayed {
        floatX* out;
        std::byte* norms;
    };
    // dresidual (residual rows, C): before, the gradient of `out`; after, that of `in`. `delayed`: or null.
    void backward(floatX* dresidual, const floatX* in, const LayerActivations& a, const Delayed* delayed,
                  AnyGradients& gradients, WeightGradientQueue& queue) const;

    // Generation: the layer on some positions, whose residual stream is `residual`, normed by the first norm already.
    // `next`, if any, reads the output: of the layer after it, or the head.
    void cached(floatX* residual, const std::vector<floatX*>& caches, const CachedStep& step,
                const std::optional<Sublayer::Next>& next) const;
    // The norm that reads the layer's input, if any.
    std::optional<Sublayer::Next> first(const LayerActivations& a) const { return next_of(0, a); }
    std::vector<std::int64_t> cache_elements() const;   // of a position, for each sublayer

    // show(name, values, count) for each activation, in the order in which forward makes them, under llm.c's names.
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
    std::vector<std::size_t> first_;   // activation of each sublayer; the one before is the stream that it reads
};
