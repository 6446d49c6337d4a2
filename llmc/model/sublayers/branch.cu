#include "llmc/model/sublayers/branch.h"

#include "llmc/kernels/rows/residual.cuh"

namespace {

Linear linear_of(const StageTools& tools, const ModelState<floatX>& parameters, int layer, const std::string& name) {
    const ParamTable& table = parameters.storage().table();
    return {tools.matmul, parameters, table.index(name + ".weight", layer), table.find(name + ".bias", layer)};
}

}   // namespace

Branch::Branch(const StageTools& tools, const ModelState<floatX>& parameters, int layer, const char* norm,
               const char* in, const char* out)
    : tools_(tools),
      norm_(tools, parameters, norm, layer),
      in_(linear_of(tools, parameters, layer, in)),
      out_(linear_of(tools, parameters, layer, out)) {}

void Branch::add_linear(std::vector<ParamRow>& rows, const ModelConfig& config, const char* name, TensorSpec weight,
                        TensorSpec bias, bool writes_residual) {
    rows.push_back({.name = text(name, ".weight"),
                    .tensor = std::move(weight),
                    .init = Init::normal,
                    .writes_residual = writes_residual,
                    .decays = true,
                    .orthogonal = true,
                    .hf_transposed = true});
    if (config.bias) rows.push_back({.name = text(name, ".bias"), .tensor = std::move(bias)});
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

void Branch::enter(const SublayerForward& args, const BranchActivations& a, const CutPoints::GatheredWork& work) const {
    tools_.cut_points.gather_to_tp(norm_after() ? args.in : a.norm.out, tools_.sizes.rows(), work, tools_.stream);
}

// Projects and norms this rank's residual rows, into Workspace::branch_out.
void Branch::norm_projection(const BranchActivations& a, const floatX* inner) const {
    const int C = tools_.sizes.C;
    floatX* const whole = tools_.sizes.residual_parts == 1 ? a.projected : tools_.workspace.branch_out;   // (R, C)
    auto project = [&](Rows part) {
        out_.forward(at_row(whole, part, C), at_row(inner, part, out_.in_channels()), part.count, tools_.stream);
    };
    tools_.cut_points.reduce_from_tp(whole, a.projected, tools_.sizes.rows(), project, tools_.stream);
    norm_.forward({tools_.workspace.branch_out, a.norm.mean, a.norm.rstd}, a.projected);
}

void Branch::project_and_add(const SublayerForward& args, const BranchActivations& a, const floatX* inner) const {
    CutPoints& cut = tools_.cut_points;
    const int C = tools_.sizes.C;
    floatX *const out = args.out, *const made = tools_.workspace.branch_out;
    if (norm_after()) {
        norm_projection(a, inner);
        if (out) add_branch(args, made, tools_);
    } else if (out && cut.makes_whole_sums()) {   // the matmul itself adds
        auto add_projection = [&](Rows part) {
            out_.forward_add(at_row(out, part, C), at_row(args.in, part, C), at_row(inner, part, out_.in_channels()),
                             part.count, tools_.stream);
        };
        cut.reduce_from_tp(out, out, tools_.sizes.rows(), add_projection, tools_.stream);
        if (args.next) args.next->norm.forward(args.next->to, out);
    } else if (out) {
        auto project = [&](Rows part) {
            out_.forward(at_row(made, part, C), at_row(inner, part, out_.in_channels()), part.count, tools_.stream);
        };
        add_branch(args, cut.reduce_from_tp(made, nullptr, tools_.sizes.rows(), project, tools_.stream), tools_);
    }
}

const floatX* Branch::cached_projection(const CachedStep& step, const BranchActivations& a, const floatX* inner) const {
    floatX* const added = tools_.workspace.branch_out;
    floatX* const projected = norm_after() ? a.projected : added;
    out_.forward_few(projected, inner, step.rows, tools_.stream);
    if (norm_after()) norm_.forward({added}, projected, step.rows);
    return added;
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

void Branch::norm_backward(const SublayerBackward& args, const BranchActivations& a, const floatX* dout) const {
    const bool after = norm_after();
    norm_.backward({.din = after ? a.projected : args.dresidual,
                    .dout = dout,
                    .in = after ? a.projected : args.in,
                    .kept = a.norm,
                    .add_to_din = !after,
                    .aside = args.delayed_norms},
                   args.gradients, args.queue);
}

void Branch::recompute_norm(const floatX* in, const BranchActivations& a, Recompute level) const {
    if (level >= Recompute::gelu_norm && !norm_after()) norm_.forward({a.norm.out}, in);
}

const floatX* Branch::project_backward(const SublayerBackward& args, const BranchActivations& a,
                                       const floatX* inner) const {
    CutPoints& cut = tools_.cut_points;
    const cudaStream_t stream = tools_.stream;
    const int rows = tools_.sizes.rows();
    if (norm_after()) norm_backward(args, a, args.dresidual);
    const floatX* const dprojected = norm_after() ? a.projected : args.dresidual;   // (Rr, C)
    const floatX* const dout = cut.reduce_from_tp_backward(dprojected, args.queue, stream);
    const floatX* const kept =
        norm_after() ? dprojected
                     : keep_gradient(args, args.delayed_dout, dprojected, tools_.sizes.residual_elements(), stream);
    const floatX* const entered = entered_rows(args, a);
    args.queue.add([=, this, &cut, &gradients = args.gradients, &queue = args.queue, delayed = args.delayed()] {
        // A delayed gradient gathers the rows again: the memory of a residual stream has no room for all of them. Those
        // that the next product reads, of in_, travel beside this one.
        const floatX* const all = delayed ? cut.reduce_from_tp_backward(kept, queue, stream) : dout;
        if (delayed) cut.will_gather_to_tp(entered, stream);
        out_.backward_weight(gradients, all, inner, rows, stream);
    });
    return dout;
}

void Branch::enter_backward(const SublayerBackward& args, const BranchActivations& a, const floatX* dhidden,
                            floatX* hidden) const {
    CutPoints& cut = tools_.cut_points;
    const cudaStream_t stream = tools_.stream;
    const int rows = tools_.sizes.rows();
    const floatX* const entered = entered_rows(args, a);
    if (!args.delayed()) cut.will_gather_to_tp(entered, stream);   // its gather hides behind the matmul before its use
    const floatX* const kept = keep_gradient(args, hidden, dhidden, std::int64_t{rows} * in_.out_channels(), stream);
    args.queue.add([=, this, &cut, &gradients = args.gradients] {
        in_.backward_weight(gradients, kept, cut.gather_to_tp(entered, stream), rows, stream);
    });
    floatX* const part_of_sum = tools_.workspace.dnormed;
    in_.backward_input(part_of_sum, dhidden, rows, stream);
    const floatX* const din = cut.gather_to_tp_backward(part_of_sum, args.queue, stream);
    if (!norm_after()) return norm_backward(args, a, din);
    residual_forward<floatX>(args.dresidual, args.dresidual, din, tools_.sizes.residual_elements(), stream);
}
