// A mixture of experts: x + sum over a token's K experts of w_e expert_e(n) [+ shared(n)], n = ln_2(x), in place of the
// MLP. A router chooses and weighs (llmc/kernels/experts/router.cuh); every expert is an MLP without biases, and so are
// the shared experts, which take every token and are one MLP of their widths together.
//
// Each expert has as many rows as tokens were sent to it, which only the device knows (grouped_matmul.cuh). No token is
// dropped, unless training gives experts a capacity (capacity.cuh); dropped rows come after all others, which nobody
// multiplies or sends. Choices are kept at every recompute level and never made again. The mixture works in the
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
struct GatheredRows;
struct GroupedShape;
struct RouterKind;
template <class Real>
struct ExpertActivation;

class Experts {
public:
    Experts(const StageTools& tools, const ModelState<floatX>& parameters, int layer);
    static std::vector<ParamRow> parameters(const ModelConfig& config);
    const Norm& norm() const { return norm_; }

    void forward(const SublayerForward& args, const ExpertsActivations& a) const;
    // Computes again the activations that `level`, below Recompute::block, drops.
    void recompute(const floatX* in, const ExpertsActivations& a, Recompute level) const;
    void backward(const SublayerBackward& args, const ExpertsActivations& a) const;

    // Generation: returns what is to be added to the residual stream, (rows, C).
    const floatX* cached(const CachedStep& step, const ExpertsActivations& a) const;

private:
    struct Matrices {   // one matrix of each expert, (E, out, in)
        int index;
        const floatX* weights;
        int out, in;
    };
    const ModelConfig& model() const { return tools_.sizes.model; }
    int experts() const { return static_cast<int>(model().experts); }
    int chosen() const { return static_cast<int>(model().experts_per_token()); }
    int rows() const { return tools_.sizes.residual_rows(); }
    RouterKind router_kind() const;
    Matrices matrices(const ModelState<floatX>& parameters, const char* name, int of_experts) const;
    // True if experts are dealt out. held_rows(): rows of this rank's experts, then from all these ranks, else from
    // this one.
    bool dealt() const { return tools_.sizes.ep > 1; }
    bool has_capacity() const { return tools_.capacity_factor > 0; }
    int held_rows(const ExpertsActivations& a, int tokens) const;
    GroupedShape grouped(const ExpertsActivations& a, const Matrices& matrices, int tokens) const;
    ExpertActivation<floatX> activation(const ExpertsActivations& a, int tokens) const;

    void choose(const floatX* normed, int tokens, const ExpertsActivations& a, bool again) const;
    void order(const ExpertsActivations& a, int tokens) const;
    void count(const ExpertsActivations& a) const;
    void run(const floatX* normed, int tokens, const ExpertsActivations& a, bool again) const;
    void activate(const ExpertsActivations& a, int tokens) const;
    void activate_shared(const ExpertsActivations& a, int tokens) const;
    const floatX* to_experts(floatX* to, const floatX* from, const ExpertsActivations& a, int tokens) const;
    GatheredRows gathered(const ExpertsActivations& a, int tokens) const;
    const floatX* from_experts(const floatX* from, const ExpertsActivations& a) const;
    void send_weights(const ExpertsActivations& a) const;
    void receive_weight_gradients(const ExpertsActivations& a) const;
    floatX* combined(const ExpertsActivations& a, int tokens) const;
    void route_backward(const ExpertsActivations& a) const;
    void add_to_totals(const ExpertsActivations& a) const;
    void shared_backward(floatX* din, const floatX* kept_dresidual, const SublayerBackward& args,
                         const ExpertsActivations& a) const;
    void queue_out_gradient(const floatX* dout, const floatX* kept_dresidual, const SublayerBackward& args,
                            const ExpertsActivations& a) const;
    template <class A>
    void backward_weight(Gradients& gradients, const Matrices& matrices, const GroupedShape& shape, const A* dout,
                         const floatX* in, const GatheredRows& dout_rows, const GatheredRows& in_rows) const;

    const StageTools& tools_;
    Norm norm_;
    int layer_;
    Matrices router_, in_, out_;
    std::optional<Linear> shared_in_, shared_out_;
    ExpertsScratch scratch_;
};
