// Layer normalisation, forward and backward.
#include "llmc/kernels/rows/layernorm.cuh"

#include "dev/bench/operand.cuh"
#include "llmc/model/precision.h"

namespace {

// Reads the row, writes it; mean and rstd are written.
void forward(Bench& bench, int rows, int C) {
    const std::int64_t n = std::int64_t{rows} * C;
    const Work work{.bytes = 2.0 * static_cast<double>(n) * sizeof(floatX) + 8.0 * rows + 2.0 * C * sizeof(floatX),
                    .flops = 7.0 * static_cast<double>(n),
                    .tokens = double{1} * rows};
    auto timing = bench.begin({"layernorm forward", text("R=", rows, " C=", C), work});
    if (!timing) return;
    Operand<floatX> out(*timing, n), in(*timing, n), weight(*timing, C), bias(*timing, C);
    Operand<float> mean(*timing, rows), rstd(*timing, rows);
    timing->measure([&](int set) {
        layernorm_forward(
            LayerNormForward<floatX>{out[set], mean[set], rstd[set], in[set], weight[set], bias[set], rows, C},
            bench.stream());
    });
}

// Reads dout, in and din, writes din (the gradient of the residual stream is added to); means, deviations and the
// gradients of the parameters besides. The partial sums of the two stages are not counted: they are the kernel's own.
void backward(Bench& bench, int rows, int C) {
    const std::int64_t n = std::int64_t{rows} * C;
    const Work work{.bytes = 4.0 * static_cast<double>(n) * sizeof(floatX) + 8.0 * rows + (8.0 + sizeof(floatX)) * C,
                    .flops = 16.0 * static_cast<double>(n),
                    .tokens = double{1} * rows};
    auto timing = bench.begin({"layernorm backward", text("R=", rows, " C=", C), work});
    if (!timing) return;
    Operand<floatX> din(*timing, n), dout(*timing, n), in(*timing, n), weight(*timing, C);
    Operand<float> mean(*timing, rows, 0.01f), rstd(*timing, rows), dweight(*timing, C), dbias(*timing, C);
    Operand<float> scratch(*timing, static_cast<std::int64_t>(layernorm_backward_scratch(rows, C)));
    timing->measure([&](int set) {
        layernorm_backward(
            LayerNormBackward<floatX, float>{din[set], dweight[set], dbias[set], scratch[set], dout[set], in[set],
                                             weight[set], mean[set], rstd[set], rows, C, true, false},
            bench.stream());
    });
}

void run(Bench& bench) {
    const int rows = bench.choose(32768, 4096);
    for (int C : {768, 1600}) {
        forward(bench, rows, C);
        backward(bench, rows, C);
    }
}
const Benchmark registered("layernorm", run);

}   // namespace
