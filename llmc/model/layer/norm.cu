#include "llmc/model/layer/norm.h"

#include "llmc/kernels/rows/residual.cuh"

Norm::Norm(const StageTools& tools, const ModelState<floatX>& parameters, const std::string& name, int layer)
    : tools_(tools),
      weight_index_(parameters.index(name + ".weight", layer)),
      bias_index_(parameters.storage().table().find(name + ".bias", layer)),
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
                                               .C = tools_.sizes.C,
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
                                                                .C = tools_.sizes.C,
                                                                .epsilon = epsilon(),
                                                                .rounds_before_weight = rounds_before_weight()},
                               tools_.stream);
}

void Norm::backward(const Backward& args, Gradients& gradients, WeightGradientQueue& queue) const {
    const int C = tools_.sizes.C;
    const GradientTarget dweight = vector_target(gradients, weight_index_, args.aside);
    void* const bias_aside = args.aside ? (TypedPointer{args.aside, gradients.type()} + norm_stride(C)).data : nullptr;
    const GradientTarget dbias =
        bias_ ? vector_target(gradients, bias_index_, bias_aside) : GradientTarget{{nullptr, gradients.type()}};
    with_gradient_type<floatX>(gradients.type(), [&]<class G> {
        layernorm_backward(LayerNormBackward<floatX, G>{.din = args.din,
                                                        .dweight = dweight.data.as<G>(),
                                                        .dbias = dbias.data.as<G>(),
                                                        .scratch = tools_.workspace.norm_sums.data(),
                                                        .dout = args.dout,
                                                        .in = args.in,
                                                        .weight = weight_,
                                                        .mean = args.kept.mean,
                                                        .rstd = args.kept.rstd,
                                                        .rows = tools_.sizes.residual_rows(),
                                                        .C = C,
                                                        .accumulate_input = args.add_to_din,
                                                        .accumulate_parameters = dweight.accumulate},
                           tools_.stream);
    });
    if (args.aside == nullptr) return;
    queue.then([this, &gradients, dweight = dweight.data, dbias = dbias.data, C] {
        take_place(gradients, weight_index_, dweight, C, tools_.stream);
        if (bias_) take_place(gradients, bias_index_, dbias, C, tools_.stream);
    });
}

GradientTarget vector_target(Gradients& gradients, int index, void* aside) {
    return aside ? GradientTarget{{aside, gradients.type()}} : gradients.next(index);
}

void take_place(Gradients& gradients, int index, TypedPointer from, int count, cudaStream_t stream) {
    const auto [to, accumulate] = gradients.next(index);
    ENSURE(!accumulate, "a norm's gradient that is not the first of its micro-batch");
    const std::size_t bytes = size_of(to.type) * static_cast<std::size_t>(count);
    CUDA_CHECK(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice, stream));
}
