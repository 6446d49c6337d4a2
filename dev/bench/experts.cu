// First matmul of all experts of a mixture, forward and backward: the program's grouped kernel beside one library call
// for each expert, and the kernel with rows that it gathers, or that are copied into the order of experts before.
// Routed by a router that prefers some experts, as a learned one does, and with forced balance, as published speeds
// often are (--force-balance).
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "dev/bench/operand.cuh"
#include "llmc/base/rng.h"
#include "llmc/kernels/experts/expert_rows.cuh"
#include "llmc/kernels/experts/grouped_matmul.cuh"
#include "llmc/kernels/experts/library_loop_testing.h"
#include "llmc/kernels/experts/router.cuh"
#include "llmc/model/precision.h"

namespace {

struct Sizes {
    int tokens, C, F, E, K;
};

// Rows in the order of experts: the first row of each expert, and the end; the token and choice of each row.
struct Order {
    std::vector<std::int32_t> offsets, source;
};
Order routed(const Sizes& s, bool forced, cudaStream_t stream) {
    const auto rows = static_cast<std::size_t>(s.tokens), E = static_cast<std::size_t>(s.E),
               K = static_cast<std::size_t>(s.K);
    std::vector<float> logits(rows * E);
    for (std::size_t i = 0; i < logits.size(); i++) {   // a preference that all tokens share, and the token's own
        logits[i] = static_cast<float>(0.3 * normal(1, i % E) + normal(2, i));
    }
    Arena arena;
    const auto on_device = arena.allocate<float>("bench/logits", logits.size()),
               weight = arena.allocate<float>("bench/weights", rows * K);
    const auto index = arena.allocate<std::int32_t>("bench/index", rows * K),
               offsets = arena.allocate<std::int32_t>("bench/offsets", E + 1),
               source = arena.allocate<std::int32_t>("bench/source", rows * K),
               row_of = arena.allocate<std::int32_t>("bench/row", rows * K);
    on_device.upload(logits, stream);
    router_forward({.index = index.data(),
                    .weight = weight.data(),
                    .logits = on_device.data(),
                    .bias = nullptr,
                    .rows = s.tokens,
                    .E = s.E,
                    .K = s.K,
                    .kind = {},
                    .again = false,
                    .in_turn = forced},
                   stream);
    order_by_expert(offsets.data(), source.data(), row_of.data(), index.data(), s.tokens, s.E, s.K, stream);
    return {offsets.download(stream), source.download(stream)};
}

void measure(Bench& bench, const Sizes& s, bool forced) {
    const Order order = routed(s, forced, bench.stream());
    const std::vector<std::int32_t>& offsets = order.offsets;
    int fullest = 0;
    for (std::size_t e = 0; e + 1 < offsets.size(); e++) fullest = std::max(fullest, offsets[e + 1] - offsets[e]);
    const int M = s.tokens * s.K, N = 2 * s.F, K = s.C;
    const std::int64_t out_count = std::int64_t{M} * N, in_count = std::int64_t{M} * K,
                       weight_count = std::int64_t{s.E} * N * K;
    const double x = sizeof(floatX), out = static_cast<double>(out_count), in = static_cast<double>(in_count),
                 weights = static_cast<double>(weight_count);
    auto work = [&](double weight_size) {
        return Work{.bytes = (out + in) * x + weights * weight_size, .flops = 2 * out * K, .tokens = double(s.tokens)};
    };
    const std::string shape = text("R=", s.tokens, " C=", K, " F=", s.F, " E=", s.E, " K=", s.K,
                                   forced ? " forced balance" : " routed", ", fullest of ", fullest, " rows");
    cudaStream_t stream = bench.stream();

    enum class Rows { ordered, gathered, copied };
    struct Way {
        const char* name;
        bool own;
        Rows rows;
    };
    for (const Way& way : {Way{"grouped", true, Rows::ordered}, Way{"gathered", true, Rows::gathered},
                           Way{"copied and grouped", true, Rows::copied}, Way{"library loop", false, Rows::ordered}}) {
        // Times `call`, told the operands of a set, as grouped kernel or as loop.
        auto time = [&](const char* direction, double weight_size, auto&& call) {
            auto timing = bench.begin({text("experts ", way.name, " ", direction), shape, work(weight_size)});
            if (!timing) return;
            const auto on_device = timing->arena().allocate<std::int32_t>("bench/offsets", offsets.size()),
                       source_on_device = timing->arena().allocate<std::int32_t>("bench/source", order.source.size());
            on_device.upload(offsets, stream), source_on_device.upload(order.source, stream);
            Matmul matmul(timing->arena());
            LibraryLoop loop(matmul, offsets, N, K);
            call(*timing, loop, GroupedShape{s.E, M, N, K, on_device.data()},
                 GatheredRows{source_on_device.data(), s.tokens, s.K});
        };
        using Shape = GroupedShape;
        const bool gathers = way.rows == Rows::gathered, copies = way.rows == Rows::copied;
        time("forward", x, [&](Timing& timing, LibraryLoop& loop, const Shape& groups, const GatheredRows& gathered) {
            Operand<floatX> to(timing, out_count), weight(timing, weight_count, 0.02f),
                from(timing, way.rows == Rows::ordered ? in_count : std::int64_t{s.tokens} * K);
            std::optional<Operand<floatX>> copy;
            if (copies) copy.emplace(timing, in_count);
            timing.measure([&](int set) {
                const floatX* factor = from[set];
                if (copies) {
                    gather_rows((*copy)[set], factor, gathered.source, M, s.tokens, s.K, K, stream);
                    factor = (*copy)[set];
                }
                way.own
                    ? grouped_forward(to[set], factor, weight[set], groups, stream, gathers ? gathered : GatheredRows{})
                    : loop.forward<floatX>(to[set], factor, weight[set], stream);
            });
        });
        if (copies) continue;   // the backward pass would read the copy
        time("weight gradient", sizeof(float),
             [&](Timing& timing, LibraryLoop& loop, const Shape& groups, const GatheredRows& gathered) {
                 Operand<float> to(timing, weight_count);
                 Operand<floatX> dout(timing, out_count), from(timing, gathers ? std::int64_t{s.tokens} * K : in_count);
                 timing.measure([&](int set) {
                     way.own ? grouped_weight_gradient(to[set], dout[set], from[set], groups, false, stream, {},
                                                       gathers ? gathered : GatheredRows{})
                             : loop.weight_gradient<floatX, float>(to[set], dout[set], from[set], false, stream);
                 });
             });
        if (gathers) continue;   // its gradient of the input is not of gathered rows
        time("input gradient", x, [&](Timing& timing, LibraryLoop& loop, const Shape& groups, const GatheredRows&) {
            Operand<floatX> to(timing, in_count), from(timing, out_count), weight(timing, weight_count, 0.02f);
            timing.measure([&](int set) {
                way.own ? grouped_input_gradient(to[set], from[set], weight[set], groups, false, stream)
                        : loop.input_gradient<floatX>(to[set], from[set], weight[set], false, stream);
            });
        });
    }
}

void run(Bench& bench) {
    const Sizes sizes = bench.choose(Sizes{16384, 2048, 1024, 64, 8},   // of OLMoE
                                     Sizes{256, 256, 128, 16, 4});
    for (const bool forced : {false, true}) measure(bench, sizes, forced);
}
const Benchmark registered("experts", run);

}   // namespace
