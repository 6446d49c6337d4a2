// Megatron's published step times against the closed forms: Korthikanti et al., "Reducing activation recomputation in
// large transformer models", 2022 (arXiv 2205.05198), Tables 3 and 5. A100 80GB, sequences of 2,048, tp 8.
//
// Fitted to the four times of full recompute: how fast matmuls of its smallest model and of its largest one are, and
// attention, which Megatron makes of several kernels that leave nothing of the mask out. All else is the table's.
// The other four, of selective recompute (attention is made again) and sequence parallelism, follow.
#include <doctest/doctest.h>

#include <cmath>

#include "llmc/model/precision.h"
#include "llmc/plan/closed_form.h"
#include "llmc/plan/memory_plan.h"

namespace {

struct PublishedStep {
    const char* name;
    int heads, channels, layers, pp, chunks, micro_batch, micro_batches;
    double full_seconds, selective_seconds;
};
constexpr PublishedStep kPublished[] = {{"22B", 64, 6144, 48, 1, 1, 4, 1, 1.42, 1.10},
                                        {"175B", 96, 12288, 96, 8, 3, 1, 64, 18.13, 13.75},
                                        {"530B", 128, 20480, 105, 35, 3, 1, 280, 49.05, 37.83},
                                        {"1T", 160, 25600, 128, 64, 1, 1, 512, 94.42, 71.49}};

struct Rates {
    double smallest, largest, attention;   // TFLOP/s
};

double seconds_of(const PublishedStep& run, const Rates& rates, bool full) {
    Options o;
    o.layers = run.layers, o.heads = run.heads, o.channels = run.channels, o.vocab_size = 51200;
    o.seq_len = 2048, o.micro_batch = run.micro_batch, o.tp = 8, o.pp = run.pp, o.pipeline.chunks = run.chunks;
    o.total_batch = std::int64_t{2048} * run.micro_batch * run.micro_batches;
    if (run.chunks > 1) o.pipeline.kind = PipelineKind::interleaved;
    o.recompute = full ? Recompute::block : Recompute::none;
    o.sequence_parallel = !full;
    o.tp_chunks = 1;                                 // Megatron's forward hides no exchange
    if (full) o.architecture["norm-position"] = 1;   // it makes the last projection again too, as is done here then
    Machine machine = known_machine("A100");
    const double bytes = sizeof(floatX) / 2.0;   // the published runs are of 16 bits
    machine.copy_bytes_per_second *= bytes;
    machine.intra.bytes_per_second *= bytes, machine.inter.bytes_per_second *= bytes;
    machine.matmul = {{2.0 * 8192 * 6144 * 6144 / 8, 1e12 * rates.smallest},
                      {2.0 * 2048 * 4 * 25600 * 25600 / 8, 1e12 * rates.largest}};
    // attention: forward, backward of two and a half times that; forward once more
    machine.attention_per_second = 1e12 * rates.attention * (full ? 1 : 3.5 / 4.5);
    machine.attention_tokens = machine.attention_channels = 0;
    const PlannedRun planned = planned_run(o);
    return closed_form_time(planned.options, ParamTable(planned.config), planned.mesh, machine).seconds;
}

double misfit(const Rates& rates) {
    double sum = 0;
    for (const PublishedStep& run : kPublished) {
        const double error = seconds_of(run, rates, true) / run.full_seconds - 1;
        sum += error * error;
    }
    return sum;
}

}   // namespace

TEST_CASE("plan: Megatron's published steps of selective recompute, by constants fitted to those of full recompute") {
    Rates rates{228, 265, 14};
    double least = misfit(rates);
    for (double step = 1.05; step > 1.01;) {   // towards what fits better, in ever smaller steps
        bool better = false;
        for (double* rate : {&rates.smallest, &rates.largest, &rates.attention}) {
            for (const double factor : {step, 1 / step}) {
                const double before = *rate;
                *rate *= factor;
                const double now = misfit(rates);
                if (now < least) {
                    least = now, better = true;
                } else {
                    *rate = before;
                }
            }
        }
        if (!better) step = std::sqrt(step);
    }
    std::string found = text("matmuls at ", rates.smallest, " and ", rates.largest, ", attention at ", rates.attention,
                             " TFLOP/s; full, selective:");
    for (const PublishedStep& run : kPublished) {
        const double full = seconds_of(run, rates, true) / run.full_seconds - 1,
                     selective = seconds_of(run, rates, false) / run.selective_seconds - 1;
        found += text(" ", run.name, " ", 100 * full, "%, ", 100 * selective, "%;");
        CHECK_MESSAGE(std::abs(full) < 0.05, run.name);
        CHECK_MESSAGE(std::abs(selective) < 0.1, run.name);
    }
    MESSAGE(found);
}
