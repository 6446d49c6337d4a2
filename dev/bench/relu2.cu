// Squared ReLU, forward and backward.
#include "llmc/kernels/relu2.cuh"

#include "dev/bench/operand.cuh"
#include "llmc/model/precision.h"

namespace {

void run(Bench& bench) {
    const int rows = bench.choose(32768, 4096), C = 4 * 768;
    const std::int64_t n = std::int64_t{rows} * C;
    const double elements = static_cast<double>(n);
    const std::string shape = text("R=", rows, " C=", C);
    if (auto timing = bench.begin(
            {"relu2 forward",
             shape,
             {.bytes = 2 * elements * sizeof(floatX), .flops = 2 * elements, .tokens = double{1} * rows}})) {
        Operand<floatX> out(*timing, n), in(*timing, n);
        timing->measure([&](int set) { relu2_forward<floatX>(out[set], in[set], n, bench.stream()); });
    }
    if (auto timing = bench.begin(
            {"relu2 backward",
             shape,
             {.bytes = 3 * elements * sizeof(floatX), .flops = 3 * elements, .tokens = double{1} * rows}})) {
        Operand<floatX> din(*timing, n), dout(*timing, n), in(*timing, n);
        timing->measure([&](int set) { relu2_backward<floatX>(din[set], dout[set], in[set], n, bench.stream()); });
    }
}
const Benchmark registered("relu2", run);

}   // namespace
