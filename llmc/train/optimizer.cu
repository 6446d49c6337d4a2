#include "llmc/train/optimizer.h"

#include <type_traits>

#include "llmc/kernels/adamw.cuh"
#include "llmc/kernels/classifier.cuh"
#include "llmc/kernels/init.cuh"

namespace {

constexpr bool kRoundedParameters = std::is_same_v<floatX, bf16>;   // so masters make sense

// G: type of the gradients.
template <class G>
class AdamOptimizer : public Optimizer {
public:
    AdamOptimizer(Gpt& model, const OptimizerOptions& options, Arena& arena)
        : model_(model),
          options_(options),
          gradients_(arena, "gradients", model.layout(), StateKind::gradients),
          m_(arena, "optimizer m", model.layout(), StateKind::optimizer),
          v_(arena, "optimizer v", model.layout(), StateKind::optimizer),
          loss_(arena.allocate<float>("step/loss", 1)),
          sum_of_squares_(arena.allocate<double>("step/sum_of_squares", 1)),
          norm_(arena.allocate<GradNorm>("step/norm", 1)) {
        if (options.master_weights && kRoundedParameters) {
            masters_ = ModelState<float>(arena, "master weights", model.layout(), StateKind::optimizer);
            has_masters_ = true;
        }
        make_tables(arena);
        gradients_.zero(stream());   // padding too: it is never written
        m_.zero(stream());
        v_.zero(stream());
        if (has_masters_) copy_masters();
    }

    void forward_backward(const Batch& batch, float token_share, bool first) override {
        model_.forward_backward(gradients_, batch, token_share, !first);
        const int tokens = model_.options().B * model_.options().T;
        sum_losses(loss_.data(), model_.activations().losses, tokens, token_share, !first, stream());
    }

    void finish_gradients() override {
        sum_of_squares(sum_of_squares_.data(), norm_table_, false, stream());
        finish_global_norm(norm_.data(), sum_of_squares_.data(), options_.grad_clip, stream());
    }

    void update(int step, float learning_rate) override {
        AdamStep adam{};
        adam.learning_rate = learning_rate;
        adam.beta1 = options_.beta1;
        adam.beta2 = options_.beta2;
        adam.epsilon = options_.eps;
        adam.step = step;
        adam.seed = options_.seed;
        adam.norm = norm_.data();
        adamw_update(adam_table_, adam, stream());
    }

    StepResult result() const override { return {loss_.download(stream())[0], norm_.download(stream())[0].norm}; }

    ModelState<float>& first_moments() override { return m_; }
    ModelState<float>& second_moments() override { return v_; }
    ModelState<float>* masters() override { return has_masters_ ? &masters_ : nullptr; }

    std::vector<float> download_gradient(int param) const override {
        return download_tensor(gradients_, param, stream());
    }

private:
    cudaStream_t stream() const { return model_.stream(); }

    void make_tables(Arena& arena) {
        std::vector<AdamRange<floatX, G>> adam;
        std::vector<NormRange<G>> norm;
        for (const TensorPlace& place : model_.layout().tensors()) {
            const ParamInfo& info = model_.table()[place.param];
            AdamRange<floatX, G> range{};
            range.parameter = model_.parameters().tensor(place.param);
            range.master = has_masters_ ? masters_.tensor(place.param) : nullptr;
            range.gradient = gradients_.tensor(place.param);
            range.m = m_.tensor(place.param);
            range.v = v_.tensor(place.param);
            range.count = place.elements;
            range.weight_decay = info.decays ? options_.weight_decay : 0.0f;
            range.tensor_key = info.rng_tensor;
            adam.push_back(range);
            norm.push_back({range.gradient, range.count});
        }
        adam_table_ = make_adam_table(arena, "optimizer tables/adam", std::move(adam), stream());
        norm_table_ = make_norm_table(arena, "optimizer tables/norm", std::move(norm), stream());
    }

    void copy_masters() {
        if constexpr (kRoundedParameters) {
            const int units = static_cast<int>(model_.layout().units().size());
            for (int slot = 0; slot < units; slot++) {
                const DeviceBuffer<float>& master = masters_.unit(slot);
                const floatX* parameters = model_.parameters().unit(slot).data();
                cast(master.data(), parameters, static_cast<std::int64_t>(master.size()), stream());
            }
        }
    }

    Gpt& model_;
    OptimizerOptions options_;
    ModelState<G> gradients_;
    ModelState<float> m_, v_, masters_;
    bool has_masters_ = false;
    DeviceBuffer<float> loss_;
    DeviceBuffer<double> sum_of_squares_;
    DeviceBuffer<GradNorm> norm_;
    AdamTable<floatX, G> adam_table_;
    NormTable<G> norm_table_;
};

}   // namespace

std::unique_ptr<Optimizer> Optimizer::make(Gpt& model, const OptimizerOptions& options, Arena& arena) {
    if constexpr (kRoundedParameters) {
        if (options.grad_dtype == DType::bf16) return std::make_unique<AdamOptimizer<bf16>>(model, options, arena);
    }
    if (options.grad_dtype != DType::fp32) {
        throw Error(ErrorKind::usage, "--grad-dtype bf16: expected fp32 in a build with PRECISION=fp32");
    }
    return std::make_unique<AdamOptimizer<float>>(model, options, arena);
}
