// Times of planned steps: what is drawn from few micro-batches against a replay of all of them, and what the order of
// launches costs.
#include "llmc/plan/step_time.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "llmc/base/clock/replay.h"
#include "llmc/plan/search.h"
#include "llmc/run/options/layout_options.h"

namespace {

struct Case {
    const char* model;
    int tp, pp, cp, dp, zero;
    Recompute recompute;
    PipelineKind schedule = PipelineKind::one_f_one_b;
    int chunks = 1;
};

PlannedRun run_of(const Case& c, int micro_batches) {
    Options o;
    o.model = c.model;
    o.seq_len = 2048, o.micro_batch = 1;
    o.tp = c.tp, o.pp = c.pp, o.cp = c.cp, o.dp = c.dp, o.zero = c.zero, o.recompute = c.recompute;
    o.pipeline.kind = c.schedule, o.pipeline.chunks = c.chunks;
    o.startup.ranks = c.tp * c.pp * c.cp * c.dp;
    o.total_batch = std::int64_t{micro_batches} * c.dp * 2048;
    return planned_run(o);
}

// The table's A100 with 4 cards of 100 Gbit/s for 8 devices.
Machine slowly_linked() {
    Machine machine = known_machine("A100");
    machine.inter.bytes_per_second = 5.4e9;
    return machine;
}

// Seconds of a step all of whose micro-batches are replayed, behind one of a single round.
double replayed(const PlannedRun& run, Machine machine, bool in_launch_order = true) {
    machine.attention_per_second = attention_rate(run.options, run.config, machine);
    const int first = run.options.pipeline.kind == PipelineKind::interleaved ? run.mesh.pp : 1;
    const StepRecording recording =
        record_steps(run.options, run.config, run.mesh, machine.devices_per_node, {first, run.options.micro_steps()});
    virtual_clock::CostModel costs = costs_of(machine, recording.groups);
    costs.in_launch_order = in_launch_order;
    const virtual_clock::Times times = virtual_clock::Replay(recording.stages, costs).run();
    auto end = [&](std::size_t step) {
        double latest = 0;
        for (std::size_t stage = 0; stage < recording.stages.size(); stage++) {
            const std::size_t waits = recording.ends[stage][step].host_waits;
            latest = std::max(latest, times.host_waits[stage][waits - 1]);
        }
        return latest;
    };
    return end(1) - end(0);
}

}   // namespace

TEST_CASE("plan: the time of many micro-batches, drawn from two smaller numbers of them, is that of a replay of all") {
    using Kind = PipelineKind;
    constexpr Recompute none = Recompute::none, block = Recompute::block;
    for (const Case& c : {Case{"gpt3:13B", 1, 1, 1, 8, 3, block}, Case{"gpt3:13B", 8, 2, 1, 2, 1, none},
                          Case{"gpt3:13B", 2, 4, 1, 4, 0, block}, Case{"gpt3:13B", 4, 5, 1, 4, 1, block},
                          Case{"gpt3:13B", 2, 4, 1, 4, 2, block}, Case{"gpt3:13B", 2, 4, 2, 2, 3, block},
                          Case{"gpt3:13B", 1, 4, 1, 4, 1, none, Kind::zero_bubble},
                          Case{"gpt3:13B", 2, 4, 1, 4, 1, none, Kind::interleaved, 2},
                          Case{"gpt3:13B", 2, 4, 1, 4, 2, none, Kind::interleaved, 4}}) {
        const PlannedRun run = run_of(c, 6 * c.pp);
        const double drawn = step_time(run.options, run.config, run.mesh, slowly_linked(), false).seconds;
        CAPTURE(layout_text(run.options));
        // chunks whose traffic outlasts their work are not in step yet
        CHECK(drawn == doctest::Approx(replayed(run, slowly_linked())).epsilon(c.chunks > 2 ? 0.03 : 0.003));
    }
}

TEST_CASE("plan: stages of a pipeline do not hold each other up by traffic of ZeRO, though NCCL starts it in order") {
    constexpr Recompute block = Recompute::block;
    struct Row {
        Case layout;
        double most;   // the first two 2.38 and 2.18 if every stage reduces at once, and gathers one unit ahead
    };
    constexpr PipelineKind interleaved = PipelineKind::interleaved;
    for (const auto& [layout, most] :
         {Row{{"gpt3:13B", 8, 5, 1, 8, 0, block}, 1}, Row{{"gpt3:13B", 8, 5, 1, 8, 1, block}, 1},
          Row{{"gpt3:13B", 8, 5, 1, 8, 1, block, interleaved, 2}, 1.03},   // 1.09
          Row{{"gpt3:13B", 8, 5, 1, 8, 2, block}, 1.05}, Row{{"gpt3:13B", 8, 5, 1, 8, 3, block}, 1.05}}) {
        const PlannedRun run = run_of(layout, 10);
        CAPTURE(layout_text(run.options));
        const double in_order = replayed(run, slowly_linked()), in_any = replayed(run, slowly_linked(), false);
        CHECK(in_order <= most * in_any);
    }
}

TEST_CASE("plan: a tp group that straddles nodes is as slow as the links between them") {
    Options o;
    o.layers = 2, o.heads = 8, o.channels = 512, o.vocab_size = 500, o.seq_len = 512, o.micro_batch = 1;
    o.tp = 4, o.dp = 3, o.recompute = Recompute::none;
    const PlannedRun run = planned_run(o);
    Machine machine = known_machine("H100");
    machine.inter.bytes_per_second = 1e9;
    auto tp = [&](int devices_per_node) {
        machine.devices_per_node = devices_per_node;
        return step_time(run.options, run.config, run.mesh, machine).groups.at("tp");
    };
    CHECK(tp(4).size.nodes == 1);
    CHECK(tp(6).size.nodes == 2);
    CHECK(tp(6).seconds > 5 * tp(4).seconds);
}

TEST_CASE("plan: a pipeline's line is of the stage that sends most in the whole step, also with a tied embedding") {
    Options o;
    o.layers = 4, o.heads = 2, o.channels = 64, o.vocab_size = 2000, o.seq_len = 64, o.micro_batch = 1;
    o.pp = 4, o.total_batch = 256 * 64, o.recompute = Recompute::none;
    const PlannedRun run = planned_run(o);
    const StepTime step = step_time(run.options, run.config, run.mesh, known_machine("H100"));
    const double boundary = 64.0 * 64 * sizeof(floatX) * 256;                           // of all micro-batches, one way
    CHECK(step.groups.at("pp").bytes == doctest::Approx(2 * boundary).epsilon(0.01));   // both ways between stages
}
