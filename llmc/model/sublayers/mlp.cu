#include "llmc/model/sublayers/mlp.h"

#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/swiglu.cuh"

// ---------------------------------------------------------------------------------------------------------------------
// Parameters and memory

std::vector<ParamRow> Mlp::parameters(const ModelConfig& config) {
    const std::int64_t C = config.channels, F = config.mlp_width(), fc = config.fc_width();
    std::vector<std::int64_t> gate_and_up;
    if (config.gated()) gate_and_up = {F, F};
    std::vector<ParamRow> rows = Norm::parameters("ln_2", config);
    add_linear(rows, config, "mlp.c_fc", {.rows = fc, .cols = C, .cut = TensorCut::rows, .blocks = gate_and_up},
               {.rows = fc, .cut = TensorCut::rows, .blocks = gate_and_up}, false);
    add_linear(rows, config, "mlp.c_proj", {.rows = C, .cols = F, .cut = TensorCut::columns}, {.rows = C}, true);
    return rows;
}

std::vector<KeptTensor> Mlp::kept(const RankSizes& sizes) {
    const std::int64_t R = sizes.rows();
    // (R, F) before GELU, or (R, 2F) gates and ups; in delayed backward its gradient
    std::vector<KeptTensor> all = Branch::kept({"ln2", "fcproj", "ln2_mean", "ln2_rstd"},
                                               {.name = "fch", .elements = R * sizes.fc_width(), .lent = true}, sizes);
    all.push_back({.name = "fch_gelu", .elements = R * sizes.F, .dropped_from = Recompute::gelu, .lent = true});
    return all;
}

std::vector<ScratchTensor> Mlp::scratch(const RankSizes& sizes) {
    const std::int64_t R = sizes.rows();
    std::vector<ScratchTensor> all{{.name = "rows_4c", .elements = R * sizes.fc_width()}};   // dfch
    if (sizes.model.gated()) all.push_back({.name = "dswiglu", .elements = R * sizes.F});
    return all;
}

Mlp::Mlp(const SublayerPlace& place)
    : Branch(place, "ln_2", "mlp.c_fc", "mlp.c_proj", place.tools.workspace.scratch<floatX>("rows_4c")),
      dswiglu_(place.tools.workspace.scratch<floatX>("dswiglu")) {}

// ---------------------------------------------------------------------------------------------------------------------
// Computation

void Mlp::enter(const floatX* entered, Rows rows, const LayerActivations& a) const {
    const floatX* const ln2 = at_row(entered, rows, in().in_channels());
    floatX *const fch = at_row(at(a, kPreGelu), rows, in().out_channels()), *const gelu = at_row(at(a, kGelu), rows,
                                                                                                 out().in_channels());
    if (fused(1)) return in().forward_gelu(gelu, fch, ln2, rows.count, tools().stream);
    in().forward(fch, ln2, rows.count, tools().stream);
    activate(gelu, fch, rows.count);
}

void Mlp::activate(floatX* out_input, const floatX* in_output, int rows) const {
    const int F = out().in_channels();
    switch (kind()) {
        case MlpKind::gelu: return gelu_forward<floatX>(out_input, in_output, std::int64_t{rows} * F, tools().stream);
        case MlpKind::swiglu: return swiglu_forward<floatX>(out_input, in_output, rows, F, tools().stream);
    }
}

void Mlp::recompute_inside(const LayerActivations& a, Recompute level) const {
    if (level >= Recompute::gelu) activate(at(a, kGelu), at(a, kPreGelu), tools().sizes.rows());
}

void Mlp::inside_backward(const floatX* dout, const SublayerBackward& args) const {
    const int rows = tools().sizes.rows(), F = out().in_channels();
    const floatX* const fch = at(args.a, kPreGelu);
    if (fused(2)) return out().backward_input_gelu(din(), dout, fch, rows, tools().stream);
    floatX* const dgelu = tools().sizes.model.gated() ? dswiglu_ : din();   // (R, F), of the activation's output
    out().backward_input(dgelu, dout, rows, tools().stream);
    switch (kind()) {
        case MlpKind::gelu: return gelu_backward<floatX>(din(), dgelu, fch, std::int64_t{rows} * F, tools().stream);
        case MlpKind::swiglu: return swiglu_backward<floatX>(din(), dgelu, fch, rows, F, tools().stream);
    }
}

void Mlp::cached_inside(const CachedStep& step) const {
    floatX* const hidden = at(step.a, kPreGelu);
    in().forward_few(hidden, step.in, step.rows, tools().stream);
    activate(at(step.a, kGelu), hidden, step.rows);
}
