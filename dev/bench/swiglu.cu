// SwiGLU, forward and backward, as an MLP of Llama's kind runs it between its matmuls.
#include "llmc/kernels/swiglu.cuh"

#include "dev/bench/operand.cuh"
#include "llmc/model/precision.h"

namespace {

void run(Bench& bench) {
    const int rows = bench.choose(32768, 4096), F = 1536;   // of llama:125M
    const std::int64_t n = std::int64_t{rows} * F;
    const double elements = static_cast<double>(n);
    const std::string shape = text("R=", rows, " F=", F);
    if (auto timing = bench.begin(
            {"swiglu forward",
             shape,
             {.bytes = 3 * elements * sizeof(floatX), .flops = 5 * elements, .tokens = double{1} * rows}})) {
        Operand<floatX> out(*timing, n), in(*timing, 2 * n);
        timing->measure([&](int set) { swiglu_forward<floatX>(out[set], in[set], rows, F, bench.stream()); });
    }
    if (auto timing = bench.begin(
            {"swiglu backward",
             shape,
             {.bytes = 5 * elements * sizeof(floatX), .flops = 11 * elements, .tokens = double{1} * rows}})) {
        Operand<floatX> din(*timing, 2 * n), dout(*timing, n), in(*timing, 2 * n);
        timing->measure(
            [&](int set) { swiglu_backward<floatX>(din[set], dout[set], in[set], rows, F, bench.stream()); });
    }
}
const Benchmark registered("swiglu", run);

}   // namespace
