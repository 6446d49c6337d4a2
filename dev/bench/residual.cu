// The residual stream: the sum alone, and fused with the layer normalisation that follows it.
#include "llmc/kernels/rows/residual.cuh"

#include "dev/bench/operand.cuh"
#include "llmc/model/precision.h"

namespace {

void sum(Bench& bench, int rows, int C) {
    const std::int64_t n = std::int64_t{rows} * C;
    const double elements = static_cast<double>(n);
    auto timing =
        bench.begin({"residual",
                     text("R=", rows, " C=", C),
                     {.bytes = 3 * elements * sizeof(floatX), .flops = elements, .tokens = double{1} * rows}});
    if (!timing) return;
    Operand<floatX> out(*timing, n), a(*timing, n), b(*timing, n);
    timing->measure([&](int set) { residual_forward<floatX>(out[set], a[set], b[set], n, bench.stream()); });
}

// Reads two tensors, writes the sum and its normalisation.
void fused(Bench& bench, int rows, int C) {
    const std::int64_t n = std::int64_t{rows} * C;
    const double elements = static_cast<double>(n);
    auto timing = bench.begin({"residual + layernorm",
                               text("R=", rows, " C=", C),
                               {.bytes = 4 * elements * sizeof(floatX) + 8.0 * rows + 2.0 * C * sizeof(floatX),
                                .flops = 8 * elements,
                                .tokens = double{1} * rows}});
    if (!timing) return;
    Operand<floatX> residual(*timing, n), out(*timing, n), a(*timing, n), b(*timing, n), weight(*timing, C),
        bias(*timing, C);
    Operand<float> mean(*timing, rows), rstd(*timing, rows);
    timing->measure([&](int set) {
        residual_layernorm_forward(ResidualLayerNormForward<floatX>{residual[set], out[set], mean[set], rstd[set],
                                                                    a[set], b[set], weight[set], bias[set], rows, C},
                                   bench.stream());
    });
}

void run(Bench& bench) {
    const int rows = bench.choose(32768, 4096);
    for (int C : {768, 1600}) {
        sum(bench, rows, C);
        fused(bench, rows, C);
    }
}
const Benchmark registered("residual", run);

}   // namespace
