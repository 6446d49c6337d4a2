// The MLP: c_proj(gelu(c_fc(in))), of width F (Radford et al., GPT-2, 2019), or with SwiGLU instead of GELU: c_fc makes
// F gates and F ups then (Touvron et al., "LLaMA", 2023).
#pragma once

#include "llmc/model/layer/linear.h"

class Mlp {
public:
    Mlp(const StageTools& tools, const ModelState<floatX>& parameters, int layer);
    static std::vector<ParamRow> parameters(const ModelConfig& config);

    // Computes the output from in (Rr, C) and adds it to the residual stream: out (Rr, C), as `join` says. Null `out`:
    // computes only what backward reads.
    void forward(floatX* out, const floatX* in, const Join& join, const ForwardPass& pass,
                 const MlpActivations& a) const;
    // Computes again the activations that `level`, below Recompute::block, drops.
    void recompute(const MlpActivations& a, Recompute level) const;
    // Returns the gradient of args.in, (Rr, C), valid until the next call of a sublayer.
    const floatX* backward(const SublayerBackward& args, const MlpActivations& a) const;

    // Generation: returns the output, (rows, C), valid until the next call of a sublayer.
    const floatX* cached(const CachedStep& step, const MlpActivations& a) const;

private:
    MlpKind kind() const { return tools_.sizes.model.mlp; }
    bool fused(int level) const { return traits_of(kind()).in_matmul && tools_.choices.gelu_fusion >= level; }
    void activate(floatX* fch_act, const floatX* fch, int rows) const;
    void activate_backward(const floatX* dout, const MlpActivations& a) const;

    const StageTools& tools_;
    Linear c_fc_;     // column parallel
    Linear c_proj_;   // row parallel
    MlpScratch scratch_;
};
