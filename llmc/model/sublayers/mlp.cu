#include "llmc/model/sublayers/mlp.h"

#include "llmc/kernels/gelu.cuh"

// ---------------------------------------------------------------------------------------------------------------------
// What it has

std::vector<ParamRow> Mlp::parameters(const ModelConfig& config) {
    const std::int64_t C = config.channels, F = config.mlp_width();
    std::vector<ParamRow> rows = Norm::parameters("ln_2", config);
    rows.push_back({.name = "mlp.c_fc.weight",
                    .tensor = {.rows = F, .cols = C, .cut = TensorCut::rows},
                    .init = Init::normal,
                    .decays = true,
                    .hf_transposed = true});
    rows.push_back({.name = "mlp.c_fc.bias", .tensor = {.rows = F, .cut = TensorCut::rows}});
    rows.push_back({.name = "mlp.c_proj.weight",
                    .tensor = {.rows = C, .cols = F, .cut = TensorCut::columns},
                    .init = Init::normal,
                    .writes_residual = true,
                    .decays = true,
                    .hf_transposed = true});
    rows.push_back({.name = "mlp.c_proj.bias", .tensor = {.rows = C}});
    return rows;
}

std::vector<KeptTensor> Mlp::kept(const RankSizes& sizes) {
    const std::int64_t elements = std::int64_t{sizes.rows()} * sizes.F;
    // (R, F) before GELU; in delayed backward its gradient
    std::vector<KeptTensor> all =
        Branch::kept("ln2", "ln2_mean", "ln2_rstd", {.name = "fch", .elements = elements, .lent = true}, sizes);
    all.push_back({.name = "fch_gelu", .elements = elements, .dropped_from = Recompute::gelu, .lent = true});
    return all;
}

std::vector<ScratchTensor> Mlp::scratch(const RankSizes& sizes) {
    return {{.name = "rows_4c", .elements = std::int64_t{sizes.rows()} * sizes.F}};   // dfch
}

Mlp::Mlp(const SublayerPlace& place)
    : Branch(place, "ln_2", "mlp.c_fc", "mlp.c_proj", place.tools.workspace.scratch<floatX>("rows_4c")) {}

// ---------------------------------------------------------------------------------------------------------------------
// What it does

void Mlp::enter(const floatX* normed, Rows rows, const LayerActivations& a) const {
    const int F = in().out_channels();
    const floatX* const ln2 = at_row(normed, rows, in().in_channels());
    floatX *const fch = at_row(at(a, kPreGelu), rows, F), *const gelu = at_row(at(a, kGelu), rows, F);
    if (tools().gelu_fusion >= 1) return in().forward_gelu(gelu, fch, ln2, rows.count, tools().stream);
    in().forward(fch, ln2, rows.count, tools().stream);
    gelu_forward<floatX>(gelu, fch, std::int64_t{rows.count} * F, tools().stream);
}

void Mlp::recompute_inside(const LayerActivations& a, Recompute level) const {
    if (level < Recompute::gelu) return;
    gelu_forward<floatX>(at(a, kGelu), at(a, kPreGelu), std::int64_t{tools().sizes.rows()} * in().out_channels(),
                         tools().stream);
}

void Mlp::inside_backward(const floatX* dout, const SublayerBackward& args) const {
    const int rows = tools().sizes.rows();
    const floatX* const fch = at(args.a, kPreGelu);
    if (tools().gelu_fusion >= 2) return out().backward_input_gelu(din(), dout, fch, rows, tools().stream);
    out().backward_input(din(), dout, rows, tools().stream);
    gelu_backward<floatX>(din(), din(), fch, std::int64_t{rows} * in().out_channels(), tools().stream);
}

void Mlp::cached_inside(const CachedStep& step) const {
    floatX* const hidden = at(step.a, kGelu);
    in().forward_few(hidden, normed(step.a).out, step.rows, tools().stream);
    gelu_forward<floatX>(hidden, hidden, std::int64_t{step.rows} * in().out_channels(), tools().stream);
}
