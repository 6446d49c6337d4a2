#include "llmc/model/norm.h"

#include "llmc/kernels/rows/residual.cuh"

Norm::Norm(const StageTools& tools, const ModelState<floatX>& parameters, const std::string& name, int layer)
    : tools_(tools),
      weight_index_(parameters.index(name + ".weight", layer)),
      bias_index_(parameters.storage().table().find(name + ".bias", layer)),
      width_(static_cast<int>(parameters.storage().table()[weight_index_].tensor.rows)),
      weight_(parameters.tensor(weight_index_)),
      bias_(bias_index_ < 0 ? nullptr : parameters.tensor(bias_index_)) {}

// Norms see this rank's rows of the residual region, so under sequence parallelism their gradients are partial sums.
std::vector<ParamRow> Norm::parameters(const std::string& name, const ModelConfig& config) {
    const TensorSpec vector{.rows = config.channels, .partial = {Axis::tp}};
    std::vector<ParamRow> rows{{.name = name + ".weight", .tensor = vector, .init = Init::ones}};
    if (config.norm == NormKind::layer) rows.push_back({.name = name + ".bias", .tensor = vector});
    return rows;
}

void Norm::forward(const NormOutput& to, const floatX* in, int rows) const {
    layernorm_forward(LayerNormForward<floatX>{.out = to.out,
                                               .mean = to.mean,
                                               .rstd = to.rstd,
                                               .in = in,
                                               .weight = weight_,
                                               .bias = bias_,
                                               .rows = rows < 0 ? tools_.sizes.residual_rows() : rows,
                                               .C = width_,
                                               .epsilon = epsilon(),
                                               .rounds_before_weight = rounds_before_weight()},
                      tools_.stream);
}

void Norm::add_forward(floatX* residual, const NormOutput& to, const floatX* in, const floatX* added, int rows) const {
    residual_layernorm_forward(ResidualLayerNormForward<floatX>{.residual = residual,
                                                                .out = to.out,
                                                                .mean = to.mean,
                                                                .rstd = to.rstd,
                                                                .a = in,
                                                                .b = added,
                                                                .weight = weight_,
                                                                .bias = bias_,
                                                                .rows = rows < 0 ? tools_.sizes.residual_rows() : rows,
                                                                .C = width_,
                                                                .epsilon = epsilon(),
                                                                .rounds_before_weight = rounds_before_weight()},
                               tools_.stream);
}

void Norm::backward(const Backward& args, AnyGradients& any_gradients, WeightGradientQueue& queue) const {
    std::visit(
        [&]<class G>(Gradients<G>& gradients) {
            using Target = typename Gradients<G>::Target;
            const int C = width_;
            G* const aside = static_cast<G*>(args.aside);
            const Target dweight = vector_target(gradients, weight_index_, aside);
            const Target dbias = bias_ == nullptr
                                     ? Target{}
                                     : vector_target(gradients, bias_index_, aside ? aside + norm_stride(C) : nullptr);
            layernorm_backward(
                LayerNormBackward<floatX, G>{.din = args.din,
                                             .dweight = dweight.data,
                                             .dbias = dbias.data,
                                             .scratch = tools_.workspace.norm_sums.data(),
                                             .dout = args.dout,
                                             .in = args.in,
                                             .weight = weight_,
                                             .mean = args.kept.mean,
                                             .rstd = args.kept.rstd,
                                             .rows = args.rows < 0 ? tools_.sizes.residual_rows() : args.rows,
                                             .C = C,
                                             .accumulate_input = args.add_to_din,
                                             .accumulate_parameters = dweight.accumulate},
                tools_.stream);
            if (aside == nullptr) return;
            queue.add([this, &gradients, dweight, dbias, C] {
                take_place(gradients, weight_index_, dweight.data, C, tools_.stream);
                if (bias_) take_place(gradients, bias_index_, dbias.data, C, tools_.stream);
            });
        },
        any_gradients);
}
