// A layer: attention, then the MLP or a mixture of experts, joined along the residual stream.
//
//   residual2 = in + attention(ln_1(in));  out = residual2 + mlp(ln_2(residual2))
// or, if norms come after sublayers, in + ln_1(attention(in)) and residual2 + ln_2(mlp(residual2)).
//
// Fused where that is possible: the sum after attention with ln_2, or the projection with the sum.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/model/layer/attention.h"
#include "llmc/model/layer/experts.h"
#include "llmc/model/layer/mlp.h"

class Layer {
public:
    Layer(const StageTools& tools, const ModelState<floatX>& parameters, int layer);
    static std::vector<ParamRow> parameters(const ModelConfig& config);

    // Runs the layer: out, in (residual rows, C). Leaves in `a` what backward needs besides `in`. Null `out`: not
    // needed.
    void forward(floatX* out, const floatX* in, const ForwardPass& pass, const LayerActivations& a) const;
    // Computes again the activations that `level` drops.
    void recompute(const floatX* in, const ForwardPass& pass, const LayerActivations& a, Recompute level) const;
    // Memory for delayed gradients of weights: the layer's output, whose place a copy of its gradient takes; and
    // (2, norm_elements) of the gradients' type for gradients of norms, or null if these go to their place at once.
    struct Delayed {
        floatX* out;
        std::byte* norms;
    };
    struct Backward {
        floatX* dresidual;   // (residual rows, C): before, the gradient of `out`; after, that of `in`
        const floatX* in;    // as given to forward
        const ForwardPass& pass;
        const Delayed* delayed;   // null unless gradients of weights are delayed
        Gradients& gradients;
        WeightGradientQueue& queue;
    };
    void backward(const Backward& args, const LayerActivations& a) const;

    // Generation: some positions of one sequence, whose first_norm() has been made already.
    struct CachedLayer {
        floatX* residual;     // (rows, C): before, the layer's input; after, its output
        KvCache* cache;       // this layer's
        int position, rows;   // first position, number of positions
        const Norm* next;     // the norm that reads the output: the head's, or the next layer's first_norm(); or null
        floatX* normed;       // place of its output
    };
    void cached(const CachedLayer& args, const LayerActivations& a) const;
    // Returns the norm that reads the layer's input; null if norms come after.
    const Norm* first_norm() const { return norms_after() ? nullptr : &ln_1_; }

    // Calls show(name, values, count) for each activation, in the order of forward, with llm.c's names.
    void show(const std::function<void(const char*, const floatX*, std::int64_t)>& show, const ForwardPass& pass,
              const LayerActivations& a, const floatX* out) const;

private:
    bool norms_after() const { return tools_.sizes.model.norm_after(); }
    void forward_norms_after(floatX* out, const floatX* in, const ForwardPass& pass, const LayerActivations& a) const;
    void backward_norms_after(const Backward& args, const LayerActivations& a) const;
    void cached_norms_after(const CachedLayer& args, const LayerActivations& a) const;
    // Returns the arguments of a sublayer's backward; `kept` as SublayerBackward::kept_dout.
    SublayerBackward of_sublayer(const Backward& args, const floatX* dout, const floatX* in, floatX* kept) const;
    // Returns where gradients of norms wait, of attention (0) or the MLP (1); or null.
    std::byte* aside(const Backward& args, int sublayer) const;
    // Calls `call` with the MLP, or the experts, and what it keeps.
    template <class Call>
    decltype(auto) with_mlp(const LayerActivations& a, Call&& call) const;
    void mlp_forward(floatX* out, const floatX* in, const Join& join, const ForwardPass& pass,
                     const LayerActivations& a) const;
    const floatX* attention_backward(const Backward& args, const SublayerBackward& attention,
                                     const LayerActivations& a) const;
    const floatX* mlp_backward(const SublayerBackward& args, const LayerActivations& a) const;
    const floatX* mlp_cached(const CachedStep& step, const LayerActivations& a) const;

    const StageTools& tools_;
    std::string name_;   // "h.3", for profilers
    Norm ln_1_, ln_2_;
    Attention attention_;
    std::optional<Mlp> mlp_;
    std::optional<Experts> experts_;   // in place of the MLP
};
