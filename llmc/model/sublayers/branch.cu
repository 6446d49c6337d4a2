#include "llmc/model/sublayers/branch.h"

#include "llmc/kernels/rows/residual.cuh"

namespace {

Linear linear_of(const SublayerPlace& place, const std::string& name) {
    const ParamTable& table = place.parameters.storage().table();
    return {place.tools.matmul, place.parameters, table.index(name + ".weight", place.layer),
            table.find(name + ".bias", place.layer)};
}

}   // namespace

Branch::Branch(const SublayerPlace& place, const char* norm, const char* in, const char* out, floatX* din)
    : Sublayer(Norm(place.tools, place.parameters, norm, place.layer)),
      tools_(place.tools),
      first_(place.first),
      in_(linear_of(place, in)),
      out_(linear_of(place, out)),
      din_(din) {}

std::vector<KeptTensor> Branch::kept(const KeptNames& names, const KeptTensor& in, const RankSizes& sizes) {
    const std::int64_t Rr = sizes.residual_rows();
    const bool after = sizes.model.norm_position == NormPosition::after;
    return {{.name = after ? names.projected : names.normed,
             .elements = Rr * sizes.C,
             .dropped_from = after ? Recompute::block : Recompute::gelu_norm},
            {.name = names.mean, .elements = sizes.model.norm == NormKind::layer ? Rr : 0, .statistic = true},
            {.name = names.rstd, .elements = Rr, .statistic = true},
            in};
}

void Branch::add_linear(std::vector<ParamRow>& rows, const ModelConfig& config, const char* name, TensorSpec weight,
                        TensorSpec bias, bool writes_residual) {
    rows.push_back({.name = text(name, ".weight"),
                    .tensor = std::move(weight),
                    .init = Init::normal,
                    .writes_residual = writes_residual,
                    .decays = true,
                    .hf_transposed = true});
    if (config.bias) rows.push_back({.name = text(name, ".bias"), .tensor = std::move(bias)});
}

Norm::Output Branch::normed(const LayerActivations& a) const {
    return {at(a, kNormed), at<float>(a, kMean), at<float>(a, kRstd)};
}

// ---------------------------------------------------------------------------------------------------------------------
// Forward

void Branch::inside(const floatX* in, const LayerActivations& a) const {
    tools_.cut_points.enter_columns(
        norm_after() ? in : at(a, kNormed), tools_.sizes.rows(),
        [&](const floatX* entered, Rows part) { enter(entered, part, a); }, tools_.stream);
    mix(a);
}

// Projects and norms, if norms come after. Returns this rank's residual rows, in the workspace.
const floatX* Branch::norm_projection(const LayerActivations& a) const {
    const RankSizes& sizes = tools_.sizes;
    const floatX* const inner = out_input(a);
    floatX *const projected = at(a, kProjected), *const made = tools_.workspace.rows_c.data();
    floatX* const whole = sizes.residual_parts == 1 ? projected : made;   // output of all rows
    auto work = [&](Rows part) {
        out_.forward(at_row(whole, part, sizes.C), at_row(inner, part, out_.in_channels()), part.count, tools_.stream);
    };
    tools_.cut_points.leave_rows(whole, projected, sizes.rows(), work, tools_.stream);
    norm().forward({made, at<float>(a, kMean), at<float>(a, kRstd)}, projected);
    return made;
}
void Branch::join_inside(const LayerActivations& a) const {
    if (norm_after()) norm_projection(a);
}

void Branch::join(floatX* out, const floatX* in, const LayerActivations& a, const Next* next) const {
    CutPoints& cut = tools_.cut_points;
    const RankSizes& sizes = tools_.sizes;
    const std::int64_t elements = std::int64_t{sizes.residual_rows()} * sizes.C;
    if (norm_after()) return residual_forward<floatX>(out, in, norm_projection(a), elements, tools_.stream);
    const floatX* const inner = out_input(a);
    if (cut.leaves_whole_sums()) {   // the matmul itself adds
        auto work = [&](Rows part) {
            out_.forward_add(at_row(out, part, sizes.C), at_row(in, part, sizes.C),
                             at_row(inner, part, out_.in_channels()), part.count, tools_.stream);
        };
        cut.leave_rows(out, out, sizes.rows(), work, tools_.stream);
        if (next) next->norm.forward(next->to, out);
        return;
    }
    floatX* const part_of_sum = tools_.workspace.rows_c.data();
    auto work = [&](Rows part) {
        out_.forward(at_row(part_of_sum, part, sizes.C), at_row(inner, part, out_.in_channels()), part.count,
                     tools_.stream);
    };
    const floatX* const sum = cut.leave_rows(part_of_sum, nullptr, sizes.rows(), work, tools_.stream);
    if (next) return next->norm.add_forward(out, next->to, in, sum);
    residual_forward<floatX>(out, in, sum, elements, tools_.stream);
}

const floatX* Branch::cached(const CachedStep& step) const {
    floatX* const added = tools_.workspace.rows_c.data();
    floatX* const projected = norm_after() ? at(step.a, kProjected) : added;
    cached_inside(step);
    out_.forward_few(projected, out_input(step.a), step.rows, tools_.stream);
    if (norm_after()) norm().forward({added}, projected, step.rows);
    return added;
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

void Branch::recompute(const floatX* in, const LayerActivations& a, Recompute level) const {
    recompute_inside(a, level);
    if (level >= Recompute::gelu_norm && !norm_after()) norm().forward({at(a, kNormed)}, in);   // statistics are kept
}

void Branch::backward(const SublayerBackward& args) const {
    CutPoints& cut = tools_.cut_points;
    const cudaStream_t stream = tools_.stream;
    const int rows = tools_.sizes.rows();
    const LayerActivations& a = args.a;
    const bool delayed = args.delayed();
    // Returns what a gradient of weights reads, (count, channels): a copy if it is delayed, because `gradient` changes
    // before.
    auto keep = [&](floatX* copy, const floatX* gradient, int count, int channels) -> const floatX* {
        if (!delayed) return gradient;
        const std::size_t bytes = sizeof(floatX) * static_cast<std::size_t>(std::int64_t{count} * channels);
        CUDA_CHECK(cudaMemcpyAsync(copy, gradient, bytes, cudaMemcpyDeviceToDevice, stream));
        return copy;
    };

    auto norm_backward = [&](floatX* din, const floatX* dout, const floatX* in, bool add) {
        norm().backward(
            {.din = din, .dout = dout, .in = in, .kept = normed(a), .add_to_din = add, .aside = args.norm_aside},
            args.gradients, args.queue);
    };
    const int residual_rows = tools_.sizes.residual_rows(), C = tools_.sizes.C;
    floatX* const projected = at(a, kProjected);
    if (norm_after()) norm_backward(projected, args.dresidual, projected, false);
    const floatX* const dbranch = norm_after() ? projected : args.dresidual;
    const floatX* const dout = cut.leave_rows_backward(dbranch, args.queue, stream);
    const floatX* const own_dout = norm_after() ? dbranch : keep(args.kept_dout, dbranch, residual_rows, C);
    args.queue.add([=, this, &gradients = args.gradients, &queue = args.queue, inner = out_input(a)] {
        // A delayed gradient gathers the rows again: the memory of a residual stream has no room for all of them.
        const floatX* const all = delayed ? tools_.cut_points.leave_rows_backward(own_dout, queue, stream) : dout;
        out_.backward_weight(gradients, all, inner, rows, stream);
    });
    inside_backward(dout, args);
    const floatX* const entered = norm_after() ? args.in : at(a, kNormed);
    if (!delayed) cut.will_enter_columns(entered, stream);   // its gather hides behind the matmul before its use
    const floatX* const kept_din = keep(at(a, kIn), din_, rows, in_.out_channels());
    args.queue.add([=, this, &gradients = args.gradients] {
        in_.backward_weight(gradients, kept_din, tools_.cut_points.enter_columns(entered, stream), rows, stream);
    });
    floatX* const dentered = tools_.workspace.rows_c.data();
    in_.backward_input(dentered, din_, rows, stream);
    const floatX* const left = cut.enter_columns_backward(dentered, args.queue, stream);
    if (!norm_after()) return norm_backward(args.dresidual, left, args.in, true);
    residual_forward<floatX>(args.dresidual, args.dresidual, left, std::int64_t{residual_rows} * C, stream);
}
