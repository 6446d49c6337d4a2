// What a plan counts of a ring's attention under a window.
#include <doctest/doctest.h>

#include "llmc/plan/closed_form.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/run/options/part_options.h"

namespace {

// Replay and closed form.
std::pair<StepTime, StepTime> both_times(const Options& options) {
    const PlannedRun run = planned_run(options);
    const Machine machine = known_machine("H100");
    return {step_time(run.options, run.config, run.mesh, machine, false),
            closed_form_time(run.options, ParamTable(run.config), run.mesh, machine)};
}

}   // namespace

TEST_CASE("plan: a ring computes the pairs that its steps see under a window, in replays and closed forms") {
    // the last of 8 ranks has the slices 7 and 8 of 16, of s tokens each; with a window of s + 1 it sees own keys and
    // those of slice 6, at 2 of its 8 steps
    Options o;
    o.layers = 8, o.heads = 16, o.channels = 1536, o.vocab_size = 50257, o.seq_len = 4096;
    o.micro_batch = 1, o.total_batch = 8 * 4096, o.cp = 8, o.dp = 1, o.recompute = Recompute::none;
    const auto [replayed, formula] = both_times(o);
    const double s = 256, full = 2 * s * 4096 / 2, seen = 2 * s * (s + 1);
    o.architecture["window"] = s + 1, o.architecture["layer-pattern"] = pattern_number("SL");
    const auto [replayed_less, formula_less] = both_times(o);
    const double layers = o.layers / 2.0 * o.micro_steps(), of_pair = 14.0 * o.channels;   // 7 products, 2 each
    CHECK(formula.flops - formula_less.flops == doctest::Approx(layers * of_pair * (full - seen)));
    // exact, where the formula counts half of a query's own key
    CHECK(replayed.flops - replayed_less.flops == doctest::Approx(layers * of_pair * (full + s - seen)));
    CHECK(formula_less.seconds == doctest::Approx(replayed_less.seconds).epsilon(0.1));
}
