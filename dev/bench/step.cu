// The whole training step, and where its time goes.
#include "dev/bench/training_step.h"

#include <cstdio>
#include <optional>

#include "dev/bench/operand.cuh"
#include "llmc/run/options/option_names.h"

namespace {

struct StepSize {
    const char* model;
    int B, T;
    AttentionKind attention = AttentionKind::auto_;   // auto_: as train_gpt takes without timing
};

std::vector<int> random_tokens(std::size_t count, int vocabulary, std::uint64_t key) {
    std::vector<int> tokens(count);
    for (std::size_t i = 0; i < count; i++)
        tokens[i] = static_cast<int>(philox(key, i).x % static_cast<unsigned>(vocabulary));
    return tokens;
}

}   // namespace

TrainingStep::TrainingStep(const std::string& model, const StageOptions& options, Arena& arena, cudaStream_t stream,
                           const OptimizerOptions& optimizer)
    : stage_(model_config(model), options, arena, stream),
      step_((initialize_parameters(stage_.parameters(), 1, stream), stage_), optimizer, arena) {
    const std::size_t count = static_cast<std::size_t>(options.B) * static_cast<std::size_t>(options.T);
    const int V = static_cast<int>(config().vocab_size);
    tokens_ = random_tokens(count, V, 1);
    targets_ = random_tokens(count, V, 2);
}

void TrainingStep::gradients(int micro_batches) {
    auto read = [&](int, const MicroBatch& to) {
        std::copy(tokens_.begin(), tokens_.end(), to.tokens.begin());
        std::copy(targets_.begin(), targets_.end(), to.targets.begin());
    };
    step_.gradients(one_stage_schedule(micro_batches), read,
                    1.0f / static_cast<float>(static_cast<std::size_t>(micro_batches) * tokens_.size()));
}

void TrainingStep::update() { step_.update(++number_, 1e-4f); }

namespace {

std::string name_of_attention(AttentionKind kind) {
    return kind == AttentionKind::auto_ ? "" : text(" attention=", name_of(kind));
}

// Forward, backward, norm and update of one micro-batch; flops as MFU counts them.
void measure(Bench& bench, const StepSize& size) {
    const ModelConfig config = model_config(size.model);
    const double token_count = double{1} * size.B * size.T;
    auto timing = bench.begin({"step",
                               text(size.model, " B=", size.B, " T=", size.T, name_of_attention(size.attention)),
                               {.flops = token_count * flops_per_token(config, size.T), .tokens = token_count}});
    if (!timing) return;
    StageOptions options;
    options.B = size.B;
    options.T = size.T;
    options.matmul.tries = 0;   // as train_gpt does
    options.matmul.own_kernels = OwnKernels::where_they_serve;
    options.attention = size.attention;
    std::optional<TrainingStep> step;
    try {
        step.emplace(size.model, options, timing->arena(), bench.stream());
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::no_device) throw;
        std::printf("SKIPPED step %s%s: %s\n", size.model, name_of_attention(size.attention).c_str(), error.what());
        return;
    }
    timing->measure_with_breakdown([&](int) {
        step->gradients();
        step->update();
    });
    CUDA_CHECK(cudaStreamSynchronize(bench.stream()));   // before its memory is freed
}

// The update alone. Its share of a step of N tokens: its time over that of a "step" of B x T tokens times N / (B T).
void measure_update(Bench& bench, OptimizerKind kind, const char* name) {
    auto timing = bench.begin({text("update, ", name), "gpt2:124M", {}});
    if (!timing) return;
    StageOptions options;
    options.B = 1;
    options.T = 64;
    OptimizerOptions optimizer;
    optimizer.optimizer = kind;
    TrainingStep step("gpt2:124M", options, timing->arena(), bench.stream(), optimizer);
    step.gradients();
    timing->measure([&](int) { step.update(); });
    CUDA_CHECK(cudaStreamSynchronize(bench.stream()));   // before its memory is freed
}

void run(Bench& bench) {
    std::vector<StepSize> sizes;
    if (bench.on_gpu()) {
        sizes = {{"gpt2:124M", 32, 1024}, {"gpt2:1558M", 8, 1024}};
        for (const AttentionKind kind : {AttentionKind::own, AttentionKind::own_sm90, AttentionKind::library}) {
            sizes.push_back({"llama:1B", 4, 2048, kind});
        }
    } else {
        sizes = {{"gpt2:124M", 4, 64}};
        if (bench.long_run()) sizes.push_back({"gpt2:124M", 1, 1024});
    }
    for (const StepSize& size : sizes) measure(bench, size);
    measure_update(bench, OptimizerKind::adamw, "adamw");
    measure_update(bench, OptimizerKind::muon, "muon");
}
const Benchmark registered("step", run);

}   // namespace
