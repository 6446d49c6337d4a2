#include "llmc/model/layer/mlp.h"

#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/relu2.cuh"
#include "llmc/kernels/swiglu.cuh"

Mlp::Mlp(const StageTools& tools, const ModelState<floatX>& parameters, int layer)
    : tools_(tools),
      c_fc_(tools, parameters, "mlp.c_fc", layer),
      c_proj_(tools, parameters, "mlp.c_proj", layer),
      scratch_(tools.workspace.layer.mlp) {}

std::vector<ParamRow> Mlp::parameters(const ModelConfig& config) {
    const std::int64_t C = config.channels, F = config.mlp_width(), fc = config.fc_width();
    std::vector<std::int64_t> gate_and_up;
    if (config.gated()) gate_and_up = {F, F};
    const bool has_bias = config.bias == Bias::all;
    std::vector<ParamRow> rows;
    Linear::add_parameters(rows, has_bias, "mlp.c_fc",
                           {.rows = fc, .cols = C, .cut = TensorCut::column_parallel, .blocks = gate_and_up},
                           {.rows = fc, .cut = TensorCut::column_parallel, .blocks = gate_and_up}, false);
    Linear::add_parameters(rows, has_bias, "mlp.c_proj", {.rows = C, .cols = F, .cut = TensorCut::row_parallel},
                           {.rows = C}, true);
    return rows;
}

void Mlp::forward(floatX* out, const floatX* in, const Join& join, const ForwardPass&, const MlpActivations& a) const {
    TpRegion& tp = tools_.tp;
    const floatX* const all = tp.begin_gather(in);
    for (int i = 0; i < tp.gathered_chunks(); i++) {
        const Rows rows = tp.wait_for_gathered(i);
        const floatX* const ln2 = at_row(all, rows, c_fc_.in_channels());
        floatX* const fch = at_row(a.fch, rows, c_fc_.out_channels());
        floatX* const fch_act = at_row(a.fch_act, rows, c_proj_.in_channels());
        if (fused(1)) {
            c_fc_.forward_gelu(fch_act, fch, ln2, rows.count);
        } else {
            c_fc_.forward(fch, ln2, rows.count);
            activate(fch_act, fch, rows.count);
        }
    }
    c_proj_.forward_join(out, a.fch_act, join);
}

void Mlp::recompute(const MlpActivations& a, Recompute level) const {
    if (level >= Recompute::gelu) activate(a.fch_act, a.fch, tools_.sizes.rows());
}

const floatX* Mlp::backward(const SublayerBackward& args, const MlpActivations& a) const {
    const floatX* const dout = c_proj_.begin_backward(args, a.fch_act);
    activate_backward(dout, a);
    return c_fc_.end_backward(args, scratch_.dfch, a.fch);
}

const floatX* Mlp::cached(const CachedStep& step, const MlpActivations& a) const {
    c_fc_.forward_few(a.fch, step.in, step.rows);
    activate(a.fch_act, a.fch, step.rows);
    c_proj_.forward_few(tools_.workspace.branch_out, a.fch_act, step.rows);
    return tools_.workspace.branch_out;
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
void Mlp::activate_backward(const floatX* dout, const MlpActivations& a) const {
    const int R = tools_.sizes.rows(), F = tools_.sizes.F;
    const cudaStream_t stream = tools_.stream;
    floatX* const dfch = scratch_.dfch;
    if (fused(2)) return c_proj_.backward_input_gelu(dfch, dout, a.fch, R);
    floatX* const dfch_act = tools_.sizes.model.gated() ? scratch_.dfch_act : dfch;   // (R, F)
    c_proj_.backward_input(dfch_act, dout, R);
    switch (kind()) {
        case MlpKind::gelu: return gelu_backward<floatX>(dfch, dfch_act, a.fch, std::int64_t{R} * F, stream);
        case MlpKind::swiglu: return swiglu_backward<floatX>(dfch, dfch_act, a.fch, R, F, stream);
        case MlpKind::relu2: return relu2_backward<floatX>(dfch, dfch_act, a.fch, std::int64_t{R} * F, stream);
    }
}
