#include "llmc/train/optimizer.h"

#include <cstddef>
#include <type_traits>
#include <utility>

#include "llmc/base/log.h"
#include "llmc/kernels/adamw.cuh"
#include "llmc/kernels/classifier.cuh"
#include "llmc/kernels/init.cuh"
#include "llmc/parallel/gather.h"
#include "llmc/parallel/zero.h"

namespace {

constexpr bool kRoundedParameters = std::is_same_v<floatX, bf16>;   // so masters make sense

// What a step leaves on the device and the host reads at once. The sums come first: over ranks in one all-reduce.
struct StepNumbers {
    double loss;
    StopVotes stop;
    double sum_of_squares;   // of the gradients of which this rank is the one owner, then of all
    GradNorm norm;
};
constexpr std::size_t kStepSums = 4;
static_assert(offsetof(StepNumbers, sum_of_squares) == (kStepSums - 1) * sizeof(double));

// G: type of the gradients.
template <class G>
class AdamOptimizer : public Optimizer {
public:
    AdamOptimizer(Gpt& model, const OptimizerOptions& options, Arena& arena, const TrainingGroups& groups)
        : model_(model),
          options_(options),
          groups_(groups),
          arena_(arena),
          gradients_(arena, model.storage(), model.stream()),
          m_(arena, "optimizer m", model.storage(), StateKind::optimizer),
          v_(arena, "optimizer v", model.storage(), StateKind::optimizer),
          numbers_(arena.allocate<StepNumbers>("step/numbers", 1)) {
        if (options.master_weights && kRoundedParameters) {
            masters_ = ModelState<float>(arena, "master weights", model.storage(), StateKind::optimizer);
            has_masters_ = true;
        }
        make_tables(arena);
        m_.zero(stream());
        v_.zero(stream());
        if (has_masters_) copy_masters();
        if (groups.zero != nullptr) {
            const ZeroStates<floatX, G> states{model.parameters(), model.unsharded_parameters(), gradients_.kept(),
                                               gradients_.unsharded()};
            zero_ = std::make_unique<ZeroRank<floatX, G>>(model.storage(), states, *groups.zero, arena, stream());
            model.set_hooks(zero_.get());
        }
    }
    ~AdamOptimizer() override {
        if (zero_) model_.set_hooks(nullptr);
    }

    void begin_step(int micro_batches) override {
        first_ = true;
        gradients_.begin_step();
        if (zero_) zero_->begin_step(micro_batches);
    }

    void forward_backward(const Batch& batch, float token_share) override {
        const bool first = std::exchange(first_, false);
        model_.forward_backward(gradients_, batch, token_share);
        const int tokens = model_.options().B * model_.options().T;
        sum_losses(&numbers_.data()->loss, model_.losses(), tokens, token_share, !first, stream());
    }

    void finish_gradients(const StopVotes& vote) override {
        StepNumbers* const numbers = numbers_.data();
        CUDA_CHECK(cudaMemcpyAsync(&numbers->stop, &vote, sizeof vote, cudaMemcpyHostToDevice, stream()));
        if (zero_) zero_->finish_gradients();
        sum_of_squares(&numbers->sum_of_squares, norm_table_, false, stream());
        if (groups_.all) groups_.all->all_reduce(&numbers->loss, kStepSums, ReduceOp::sum, stream());
        finish_global_norm(&numbers->norm, &numbers->sum_of_squares, &numbers->loss, options_.grad_clip, stream());
    }

    void update(int step, float learning_rate) override {
        AdamStep adam{};
        adam.learning_rate = learning_rate;
        adam.beta1 = options_.beta1;
        adam.beta2 = options_.beta2;
        adam.epsilon = options_.eps;
        adam.step = step;
        adam.seed = options_.seed;
        adam.norm = &numbers_.data()->norm;
        adamw_update(adam_table_, adam, stream());
        if (zero_) zero_->parameters_changed();
    }

    void wait_for_all_gather() override {
        if (zero_) zero_->wait_for_all_gather();
    }

    StepResult result() const override {
        const StepNumbers numbers = numbers_.download(stream())[0];
        return {static_cast<float>(numbers.loss), numbers.norm.norm, numbers.stop};
    }

    ModelState<float>& first_moments() override { return m_; }
    ModelState<float>& second_moments() override { return v_; }
    ModelState<float>* masters() override { return has_masters_ ? &masters_ : nullptr; }

    std::vector<float> download_gradient(int param) override {
        if (groups_.zero == nullptr) return download_tensor(gradients_.kept(), param, stream());
        const Staging staging = make_staging(model_.storage(), true, arena_);   // tests alone ask for gradients
        return *gather_tensor(gradients_.kept(), param, *groups_.zero, everywhere, true, staging, stream());
    }

private:
    cudaStream_t stream() const { return model_.stream(); }

    // What this rank updates, and of what it adds the squares.
    void make_tables(Arena& arena) {
        std::vector<AdamRange<floatX, G>> adam;
        std::vector<NormRange<G>> norm;
        for (const TensorPlace& place : model_.storage().tensors()) {
            const ParamInfo& info = model_.table()[place.param];
            for (const OwnedRange& owned : owned_ranges(info.tensor, model_.storage().place(), StateKind::optimizer)) {
                AdamRange<floatX, G> range{};
                range.parameter = model_.parameters().owned(place.param) + owned.local_begin;
                range.master = has_masters_ ? masters_.tensor(place.param) + owned.local_begin : nullptr;
                range.gradient = gradients_.kept().owned(place.param) + owned.local_begin;
                range.m = m_.tensor(place.param) + owned.local_begin;
                range.v = v_.tensor(place.param) + owned.local_begin;
                range.count = owned.length;
                range.weight_decay = info.decays ? options_.weight_decay : 0.0f;
                range.tensor_key = info.random_tensor();
                range.span = owned.global;
                adam.push_back(range);
            }
            for (const OwnedRange& sole : sole_ranges(info.tensor, model_.storage().place())) {
                norm.push_back({gradients_.kept().shard(place.param) + sole.local_begin, sole.length});
            }
        }
        adam_table_ = make_adam_table(arena, "optimizer tables/adam", std::move(adam), stream());
        norm_table_ = make_norm_table(arena, "optimizer tables/norm", std::move(norm), stream());
    }

    void copy_masters() {
        if constexpr (kRoundedParameters) {
            for (const TensorPlace& place : model_.storage().tensors()) {
                cast(masters_.tensor(place.param), model_.parameters().owned(place.param),
                     model_.storage().padded_elements(place, StateKind::optimizer), stream());
            }
        }
    }

    Gpt& model_;
    OptimizerOptions options_;
    TrainingGroups groups_;
    Arena& arena_;
    Gradients<G> gradients_;
    ModelState<float> m_, v_, masters_;
    bool has_masters_ = false;
    bool first_ = true;   // the next loss is the first of its step, and overwrites
    DeviceBuffer<StepNumbers> numbers_;
    AdamTable<floatX, G> adam_table_;
    NormTable<G> norm_table_;
    std::unique_ptr<ZeroRank<floatX, G>> zero_;   // null: one rank
};

}   // namespace

std::unique_ptr<Optimizer> Optimizer::make(Gpt& model, const OptimizerOptions& options, Arena& arena,
                                           const TrainingGroups& groups) {
    ENSURE(groups.all != nullptr || model.storage().place().mesh.size() == 1, "a mesh of ",
           model.storage().place().mesh.size(), " ranks without a communicator of all");
    ensure_own_tokens(model.storage().place().mesh);
    ENSURE(groups.zero != nullptr || model.storage().place().zero_stage == 0, "ZeRO stage ",
           model.storage().place().zero_stage, " without a group to share with");
    if constexpr (kRoundedParameters) {
        if (options.grad_dtype == DType::bf16)
            return std::make_unique<AdamOptimizer<bf16>>(model, options, arena, groups);
    }
    if (options.grad_dtype != DType::fp32) {
        throw Error(ErrorKind::usage, "--grad-dtype bf16: expected fp32 in a build with PRECISION=fp32");
    }
    return std::make_unique<AdamOptimizer<float>>(model, options, arena, groups);
}

std::string memory_by_formula(const Gpt& model, Optimizer& optimizer, const OptimizerOptions& options) {
    const double gradient_bytes = options.grad_dtype == DType::bf16 ? 2 : 4;
    const ZeroMemory memory =
        zero_memory(model.storage(), sizeof(floatX), gradient_bytes, optimizer.masters() != nullptr ? 12 : 8);
    auto mebibytes = [](double bytes) { return bytes / (1 << 20); };
    return formatted(
        "  by ZeRO's formula: parameters %.2f + %.2f unsharded, gradients %.2f + %.2f unsharded, optimizer %.2f MiB",
        mebibytes(memory.parameters), mebibytes(memory.unsharded_parameters), mebibytes(memory.gradients),
        mebibytes(memory.unsharded_gradients), mebibytes(memory.optimizer));
}
