#include "llmc/model/layer/row_norm.h"

#include "llmc/kernels/rows/shared_rms.cuh"

RowNorm::RowNorm(const StageTools& tools, const ModelState<floatX>& parameters, const std::string& name, int layer,
                 int first_head, int heads)
    : tools_(tools),
      weight_index_(parameters.index(name + ".weight", layer)),
      first_head_(first_head),
      heads_(heads),
      weight_(parameters.tensor(weight_index_)) {}

ParamRow RowNorm::parameter(const std::string& name, const ModelConfig& config, std::int64_t heads) {
    const std::int64_t channels = heads * config.head_size();
    TensorSpec weight{.rows = channels, .cut = TensorCut::rows, .blocks = {channels}};
    if (config.kv_heads() < config.heads) weight.heads = {heads};
    return {.name = name + ".weight", .tensor = std::move(weight), .init = Init::ones};
}

SharedRows<floatX> RowNorm::shared(floatX* qkv, int rows) const {
    const RankSizes& sizes = tools_.sizes;
    const int tp = static_cast<int>(sizes.model.heads) / sizes.NH;
    return {qkv + first_head_ * sizes.HS, sizes.qkv_width(), rows, width(), tp};
}

void RowNorm::begin(float* sums, floatX* qkv, int rows, const Kept& kept) const {
    shared_rms_begin(sums, kept.raw, shared(qkv, rows), tools_.stream);
}

void RowNorm::finish(floatX* qkv, const float* sums, int rows, const Kept& kept) const {
    shared_rms_finish<floatX>(shared(qkv, rows), kept.rstd, kept.raw, weight_, sums,
                              static_cast<float>(tools_.sizes.model.norm_eps), tools_.stream);
}

void RowNorm::backward_begin(float* sums, floatX* dqkv, int rows, const Kept& kept, void* aside, Gradients& gradients,
                             WeightGradientQueue& queue) const {
    const GradientTarget dweight = vector_target(gradients, weight_index_, aside);
    with_gradient_type<floatX>(gradients.type(), [&]<class G> {
        shared_rms_backward_begin<floatX>(sums, dweight.data.as<G>(), tools_.workspace.norm_sums.data(),
                                          shared(dqkv, rows), kept.raw, weight_, kept.rstd, dweight.accumulate,
                                          tools_.stream);
    });
    if (aside == nullptr) return;
    queue.then([this, &gradients, from = dweight.data] {
        take_place(gradients, weight_index_, from, width(), tools_.stream);
    });
}

void RowNorm::backward_finish(floatX* dqkv, const float* sums, int rows, const Kept& kept) const {
    shared_rms_backward_finish<floatX>(shared(dqkv, rows), kept.raw, weight_, kept.rstd, sums, tools_.stream);
}
