// Rotary positions of queries and keys in the packed output of the qkv matmul; backward turns gradients back.
#include "llmc/kernels/rows/rotary.cuh"

#include "dev/bench/operand.cuh"
#include "llmc/model/precision.h"

namespace {

void run(Bench& bench) {
    const int T = 1024, rows = bench.choose(32, 4) * T, NH = 9, kv_heads = 3, HS = 64;   // of llama:125M
    const std::int64_t row = std::int64_t{NH + 2 * kv_heads} * HS, n = rows * row;
    const double turned = double{1} * rows * (NH + kv_heads) * HS;
    for (const bool backward : {false, true}) {
        auto timing =
            bench.begin({backward ? "rotary backward" : "rotary forward",
                         text("R=", rows, " NH=", NH, " KV=", kv_heads, " HS=", HS),
                         {.bytes = 2 * turned * sizeof(floatX), .flops = 3 * turned, .tokens = double{1} * rows}});
        if (!timing) continue;
        Operand<floatX> qkv(*timing, n);
        timing->measure([&](int set) {
            rotary(
                Rotary<floatX>{
                    qkv[set], row, rows, NH + kv_heads, HS, {0, T, Positions{}, {.theta = 10000.0f}, backward}},
                bench.stream());
        });
    }
}
const Benchmark registered("rotary", run);

}   // namespace
