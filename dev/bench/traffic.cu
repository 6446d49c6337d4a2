// What a step of GPT-2 124M with a micro-batch of 64 x 1024 tokens moves through memory, and how many operations it is,
// without running that size: bytes and calls are recorded at two small sizes (operation_timer.h), between which every
// kernel's bytes grow with the tokens. The classifier has as many slices as at full size.
#include <cmath>

#include "dev/bench/operand.cuh"
#include "dev/bench/training_step.h"
#include "llmc/base/log.h"
#include "llmc/kernels/operation_timer.h"

namespace {

constexpr int full_B = 64, full_T = 1024, small_T = 48;

struct Recorded {
    int tokens;
    std::vector<OperationTimer::Total> micro_step, update;
    int launches_of_two;   // of a step of two micro-batches, without the update
};

// Own attention, whose every kernel is counted.
Recorded record(Timing& timing, int B, int slices, bool measures) {
    StageOptions options;
    options.B = B;
    options.T = small_T;
    options.attention = AttentionKind::own;
    options.classifier_rows = B * small_T / slices;
    TrainingStep step("gpt2:124M", options, timing.arena(), timing.bench().stream());
    if (measures) timing.measure([&](int) { step.gradients(); });
    OperationTimer micro_step(timing.bench().stream());
    step.gradients();
    Recorded recorded{B * small_T, micro_step.totals(), {}, 0};
    OperationTimer update(timing.bench().stream());
    step.update();
    recorded.update = update.totals();
    OperationTimer two(timing.bench().stream());
    step.gradients(2);
    for (const OperationTimer::Total& operation : two.totals()) recorded.launches_of_two += operation.calls;
    return recorded;
}

// Bytes of an operation at `tokens`, from two that were recorded.
double bytes_at(int tokens, const OperationTimer::Total& small, int small_tokens, const OperationTimer::Total& large,
                int large_tokens) {
    return small.bytes + (large.bytes - small.bytes) / (large_tokens - small_tokens) * (tokens - small_tokens);
}

bool is_matmul_or_attention(const std::string& name) {
    return name.starts_with("matmul") || name.find("attention") != std::string::npos;
}

void run(Bench& bench) {
    const int tokens = full_B * full_T;
    const int rows = default_classifier_rows(tokens, 50304), slices = (tokens + rows - 1) / rows;
    auto timing = bench.begin({"traffic", text("gpt2:124M B=1 T=", small_T), {}});
    if (!timing) return;
    const Recorded of[] = {record(*timing, 1, slices, true), record(*timing, 2, slices, false)};
    std::printf("    of gpt2:124M B=%d T=%d:\n", full_B, full_T);
    double others = 0;
    int launches = 0;
    auto add = [&](const std::vector<OperationTimer::Total>& small, const std::vector<OperationTimer::Total>& large,
                   bool counts) {
        for (const OperationTimer::Total& operation : small) {
            const auto same = std::ranges::find(large, operation.name, &OperationTimer::Total::name);
            ENSURE(same != large.end() && same->calls == operation.calls, operation.name,
                   " is called more often for more tokens");
            const double bytes = bytes_at(tokens, operation, of[0].tokens, *same, of[1].tokens);
            std::printf("    %-46s %6d calls %12.0f bytes/token\n", operation.name.c_str(), operation.calls,
                        bytes / tokens);
            if (!is_matmul_or_attention(operation.name)) others += bytes;
            if (counts) launches += operation.calls;
        }
    };
    add(of[0].micro_step, of[1].micro_step, true);
    add(of[0].update, of[1].update, false);
    std::printf("    launches of the first micro-step, norm included: %d\n", launches);
    std::printf("    launches of a later micro-step: %d\n", of[0].launches_of_two - launches);
    std::printf("    besides matmuls and attention, of a step of one micro-batch: %.3f MB per token\n",
                1e-6 * others / tokens);
}
const Benchmark registered("traffic", run);

}   // namespace
