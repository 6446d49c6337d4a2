// A layer: attention, then the MLP or a mixture of experts, joined along the residual stream.
//
//   residual2 = in + attention(ln_1(in));  out = residual2 + mlp(ln_2(residual2))
// or, if norms come after sublayers, in + ln_1(attention(in)) and residual2 + ln_2(mlp(residual2)).
// The sum after attention and ln_2 are one kernel, unless a matmul adds the sum itself.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/model/sublayers/attention.h"
#include "llmc/model/sublayers/experts.h"
#include "llmc/model/sublayers/mlp.h"

class Layer {
public:
    Layer(const StageTools& tools, const ModelState<floatX>& parameters, int layer);
    static std::vector<ParamRow> parameters(const ModelConfig& config);

    // Runs the layer: out, in (residual rows, C). Leaves in `a` what backward needs besides `in`.
    void forward(floatX* out, const floatX* in, const Batch& batch, const LayerActivations& a) const;
    // Computes again the activations that `level` drops.
    void recompute(const floatX* in, const Batch& batch, const LayerActivations& a, Recompute level) const;
    // Memory for delayed gradients of weights: the layer's output, whose place a copy of its gradient takes; and
    // (2, norm_elements) of the gradients' type for gradients of norms, or null if these go to their place at once.
    struct Delayed {
        floatX* out;
        std::byte* norms;
    };
    // Runs backward. dresidual (residual rows, C): before, the gradient of `out`; after, that of `in`. `delayed`: null
    // unless gradients of weights are delayed.
    void backward(floatX* dresidual, const floatX* in, const Batch& batch, const LayerActivations& a,
                  const Delayed* delayed, Gradients& gradients, WeightGradientQueue& queue) const;

    // Generation: runs the layer on positions [position, position + rows) of a sequence, whose residual stream (rows,
    // C) is `residual`; ln_1 has been made already. `next`: the norm that reads the output: the head's, or the next
    // layer's if norms come before sublayers; else none. `cache`: (positions, qkv_width()) of this layer.
    void cached(floatX* residual, floatX* cache, int position, int rows, const LayerActivations& a,
                const std::optional<NextNorm>& next) const;
    // Returns the norm that reads the layer's input; none if norms come after.
    std::optional<NextNorm> first_norm(const LayerActivations& a) const;

    // Calls show(name, values, count) for each activation, in the order of forward, with llm.c's names.
    void show(const std::function<void(const char*, const floatX*, std::int64_t)>& show, const LayerActivations& a,
              const floatX* out) const;
    const Attention& attention() const { return attention_; }

private:
    std::optional<NextNorm> second_norm(const LayerActivations& a) const;
    void run(floatX* out, const floatX* in, const Batch& batch, const LayerActivations& a, bool again) const;

    const StageTools& tools_;
    std::string name_;   // "h.3", for profilers
    Attention attention_;
    std::optional<Mlp> mlp_;
    std::optional<Experts> experts_;   // in place of the MLP
};
