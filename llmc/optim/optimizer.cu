#include "llmc/optim/optimizer.h"

#include <type_traits>

#include "llmc/kernels/adamw.cuh"
#include "llmc/kernels/init.cuh"

namespace {

constexpr bool kRoundedParameters = std::is_same_v<floatX, bf16>;   // so masters make sense

// G: type of the gradients.
template <class G>
class AdamOptimizer : public Optimizer {
public:
    AdamOptimizer(Stage& stage, const Gradients<G>& gradients, const OptimizerOptions& options, Arena& arena)
        : stage_(stage),
          options_(options),
          m_(arena, "optimizer m", stage.storage(), StateKind::optimizer),
          v_(arena, "optimizer v", stage.storage(), StateKind::optimizer) {
        if (options.master_weights && kRoundedParameters) {
            masters_ = ModelState<float>(arena, "master weights", stage.storage(), StateKind::optimizer);
            has_masters_ = true;
        }
        make_tables(gradients, arena);
        m_.zero(stream());
        v_.zero(stream());
        if (has_masters_ && masters_.unit(0).data() != nullptr) copy_masters();   // else memory is only counted
    }

    void sum_squares(double* sum) override { sum_of_squares(sum, norm_table_, false, stream()); }

    void update(int step, float learning_rate, const GradNorm* norm) override {
        AdamStep adam{};
        adam.learning_rate = learning_rate;
        adam.beta1 = options_.beta1;
        adam.beta2 = options_.beta2;
        adam.epsilon = options_.eps;
        adam.step = step;
        adam.seed = options_.seed;
        adam.norm = norm;
        adamw_update(adam_table_, adam, stream());
    }

    ModelState<float>& first_moments() override { return m_; }
    ModelState<float>& second_moments() override { return v_; }
    ModelState<float>* masters() override { return has_masters_ ? &masters_ : nullptr; }

private:
    cudaStream_t stream() const { return stage_.stream(); }

    // What this rank updates, and of what it adds the squares.
    void make_tables(const Gradients<G>& gradients, Arena& arena) {
        std::vector<AdamRange<floatX, G>> adam;
        std::vector<NormRange<G>> norm;
        for (const TensorPlace& place : stage_.storage().tensors()) {
            const ParamInfo& info = stage_.table()[place.param];
            for (const OwnedRange& owned : owned_ranges(info.tensor, stage_.storage().place(), StateKind::optimizer)) {
                AdamRange<floatX, G> range{};
                range.parameter = stage_.parameters().owned(place.param) + owned.local_begin;
                range.master = has_masters_ ? masters_.tensor(place.param) + owned.local_begin : nullptr;
                range.gradient = gradients.kept().owned(place.param) + owned.local_begin;
                range.m = m_.tensor(place.param) + owned.local_begin;
                range.v = v_.tensor(place.param) + owned.local_begin;
                range.count = owned.length;
                range.weight_decay = info.decays ? options_.weight_decay : 0.0f;
                range.tensor_key = info.random_tensor();
                range.span = owned.global;
                adam.push_back(range);
            }
            for (const OwnedRange& sole : sole_ranges(info.tensor, stage_.storage().place())) {
                norm.push_back({gradients.kept().shard(place.param) + sole.local_begin, sole.length});
            }
        }
        adam_table_ = make_adam_table(arena, "optimizer tables/adam", std::move(adam), stream());
        norm_table_ = make_norm_table(arena, "optimizer tables/norm", std::move(norm), stream());
    }

    void copy_masters() {
        if constexpr (kRoundedParameters) {
            for (const TensorPlace& place : stage_.storage().tensors()) {
                cast(masters_.tensor(place.param), stage_.parameters().owned(place.param),
                     stage_.storage().padded_elements(place, StateKind::optimizer), stream());
            }
        }
    }

    Stage& stage_;
    OptimizerOptions options_;
    ModelState<float> m_, v_, masters_;
    bool has_masters_ = false;
    AdamTable<floatX, G> adam_table_;
    NormTable<G> norm_table_;
};

}   // namespace

std::unique_ptr<Optimizer> Optimizer::make(Stage& stage, const OptimizerOptions& options, Arena& arena) {
    auto with = [&]<class G>(const Gradients<G>& gradients) -> std::unique_ptr<Optimizer> {
        return std::make_unique<AdamOptimizer<G>>(stage, gradients, options, arena);
    };
    return std::visit(with, stage.gradients());
}
