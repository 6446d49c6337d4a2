// A sublayer of two linear layers: `in` (cut by rows), something inside, `out` (cut by columns), and a norm before or
// after. Attention and Mlp derive from it and say only what is inside. It passes the cut points (cut_points.h).
#pragma once

#include "llmc/model/sublayer.h"

class Branch : public Sublayer {
public:
    Norm::Output normed(const LayerActivations& a) const override;
    void inside(const floatX* in, const LayerActivations& a) const override;
    void join(floatX* out, const floatX* in, const LayerActivations& a, const Next* next) const override;
    void join_inside(const LayerActivations& a) const override;
    void recompute(const floatX* in, const LayerActivations& a, Recompute level) const override;
    void backward(const SublayerBackward& args) const override;
    const floatX* cached(const CachedStep& step) const override;

protected:
    // First kept tensors of every branch; a branch's own follow. If norms come after, kProjected takes the place of
    // kNormed: the norm's input, and in backward its gradient.
    enum Kept : std::size_t { kNormed, kMean, kRstd, kIn, kOwn, kProjected = kNormed };
    struct KeptNames {
        const char *normed, *projected, *mean, *rstd;
    };
    static std::vector<KeptTensor> kept(const KeptNames& names, const KeptTensor& in, const RankSizes& sizes);

    // Adds the parameters of a linear layer; `bias` only if the model has biases.
    static void add_linear(std::vector<ParamRow>& rows, const ModelConfig& config, const char* name, TensorSpec weight,
                           TensorSpec bias, bool writes_residual);

    // Names as in the parameter table: "ln_1", "attn.c_attn", "attn.c_proj".
    Branch(const SublayerPlace& place, const char* norm, const char* in, const char* out, floatX* din);

    // Runs the first linear layer on `rows` of `entered`, and row-wise work on its output, into activations.
    virtual void enter(const floatX* entered, Rows rows, const LayerActivations& a) const = 0;
    // Runs the work inside that needs all rows.
    virtual void mix(const LayerActivations&) const {}
    virtual floatX* out_input(const LayerActivations& a) const = 0;   // input of out()
    // Computes the gradient of the first linear layer's output, into din(), from that of the branch's output.
    virtual void inside_backward(const floatX* dout, const SublayerBackward& args) const = 0;
    virtual void recompute_inside(const LayerActivations&, Recompute) const {}
    // Generation: computes out_input() from step.in.
    virtual void cached_inside(const CachedStep& step) const = 0;

    const StageTools& tools() const { return tools_; }
    const Linear& in() const { return in_; }
    const Linear& out() const { return out_; }
    floatX* din() const { return din_; }
    template <class T = floatX>
    T* at(const LayerActivations& a, std::size_t which) const {
        return reinterpret_cast<T*>(a[first_ + which]);
    }

private:
    bool norm_after() const { return tools_.sizes.model.norm_position == NormPosition::after; }
    const floatX* norm_projection(const LayerActivations& a) const;

    const StageTools& tools_;
    std::size_t first_;
    Linear in_, out_;
    floatX* din_;   // scratch: (R, channels of `in`)
};

// Row `rows.first` of a tensor.
template <class T>
T* at_row(T* tensor, Rows rows, int channels) {
    return tensor + std::int64_t{rows.first} * channels;
}
