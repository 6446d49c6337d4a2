// Cross-entropy with its gradient, over the logits of GPT-2's vocabulary.
#include "llmc/kernels/rows/classifier.cuh"

#include "dev/bench/operand.cuh"
#include "llmc/model/precision.h"

namespace {

constexpr int V = 50257, Vp = 50304;

// Logits are read once and overwritten once; validation only reads them.
void measure(Bench& bench, const char* name, ClassifierOutput output, int rows) {
    const std::int64_t n = std::int64_t{rows} * Vp;
    const double passes = output == ClassifierOutput::loss ? 1 : 2;
    const Work work{.bytes = passes * static_cast<double>(n) * sizeof(floatX) + 8.0 * rows,
                    .flops = 4 * passes * static_cast<double>(n),
                    .tokens = double{1} * rows};
    auto timing = bench.begin({name, text("R=", rows, " V=", V), work});
    if (!timing) return;
    Operand<floatX> logits(*timing, n);
    Operand<float> losses(*timing, rows);
    auto targets = timing->arena().allocate<int>("bench/targets", static_cast<std::size_t>(rows));
    std::vector<int> ids;
    for (int row = 0; row < rows; row++) ids.push_back(row * 37 % V);
    targets.upload(ids, bench.stream());
    timing->measure([&](int set) {
        fused_classifier(Classifier<floatX>{logits[set], losses[set], targets.data(), rows, V, Vp,
                                            1.0f / static_cast<float>(rows), output},
                         bench.stream());
    });
}

void run(Bench& bench) {
    const int rows = bench.choose(4096, 512);
    measure(bench, "classifier", ClassifierOutput::loss_and_gradient, rows);
    measure(bench, "classifier, loss only", ClassifierOutput::loss, rows);
}
const Benchmark registered("classifier", run);

}   // namespace
