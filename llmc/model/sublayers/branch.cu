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

// Projects `inner` into `parts` (R, C) and adds it up over tp ranks. Returns where the sums are: at `to`, unless that
// is null (TpRegion::begin_sum).
const floatX* Branch::project(floatX* parts, floatX* to, const floatX* inner) const {
    TpRegion& tp = tools_.tp;
    for (int i = 0; i < tp.summed_chunks(); i++) {
        const Rows rows = tp.rows_of(i);
        out_.forward(at_row(parts, rows, tools_.sizes.C), at_row(inner, rows, out_.in_channels()), rows.count,
                     tools_.stream);
        tp.begin_sum(parts, to, i);
    }
    return tp.wait_for_sums(parts, to);
}

void Branch::project_and_add(const SublayerForward& args, const BranchActivations& a, const floatX* inner) const {
    floatX *const out = args.out, *const made = tools_.workspace.branch_out;   // (R, C)
    if (norm_after()) {
        project(tools_.sizes.residual_parts == 1 ? a.projected : made, a.projected, inner);
        norm_.forward({made, a.norm.mean, a.norm.rstd}, a.projected);
        if (out) add_branch(args, made, tools_);
    } else if (out && tools_.tp.makes_whole_sums()) {   // the matmul itself adds
        out_.forward_add(out, args.in, inner, tools_.sizes.rows(), tools_.stream);
        if (args.next) args.next->norm.forward(args.next->to, out);
    } else if (out) {
        add_branch(args, project(made, nullptr, inner), tools_);
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
    TpRegion& tp = tools_.tp;
    const cudaStream_t stream = tools_.stream;
    const int rows = tools_.sizes.rows();
    if (norm_after()) norm_backward(args, a, args.dresidual);
    const floatX* const dprojected = norm_after() ? a.projected : args.dresidual;   // (Rr, C)
    const floatX* const dout = tp.gather_gradient(dprojected, args.queue);
    const floatX* gathered = dout;
    if (args.delayed()) {   // the memory of a residual stream has no room for all rows: they are gathered again
        const floatX* const kept =
            norm_after() ? dprojected
                         : keep_gradient(args, args.delayed_dout, dprojected, tools_.sizes.residual_elements(), stream);
        args.queue.add({.run = [&tp, kept, &queue = args.queue] { tp.gather_gradient(kept, queue); }});
        gathered = tp.gathered_gradient(kept);
    }
    args.queue.add({.run = [=, this, &gradients = args.gradients] {
        out_.backward_weight(gradients, gathered, inner, rows, stream);
    }});
    return dout;
}

void Branch::enter_backward(const SublayerBackward& args, const BranchActivations& a, const floatX* dhidden,
                            floatX* hidden) const {
    TpRegion& tp = tools_.tp;
    const cudaStream_t stream = tools_.stream;
    const int rows = tools_.sizes.rows();
    const floatX* const entered = entered_rows(args.in, a);
    const floatX* const kept = keep_gradient(args, hidden, dhidden, std::int64_t{rows} * in_.out_channels(), stream);
    args.queue.add({.prefetch = [&tp, entered] { tp.prefetch(entered); },
                    .run = [=, this, &tp, &gradients = args.gradients] {
                        in_.backward_weight(gradients, kept, tp.gather(entered), rows, stream);
                    }});
    floatX* const part_of_sum = tools_.workspace.dnormed;
    in_.backward_input(part_of_sum, dhidden, rows, stream);
    const floatX* const din = tp.sum_gradient(part_of_sum, args.queue);
    if (!norm_after()) return norm_backward(args, a, din);
    residual_forward<floatX>(args.dresidual, args.dresidual, din, tools_.sizes.residual_elements(), stream);
}
