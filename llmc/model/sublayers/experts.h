// A mixture of experts: x + sum over a token's K experts of w_e expert_e(n) [+ shared(n)], n = ln_2(x), in place of the
// MLP. A router chooses and weighs (llmc/kernels/experts/router.cuh); every expert is an MLP without biases, and so are
// the shared experts, which take every token and are one MLP of their widths together.
//
// No token is dropped: each expert has as many rows as tokens were sent to it, which only the device knows
// (grouped_matmul.cuh). Choices are kept at every recompute level and never made again. The mixture works in the
// residual region: tensor parallelism does not cut it, and under sequence parallelism each rank's gradients of its
// weights are parts of a sum, as norms' are.
//
// If experts are dealt out to ranks (--ep, expert_ranks.h), the work between dispatch and combine is on rows of tokens
// of all these ranks. There is room for as many as may come: ranks x tokens x the lesser of K and of the experts that a
// rank holds. The weights of rows travel with them.
#pragma once

#include <optional>

#include "llmc/model/linear.h"
#include "llmc/model/sublayer.h"

// llmc/kernels/experts
struct GroupedShape;
struct RouterKind;
template <class Real>
struct ExpertActivation;

class Experts : public Sublayer {
public:
    static std::vector<ParamRow> parameters(const ModelConfig& config);
    static std::vector<KeptTensor> kept(const RankSizes& sizes);
    static std::vector<ScratchTensor> scratch(const RankSizes& sizes);
    explicit Experts(const SublayerPlace& place);

    Norm::Output normed(const LayerActivations& a) const override;
    void inside(const floatX* in, const LayerActivations& a) const override;
    void inside_again(const floatX* in, const LayerActivations& a) const override;
    void join(floatX* out, const floatX* in, const LayerActivations& a, const Next* next) const override;
    void recompute(const floatX* in, const LayerActivations& a, Recompute level) const override;
    void backward(const SublayerBackward& args) const override;
    const floatX* cached(const CachedStep& step) const override;

private:
    enum Kept : std::size_t {
        kNormed,
        kMean,
        kRstd,
        kLogits,
        kIndex,
        kCounts,
        kWeight,
        kOffsets,
        kSource,
        kRowOf,
        kHeldOffsets,
        kHeldWeight,
        kIn,
        kHidden,
        kActivated,
        kSharedHidden,
        kSharedActivated
    };
    struct Matrices {   // one matrix of each expert, (E, out, in)
        int index;
        const floatX* weights;
        int out, in;
    };
    template <class T = floatX>
    T* at(const LayerActivations& a, std::size_t which) const {
        return reinterpret_cast<T*>(a[first_ + which]);
    }
    const ModelConfig& model() const { return tools_.sizes.model; }
    int experts() const { return static_cast<int>(model().experts); }
    int chosen() const { return static_cast<int>(model().experts_per_token()); }
    int rows() const { return tools_.sizes.residual_rows(); }
    bool gated() const;
    RouterKind router_kind() const;
    Matrices matrices(const SublayerPlace& place, const char* name, int of_experts) const;
    // True if experts are dealt out. held_rows(): rows of this rank's experts, then from all these ranks, else from
    // this one.
    bool dealt() const { return tools_.sizes.ep > 1; }
    int held_rows(const LayerActivations& a, int tokens) const;
    GroupedShape grouped(const LayerActivations& a, const Matrices& matrices, int tokens) const;
    ExpertActivation<floatX> activation(const LayerActivations& a, int tokens) const;

    void choose(const floatX* normed, int tokens, const LayerActivations& a, bool again) const;
    void count(const LayerActivations& a) const;
    void run(const floatX* normed, int tokens, const LayerActivations& a, bool again) const;
    void activate(const LayerActivations& a, int tokens) const;
    void activate_shared(const LayerActivations& a, int tokens) const;
    void to_experts(floatX* to, const floatX* from, const LayerActivations& a, int tokens) const;
    const floatX* from_experts(const floatX* from, const LayerActivations& a) const;
    void send_weights(const LayerActivations& a) const;
    void receive_weight_gradients(const LayerActivations& a) const;
    floatX* combined(const LayerActivations& a, int tokens) const;
    void route_backward(const LayerActivations& a) const;
    void add_to_totals(const LayerActivations& a) const;
    void shared_backward(floatX* din, const SublayerBackward& args) const;
    template <class A>
    void backward_weight(AnyGradients& gradients, const Matrices& matrices, const GroupedShape& shape, const A* dout,
                         const floatX* in) const;

    const StageTools& tools_;
    std::size_t first_;
    int layer_;
    Matrices router_, in_, out_;
    std::optional<Linear> shared_in_, shared_out_;
    // Scratch; M: rows of this rank's experts
    floatX *rows_, *dactivated_;   // (M, C), (M, F)
    float *dweight_, *losses_;     // (Rr, K), (2, Rr)
    // Scratch if experts are dealt out
    floatX* own_rows_;                    // (Rr K, C) rows of this rank's tokens, in the order of experts
    float *own_values_, *held_dweight_;   // (Rr K), (M)
    std::int32_t* counts_;                // (ranks, E)
};
