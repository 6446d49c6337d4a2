// The MLP: x + c_proj(gelu(c_fc(ln_2(x)))), of width F (Radford et al., GPT-2, 2019), or with SwiGLU instead of GELU:
// c_fc makes F gates and F ups then (Touvron et al., "LLaMA", 2023).
#pragma once

#include "llmc/model/sublayers/branch.h"

class Mlp {
public:
    Mlp(const StageTools& tools, const ModelState<floatX>& parameters, int layer);
    static std::vector<ParamRow> parameters(const ModelConfig& config);
    const Norm& norm() const { return branch_.norm(); }

    void forward(const SublayerForward& args, const MlpActivations& a) const;
    // Computes again the activations that `level`, below Recompute::block, drops.
    void recompute(const floatX* in, const MlpActivations& a, Recompute level) const;
    void backward(const SublayerBackward& args, const MlpActivations& a) const;

    // Generation: returns what is to be added to the residual stream, (rows, C).
    const floatX* cached(const CachedStep& step, const MlpActivations& a) const;

private:
    MlpKind kind() const { return tools_.sizes.model.mlp; }
    bool fused(int level) const { return traits_of(kind()).in_matmul && tools_.gelu_fusion >= level; }
    void activate(floatX* fch_act, const floatX* fch, int rows) const;
    void activate_backward(const floatX* dprojected, const MlpActivations& a) const;

    const StageTools& tools_;
    Branch branch_;   // ln_2, c_fc, c_proj
    MlpScratch scratch_;
};
