// The whole training step, and where its time goes.
#include "dev/bench/operand.cuh"
#include "llmc/model/gpt.h"
#include "llmc/train/optimizer.h"

namespace {

struct StepSize {
    const char* model;
    int B, T;
};

std::vector<int> random_tokens(std::size_t count, int vocabulary, std::uint64_t key) {
    std::vector<int> tokens(count);
    for (std::size_t i = 0; i < count; i++)
        tokens[i] = static_cast<int>(philox(key, i).x % static_cast<unsigned>(vocabulary));
    return tokens;
}

// Forward, backward, norm and update of one micro-batch; flops as MFU counts them.
void measure(Bench& bench, const StepSize& size) {
    const ModelConfig config = model_config(size.model);
    const double tokens = double{1} * size.B * size.T;
    auto timing = bench.begin({"step",
                               text(size.model, " B=", size.B, " T=", size.T),
                               {.flops = tokens * flops_per_token(config, size.T), .tokens = tokens}});
    if (!timing) return;
    GptOptions options;
    options.B = size.B;
    options.T = size.T;
    Gpt model(config, options, timing->arena(), bench.stream());
    model.initialize(1);
    auto optimizer = Optimizer::make(model, OptimizerOptions{}, timing->arena());
    BatchBuffer batch(timing->arena(), size.B, size.T, config.vocab_size);
    const std::size_t count = static_cast<std::size_t>(size.B) * static_cast<std::size_t>(size.T);
    const int V = static_cast<int>(config.vocab_size);
    batch.upload(random_tokens(count, V, 1), random_tokens(count, V, 2), bench.stream());
    int step = 0;
    timing->measure_with_breakdown([&](int) {
        optimizer->begin_step(1);
        optimizer->forward_backward(batch.batch(), 1.0f / static_cast<float>(count));
        optimizer->finish_gradients();
        optimizer->update(++step, 1e-4f);
    });
    CUDA_CHECK(cudaStreamSynchronize(bench.stream()));   // before its memory is freed
}

void run(Bench& bench) {
    std::vector<StepSize> sizes;
    if (bench.on_gpu()) {
        sizes = {{"gpt2:124M", 32, 1024}, {"gpt2:1558M", 8, 1024}};
    } else {
        sizes = {{"gpt2:124M", 4, 64}};
        if (bench.long_run()) sizes.push_back({"gpt2:124M", 1, 1024});
    }
    for (const StepSize& size : sizes) measure(bench, size);
}
const Benchmark registered("step", run);

}   // namespace
