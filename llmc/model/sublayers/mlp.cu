#include "llmc/model/sublayers/mlp.h"

#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/relu2.cuh"
#include "llmc/kernels/swiglu.cuh"

Mlp::Mlp(const StageTools& tools, const ModelState<floatX>& parameters, int layer)
    : tools_(tools),
      branch_(tools, parameters, layer, "ln_2", "mlp.c_fc", "mlp.c_proj"),
      scratch_(tools.workspace.layer.mlp) {}

std::vector<ParamRow> Mlp::parameters(const ModelConfig& config) {
    const std::int64_t C = config.channels, F = config.mlp_width(), fc = config.fc_width();
    std::vector<std::int64_t> gate_and_up;
    if (config.gated()) gate_and_up = {F, F};
    std::vector<ParamRow> rows = Norm::parameters("ln_2", config);
    Branch::add_linear(rows, config, "mlp.c_fc", {.rows = fc, .cols = C, .cut = TensorCut::rows, .blocks = gate_and_up},
                       {.rows = fc, .cut = TensorCut::rows, .blocks = gate_and_up}, false);
    Branch::add_linear(rows, config, "mlp.c_proj", {.rows = C, .cols = F, .cut = TensorCut::columns}, {.rows = C},
                       true);
    return rows;
}

void Mlp::forward(const SublayerForward& args, const MlpActivations& a) const {
    const Linear &c_fc = branch_.in(), &c_proj = branch_.out();
    TpRegion& tp = tools_.tp;
    const floatX* const all_rows = tp.begin_gather(branch_.entered_rows(args.in, a));
    for (int i = 0; i < tp.gathered_chunks(); i++) {
        const Rows rows = tp.wait_for_gathered(i);
        const floatX* const ln2 = at_row(all_rows, rows, c_fc.in_channels());
        floatX* const fch = at_row(a.fch, rows, c_fc.out_channels());
        floatX* const fch_act = at_row(a.fch_act, rows, c_proj.in_channels());
        if (fused(1)) {
            c_fc.forward_gelu(fch_act, fch, ln2, rows.count, tools_.stream);
        } else {
            c_fc.forward(fch, ln2, rows.count, tools_.stream);
            activate(fch_act, fch, rows.count);
        }
    }
    branch_.project_and_add(args, a, a.fch_act);
}

void Mlp::recompute(const floatX* in, const MlpActivations& a, Recompute level) const {
    if (level >= Recompute::gelu) activate(a.fch_act, a.fch, tools_.sizes.rows());
    branch_.recompute_norm(in, a, level);
}

void Mlp::backward(const SublayerBackward& args, const MlpActivations& a) const {
    const floatX* const dprojected = branch_.project_backward(args, a, a.fch_act);
    activate_backward(dprojected, a);
    branch_.enter_backward(args, a, scratch_.dfch, a.fch);
}

const floatX* Mlp::cached(const CachedStep& step, const MlpActivations& a) const {
    branch_.in().forward_few(a.fch, step.in, step.rows, tools_.stream);
    activate(a.fch_act, a.fch, step.rows);
    return branch_.cached_projection(step, a, a.fch_act);
}

void Mlp::activate(floatX* fch_act, const floatX* fch, int rows) const {
    const int F = tools_.sizes.F;
    switch (kind()) {
        case MlpKind::gelu: return gelu_forward<floatX>(fch_act, fch, std::int64_t{rows} * F, tools_.stream);
        case MlpKind::swiglu: return swiglu_forward<floatX>(fch_act, fch, rows, F, tools_.stream);
        case MlpKind::relu2: return relu2_forward<floatX>(fch_act, fch, std::int64_t{rows} * F, tools_.stream);
    }
}

// Computes the gradient of fch, into the scratch, from that of the projection's output.
void Mlp::activate_backward(const floatX* dprojected, const MlpActivations& a) const {
    const Linear& c_proj = branch_.out();
    const int R = tools_.sizes.rows(), F = tools_.sizes.F;
    const cudaStream_t stream = tools_.stream;
    floatX* const dfch = scratch_.dfch;
    if (fused(2)) return c_proj.backward_input_gelu(dfch, dprojected, a.fch, R, stream);
    floatX* const dfch_act = tools_.sizes.model.gated() ? scratch_.dfch_act : dfch;   // (R, F)
    c_proj.backward_input(dfch_act, dprojected, R, stream);
    switch (kind()) {
        case MlpKind::gelu: return gelu_backward<floatX>(dfch, dfch_act, a.fch, std::int64_t{R} * F, stream);
        case MlpKind::swiglu: return swiglu_backward<floatX>(dfch, dfch_act, a.fch, R, F, stream);
        case MlpKind::relu2: return relu2_backward<floatX>(dfch, dfch_act, a.fch, std::int64_t{R} * F, stream);
    }
}
