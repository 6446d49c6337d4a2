// The gradient of a bias: the sum of the rows of a gradient.
#include "llmc/kernels/bias_gradient.h"

#include "dev/bench/operand.cuh"
#include "llmc/model/precision.h"

namespace {

void run(Bench& bench) {
    const int rows = bench.choose(32768, 4096);
    for (int N : {768, 3072}) {
        const std::int64_t n = std::int64_t{rows} * N;
        const Work work{.bytes = static_cast<double>(n) * sizeof(floatX) + 4.0 * N,
                        .flops = static_cast<double>(n),
                        .tokens = double{1} * rows};
        auto timing = bench.begin({"bias gradient", text("R=", rows, " N=", N), work});
        if (!timing) continue;
        Operand<floatX> dout(*timing, n);
        Operand<float> dbias(*timing, N),
            scratch(*timing, static_cast<std::int64_t>(bias_gradient_scratch_bytes(rows, N) / 4));
        timing->measure([&](int set) {
            bias_gradient(dbias[set], scratch[set], dout[set], BiasGradientShape{rows, N, N}, false, bench.stream());
        });
    }
}
const Benchmark registered("bias_gradient", run);

}   // namespace
