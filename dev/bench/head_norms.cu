// Norms of heads of queries and keys with rotary positions, in the packed output of the qkv matmul.
#include "llmc/kernels/rows/head_norms.cuh"

#include "dev/bench/operand.cuh"
#include "llmc/model/precision.h"

namespace {

// Forward reads heads, and writes them and what it keeps; backward reads what was kept and heads, and writes these.
void run(Bench& bench) {
    const int T = 1024, rows = bench.choose(32, 2) * T, NH = 16, KV = 8, HS = 128;   // of qwen3:0.6B
    const std::int64_t row = std::int64_t{NH + 2 * KV} * HS, normed = std::int64_t{NH + KV} * HS * rows;
    const auto elements = static_cast<double>(normed);
    for (const bool backward : {false, true}) {
        auto timing = bench.begin({backward ? "head norms backward" : "head norms forward",
                                   text("R=", rows, " NH=", NH, " KV=", KV, " HS=", HS),
                                   {.bytes = elements * (3.0 * sizeof(floatX) + 4.0 / HS),
                                    .flops = (backward ? 12 : 7) * elements,
                                    .tokens = double{1} * rows}});
        if (!timing) continue;
        Operand<floatX> qkv(*timing, rows * row), raw(*timing, normed), weight(*timing, HS);
        Operand<float> rstd(*timing, std::int64_t{rows} * (NH + KV)), dweight(*timing, 2 * HS);
        Operand<float> scratch(*timing, static_cast<std::int64_t>(head_norms_scratch(rows, HS)));
        timing->measure([&](int set) {
            const std::int64_t queries = std::int64_t{rows} * NH;
            const HeadNorms<floatX> args{.heads = qkv[set],
                                         .row = row,
                                         .rows = rows,
                                         .HS = HS,
                                         .queries = {NH, weight[set], raw[set], rstd[set]},
                                         .keys = {KV, weight[set], raw[set] + queries * HS, rstd[set] + queries},
                                         .turns = true,
                                         .angles = {0, T, Positions{}, {.theta = 1000000.0f}, backward}};
            if (!backward) return head_norms_forward(args, 1e-6f, true, bench.stream());
            head_norms_backward(args, dweight[set], dweight[set] + HS, scratch[set], false, bench.stream());
        });
    }
}
const Benchmark registered("head_norms", run);

}   // namespace
