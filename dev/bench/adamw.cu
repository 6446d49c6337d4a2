// The optimiser's kernels: AdamW over many tensors, and the norm of all gradients.
#include "llmc/kernels/optim/update.cuh"

#include "dev/bench/operand.cuh"
#include "llmc/model/precision.h"
#include "llmc/optim/optimizer_options.h"

namespace {

// Tensors of unequal size that add up to n, as a model has them: the update of many in one launch.
std::vector<std::int64_t> cuts(std::int64_t n) {
    std::vector<std::int64_t> sizes;
    for (std::int64_t piece = n / 2; n > 0; piece = std::max<std::int64_t>(piece / 2, 768)) {
        sizes.push_back(std::min(piece, n));
        n -= sizes.back();
    }
    return sizes;
}

// Per parameter: gradient, both moments and the weight are read; moments, weight and (beside a master) the parameter
// are written.
void adamw(Bench& bench, const char* name, MasterWeights masters, DType moments, std::int64_t n) {
    constexpr bool rounded = sizeof(floatX) < 4;
    const std::size_t weight = masters == MasterWeights::fp32      ? 4 + 4 + sizeof(floatX)
                               : masters == MasterWeights::compact ? 2 * (2 + sizeof(floatX))
                                                                   : 2 * sizeof(floatX);
    const Work work{.bytes = static_cast<double>(n) * static_cast<double>(4 + 4 * size_of(moments) + weight),
                    .flops = 15 * static_cast<double>(n)};
    if (masters != MasterWeights::none && !rounded) return;   // fp32 parameters are their own masters
    auto timing = bench.begin({name, text("N=", n), work});
    if (!timing) return;
    Operand<floatX> parameter(*timing, n, 0.02f);
    Operand<float> master(*timing, masters == MasterWeights::fp32 ? n : 1, 0.02f), gradient(*timing, n, 1e-3f),
        m(*timing, n, 0.0f), v(*timing, n, 0.0f);
    Operand<bf16> lower(*timing, masters == MasterWeights::compact ? n : 1, 0.0f);
    std::vector<UpdateTable<floatX>> tables;
    for (int set = 0; set < timing->sets(); set++) {
        std::vector<UpdateRange<floatX>> ranges;
        std::int64_t at = 0;
        for (std::int64_t size : cuts(n)) {
            UpdateRange<floatX> range{};
            range.parameter = parameter[set] + at;
            if (masters == MasterWeights::fp32) range.master = master[set] + at;
            if (masters == MasterWeights::compact) range.lower = lower[set] + at;
            range.gradient = gradient[set] + at;
            range.m = TypedPointer(m[set], moments) + at;
            range.v = TypedPointer(v[set], moments) + at;
            range.count = size;
            ranges.push_back(range);
            at += size;
        }
        tables.push_back(
            make_update_table(timing->arena(), text("bench/adam", set), std::move(ranges), bench.stream()));
        set_update_step(tables.back(), {1e-4f, 0.9f, 0.95f, 1e-8f, 10}, bench.stream());
    }
    timing->measure([&](int set) { update_weights<AdamW>(tables[static_cast<std::size_t>(set)], bench.stream()); });
}

void norm(Bench& bench, std::int64_t n) {
    const double elements = static_cast<double>(n);
    auto timing = bench.begin({"global norm", text("N=", n), {.bytes = 4 * elements, .flops = 2 * elements}});
    if (!timing) return;
    Operand<float> gradient(*timing, n);
    auto sum = timing->arena().allocate<double>("bench/sum", 1);
    auto result = timing->arena().allocate<GradNorm>("bench/norm", 1);
    std::vector<NormTable> tables;
    for (int set = 0; set < timing->sets(); set++) {
        std::vector<NormRange> ranges;
        std::int64_t at = 0;
        for (std::int64_t size : cuts(n)) {
            ranges.push_back({gradient[set] + at, size});
            at += size;
        }
        tables.push_back(make_norm_table(timing->arena(), text("bench/norm", set), std::move(ranges), bench.stream()));
    }
    timing->measure([&](int set) {
        sum_of_squares(sum.data(), tables[static_cast<std::size_t>(set)], false, bench.stream());
        finish_global_norm(result.data(), sum.data(), nullptr, 1.0f, bench.stream());
    });
}

void run(Bench& bench) {
    const std::int64_t n = bench.choose(std::int64_t{124} << 20, std::int64_t{16} << 20);
    adamw(bench, "adamw, fp32 masters", MasterWeights::fp32, DType::fp32, n);
    adamw(bench, "adamw, masters in halves", MasterWeights::compact, DType::fp32, n);
    adamw(bench, "adamw, masters in halves, bf16 moments", MasterWeights::compact, DType::bf16, n);
    adamw(bench, sizeof(floatX) < 4 ? "adamw, stochastic rounding" : "adamw", MasterWeights::none, DType::fp32, n);
    norm(bench, n);
}
const Benchmark registered("adamw", run);

}   // namespace
