// Self-attention: c_proj(attend(c_attn(in))), with q, k and v as blocks of one matrix; q and k are normed and rotated
// if the model does so. Radford et al., "Language models are unsupervised multitask learners" (GPT-2), 2019,
// section 2.3.
#pragma once

#include "llmc/model/layer/linear.h"
#include "llmc/model/layer/qk_norms.h"

class Attention {
public:
    Attention(const StageTools& tools, const ModelState<floatX>& parameters, int layer);
    static std::vector<ParamRow> parameters(const ModelConfig& config);

    // Computes attention's output from in (Rr, C) and adds it to the residual stream: out (Rr, C), as `join` says.
    void forward(floatX* out, const floatX* in, const Join& join, const ForwardPass& pass,
                 const AttentionActivations& a) const;
    // Returns the gradient of args.in, (Rr, C), valid until the next call of a sublayer. `reusable`: memory to work in,
    // or none. `norms_aside`: as Norm::Backward::aside, for the norms of queries and keys.
    const floatX* backward(const SublayerBackward& args, const AttentionActivations& a, const ReusableMemory& reusable,
                           std::byte* norms_aside) const;

    // Generation: returns the output, (rows, C), valid until the next call of a sublayer.
    const floatX* cached(const CachedStep& step, const AttentionActivations& a) const;

private:
    const StageTools& tools_;
    bool slides_;     // its queries see the model's window, if sequences are longer
    Linear c_attn_;   // column parallel
    QkNorms qk_norms_;
    Linear c_proj_;   // row parallel
};
