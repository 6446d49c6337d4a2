// One transformer block: layernorms, four linear layers and attention, joined at the cut points (cut_points.h).
//
//   residual2 = in + attproj(attend(qkv(ln1(in))))
//   out       = residual2 + fcproj(gelu(fc(ln2(residual2))))
// Radford et al., "Language models are unsupervised multitask learners" (GPT-2, 2019), section 2.3.
#pragma once

#include "llmc/model/cut_points.h"

class Block {
public:
    Block(const StageTools& tools, const ModelState<floatX>& parameters, int layer);

    // out, in (residual rows, C). What backward needs besides `in` is left in `a`.
    void forward(floatX* out, const floatX* in, const BlockActivations& a) const;
    // Computes again what this level has not kept.
    void recompute(const floatX* in, const BlockActivations& a, Recompute level) const;
    // dresidual (residual rows, C): before, the gradient of `out`; after, that of `in`. `kept`: where delayed gradients
    // of weights find what they read; null where they are not delayed.
    template <class G>
    void backward(floatX* dresidual, const floatX* in, const BlockActivations& a, const BlockGradients* kept,
                  Gradients<G>& gradients, WeightGradientQueue& queue) const;

    // Attention of this block on its activations. Backward goes from the gradient of its output, in rows_c of the
    // workspace, to that of q, k and v in `dqkv`.
    AttentionForward<floatX> attention_forward(const BlockActivations& a) const;
    AttentionBackward<floatX> attention_backward(floatX* dqkv, const BlockActivations& a) const;

private:
    void forward_to_gelu(const floatX* in, const BlockActivations& a) const;
    const floatX* project(const Linear& linear, const floatX* in) const;
    void add_projection(floatX* out, const floatX* residual, const Linear& linear, const floatX* in) const;
    template <class G>
    void norm_backward(floatX* dresidual, const floatX* dout, const floatX* in, const float* mean, const float* rstd,
                       Param weight, Param bias, G* aside, Gradients<G>& gradients, WeightGradientQueue& queue) const;

    const StageTools& tools_;
    const ModelState<floatX>& parameters_;
    int layer_;
    Linear qkv_, attproj_, fc_, fcproj_;
};
