// Self-attention: x + c_proj(attend(c_attn(ln_1(x)))), with q, k and v as blocks of one matrix; q and k are normed and
// rotated if the model does so. Radford et al., "Language models are unsupervised multitask learners" (GPT-2), 2019,
// section 2.3.
#pragma once

#include "llmc/model/sublayers/branch.h"
#include "llmc/model/sublayers/row_norm.h"

class Attention : public Branch {
public:
    static std::vector<ParamRow> parameters(const ModelConfig& config);
    static std::vector<KeptTensor> kept(const RankSizes& sizes);
    static std::vector<ScratchTensor> scratch(const RankSizes& sizes);
    explicit Attention(const SublayerPlace& place);

    // Arguments of the calls on these activations, to prepare or measure them. Backward reads the output's gradient
    // from Workspace::rows_c and writes that of q, k and v to din().
    AttentionForward<floatX> forward_arguments(const LayerActivations& a) const;
    AttentionBackward<floatX> backward_arguments(const LayerActivations& a) const;
    // Fills what the calls read with values drawn from a normal distribution.
    void fill_randomly(const LayerActivations& a) const;

    std::int64_t cache_elements() const override { return in().out_channels(); }

private:
    enum Kept : std::size_t { kQkv = kIn, kAtty = kOwn, kLse, kAttended, kQRaw, kKRaw, kQRstd, kKRstd };
    // Norm of the heads of q, or of k: the heads in a row of qkv, and the kept tensors of the norm.
    struct HeadNorm {
        Norm norm;
        int first, heads;
        Kept raw, rstd;
    };

    AttentionShape shape() const;
    void enter(const floatX* entered, Rows rows, const LayerActivations& a) const override;
    void mix(const LayerActivations& a) const override;
    HeadsView<floatX> heads_at(floatX* qkv, const HeadNorm& of) const;
    void norm_heads(floatX* qkv, Rows rows, const LayerActivations& a) const;
    void norm_heads_backward(const SublayerBackward& args) const;
    void norm_rows(floatX* qkv, Rows rows, const LayerActivations& a) const;
    void norm_rows_backward(const SublayerBackward& args) const;
    RowNorm::Kept kept_of_row_norm(std::size_t i, const LayerActivations& a, Rows rows) const;
    // Returns where the gradient of norm i's weight waits: behind the two vectors of the sublayer's own norm.
    void* norm_aside(std::size_t i, const SublayerBackward& args) const;
    void turn(floatX* qkv, Rows rows, int T, const Positions& positions, bool backward) const;
    floatX* out_input(const LayerActivations& a) const override { return at(a, kAtty); }
    void inside_backward(const floatX* dout, const SublayerBackward& args) const override;
    void cached_inside(const CachedStep& step) const override;
    // Returns attention's output for the tokens and heads of this rank's attention: atty, unless ranks exchange heads
    // for tokens.
    floatX* attended(const LayerActivations& a) const { return at(a, tools().sizes.ulysses > 1 ? kAttended : kAtty); }

    float* delta_;                       // scratch: (B, NH, T)
    float* row_sums_;                    // scratch: (2, R) sums of the rows of q and of k
    std::vector<HeadNorm> head_norms_;   // none, or of q and k
    std::vector<RowNorm> row_norms_;     // likewise
};
