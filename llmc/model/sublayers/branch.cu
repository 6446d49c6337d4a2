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

std::vector<KeptTensor> Branch::kept(const char* norm, const char* mean, const char* rstd, const KeptTensor& in,
                                     const RankSizes& sizes) {
    const std::int64_t Rr = sizes.residual_rows();
    return {{.name = norm, .elements = Rr * sizes.C, .dropped_from = Recompute::gelu_norm},
            {.name = mean, .elements = sizes.model.norm == NormKind::layer ? Rr : 0, .statistic = true},
            {.name = rstd, .elements = Rr, .statistic = true},
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

void Branch::inside(const LayerActivations& a) const {
    tools_.cut_points.enter_columns(
        at(a, kNormed), tools_.sizes.rows(), [&](const floatX* in, Rows part) { enter(in, part, a); }, tools_.stream);
    mix(a);
}

void Branch::join(floatX* out, const floatX* in, const LayerActivations& a, const Next* next) const {
    CutPoints& cut = tools_.cut_points;
    const RankSizes& sizes = tools_.sizes;
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
    residual_forward<floatX>(out, in, sum, std::int64_t{sizes.residual_rows()} * sizes.C, tools_.stream);
}

const floatX* Branch::cached(const CachedStep& step) const {
    floatX* const added = tools_.workspace.rows_c.data();
    cached_inside(step);
    out_.forward_few(added, out_input(step.a), step.rows, tools_.stream);
    return added;
}

// ---------------------------------------------------------------------------------------------------------------------
// Backward

void Branch::recompute(const floatX* in, const LayerActivations& a, Recompute level) const {
    recompute_inside(a, level);
    if (level >= Recompute::gelu_norm) norm().forward({at(a, kNormed)}, in);   // statistics are kept
}

void Branch::backward(const SublayerBackward& args) const {
    CutPoints& cut = tools_.cut_points;
    const cudaStream_t stream = tools_.stream;
    const int rows = tools_.sizes.rows();
    const LayerActivations& a = args.a;
    const bool delayed = args.delayed();
    // Of (count, channels): what a gradient of weights reads. A delayed one reads a copy, because this changes before.
    auto keep = [&](floatX* copy, const floatX* gradient, int count, int channels) -> const floatX* {
        if (!delayed) return gradient;
        const std::size_t bytes = sizeof(floatX) * static_cast<std::size_t>(std::int64_t{count} * channels);
        CUDA_CHECK(cudaMemcpyAsync(copy, gradient, bytes, cudaMemcpyDeviceToDevice, stream));
        return copy;
    };

    const floatX* const dout = cut.leave_rows_backward(args.dresidual, args.queue, stream);
    const floatX* const own_dout = keep(args.kept_dout, args.dresidual, tools_.sizes.residual_rows(), tools_.sizes.C);
    args.queue.add([=, this, &gradients = args.gradients, &queue = args.queue, inner = out_input(a)] {
        // What has left rows a delayed gradient gathers again: there is no room for all rows in the place of a
        // residual stream.
        const floatX* const all = delayed ? tools_.cut_points.leave_rows_backward(own_dout, queue, stream) : dout;
        out_.backward_weight(gradients, all, inner, rows, stream);
    });
    inside_backward(dout, args);
    floatX* const entered = at(a, kNormed);
    if (!delayed) cut.will_enter_columns(entered, stream);   // so that it travels behind the matmul before its use
    const floatX* const kept_din = keep(at(a, kIn), din_, rows, in_.out_channels());
    args.queue.add([=, this, &gradients = args.gradients] {
        in_.backward_weight(gradients, kept_din, tools_.cut_points.enter_columns(entered, stream), rows, stream);
    });
    floatX* const dnormed = tools_.workspace.rows_c.data();
    in_.backward_input(dnormed, din_, rows, stream);
    norm().backward({.din = args.dresidual,
                     .dout = cut.enter_columns_backward(dnormed, args.queue, stream),
                     .in = args.in,
                     .kept = normed(a),
                     .add_to_din = true,
                     .aside = args.norm_aside},
                    args.gradients, args.queue);
}
