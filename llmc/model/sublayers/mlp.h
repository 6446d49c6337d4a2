// The MLP: x + c_proj(gelu(c_fc(ln_2(x)))), of width F (Radford et al., GPT-2, 2019), or with SwiGLU instead of GELU:
// c_fc makes F gates and F ups then (Touvron et al., "LLaMA", 2023).
#pragma once

#include "llmc/model/sublayers/branch.h"

class Mlp : public Branch {
public:
    static std::vector<ParamRow> parameters(const ModelConfig& config);
    static std::vector<KeptTensor> kept(const RankSizes& sizes);
    static std::vector<ScratchTensor> scratch(const RankSizes& sizes);
    explicit Mlp(const SublayerPlace& place);

private:
    enum Kept : std::size_t { kPreGelu = kIn, kGelu = kOwn };

    void enter(const floatX* entered, Rows rows, const LayerActivations& a) const override;
    floatX* out_input(const LayerActivations& a) const override { return at(a, kGelu); }
    void recompute_inside(const LayerActivations& a, Recompute level) const override;
    void inside_backward(const floatX* dout, const SublayerBackward& args) const override;
    void cached_inside(const CachedStep& step) const override;
    MlpKind kind() const { return tools().sizes.model.mlp; }
    bool fused(int level) const { return traits_of(kind()).in_matmul && tools().gelu_fusion >= level; }
    void activate(floatX* out_input, const floatX* in_output, int rows) const;

    floatX* dswiglu_;   // scratch: (R, F)
};
