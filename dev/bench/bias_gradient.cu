// The gradient of a bias: the sum of the rows of a gradient.
#include "llmc/kernels/matmul/bias_gradient.h"

#include "dev/bench/operand.cuh"
#include "llmc/kernels/matmul/matmul.h"
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
        const int splits = bias_gradient_splits(rows, N, MatmulOptions{}.workspace_bytes).count;
        const std::int64_t scratch_floats = std::int64_t{splits} * N;
        Operand<float> dbias(*timing, N), scratch(*timing, scratch_floats);
        timing->measure([&](int set) {
            bias_gradient(dbias[set], scratch[set], static_cast<std::size_t>(4 * scratch_floats), dout[set],
                          BiasGradientShape{rows, N, N}, false, bench.stream());
        });
    }
}
const Benchmark registered("bias_gradient", run);

}   // namespace
