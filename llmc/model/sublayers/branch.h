// The parts that attention and the MLP share: a norm before or after, a linear layer `in` (cut by rows) and the
// projection `out` (cut by columns), with the exchanges of rows around them (tp_region.h).
#pragma once

#include "llmc/model/sublayer.h"

class Branch {
public:
    // Names as in the parameter table: "ln_1", "attn.c_attn", "attn.c_proj".
    Branch(const StageTools& tools, const ModelState<floatX>& parameters, int layer, const char* norm, const char* in,
           const char* out);
    // Adds the parameters of a linear layer; `bias` only if the model has biases.
    static void add_linear(std::vector<ParamRow>& rows, const ModelConfig& config, const char* name, TensorSpec weight,
                           TensorSpec bias, bool writes_residual);

    const Norm& norm() const { return norm_; }
    const Linear& in() const { return in_; }
    const Linear& out() const { return out_; }

    // Returns the rows of the residual region that in() reads, once they have been gathered: the norm's output, or `in`
    // if norms come after.
    const floatX* entered_rows(const floatX* in, const BranchActivations& a) const {
        return norm_after() ? in : a.norm.out;
    }
    // Computes args.out = args.in + projection of `inner` (R, in_channels of out()), normed if norms come after; then
    // args.next.
    void project_and_add(const SublayerForward& args, const BranchActivations& a, const floatX* inner) const;

    // Computes the norm before again if `level` drops its output; its statistics are kept.
    void recompute_norm(const floatX* in, const BranchActivations& a, Recompute level) const;

    // Runs backward of project_and_add as far as the projection's output; returns its gradient, (R, C). Queues the
    // gradients of the projection's weights.
    const floatX* project_backward(const SublayerBackward& args, const BranchActivations& a, const floatX* inner) const;
    // Runs backward of the norm before and of in(), from the gradient `dhidden` (R, out_channels of in()) to
    // args.dresidual. Queues the gradients of the weights; if these are delayed they read a copy of dhidden, in the
    // place of `hidden`.
    void enter_backward(const SublayerBackward& args, const BranchActivations& a, const floatX* dhidden,
                        floatX* hidden) const;

    // Generation: projects `inner`. Returns what is to be added to the residual stream, (rows, C).
    const floatX* cached_projection(const CachedStep& step, const BranchActivations& a, const floatX* inner) const;

private:
    bool norm_after() const { return tools_.sizes.model.norm_after(); }
    const floatX* project(floatX* parts, floatX* to, const floatX* inner) const;
    void norm_backward(const SublayerBackward& args, const BranchActivations& a, const floatX* dout) const;

    const StageTools& tools_;
    Norm norm_;
    Linear in_, out_;
};
