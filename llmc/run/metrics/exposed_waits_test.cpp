// A step in which one rank comes late: the other's stream stands for that group of ranks, and for no longer without.
#include "llmc/run/metrics/exposed_waits.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "llmc/plan/memory_plan.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/run_parts.h"

namespace {

struct Layout {
    const char* group;   // as records name it
    int pp = 1, dp = 1, cp = 1, tp = 1, zero = 0;
};

PlannedRun run_of(const Layout& layout) {
    Options o;
    o.layers = 2, o.heads = 2, o.channels = 32, o.vocab_size = 61;
    o.micro_batch = 2, o.seq_len = 16;
    o.pp = layout.pp, o.dp = layout.dp, o.cp = layout.cp, o.tp = layout.tp, o.zero = layout.zero;
    o.total_batch = std::int64_t{2} * o.micro_batch * o.seq_len * layout.dp;
    o.recompute = Recompute::none;
    return planned_run(o);
}

// Whose operations rank 1 begins late, so that rank 0 waits.
Communicator* group_of(const Layout& layout, TestRank& me, const TrainingGroups& groups) {
    if (layout.pp > 1) return groups.links.input_gradient;
    if (layout.cp > 1) return me.world.group("cp ring", {0, 1});
    return layout.tp > 1 ? groups.tensor : groups.zero;
}

// Seconds that rank 0's stream stood for the group in a step, of which rank 1 sleeps for so long.
double waited(ExposedWaits& exposed, const Layout& layout, TestRank& me, RunParts& parts, const PlannedRun& run,
              double pause) {
    Communicator* const late = me.rank() == 1 ? group_of(layout, me, parts.groups) : nullptr;
    bool slept = false;
    const Communicator::Tap sleep = [&](const CommCall& call, const Communicator::Make& make) {
        if (!std::exchange(slept, true)) std::this_thread::sleep_for(std::chrono::duration<double>(pause));
        make(call);
    };
    if (late != nullptr && pause > 0) late->set_tap(sleep);
    const PipelineSchedule schedule = layout.pp > 1 ? schedule_of_stage(run.options, me.world.at().pp)
                                                    : one_stage_schedule(run.options.micro_steps());
    auto read = [](int, const MicroBatch& to) {
        std::ranges::fill(to.tokens, 1);
        std::ranges::fill(to.targets, 2);
    };
    exposed.step_begins();
    parts.step->gradients(schedule, read, 1.0f);
    parts.step->update(1, 1e-3f);
    parts.step->result();
    exposed.step_ends();
    if (late != nullptr) late->set_tap({});
    const std::map<std::string, double> seconds = exposed.seconds();
    me.require(seconds.contains(layout.group), "nothing was waited for in ", layout.group);
    me.require(seconds.contains("all"), "loss and norm are summed over all ranks");
    for (const auto& [group, s] : seconds) me.require(s >= 0, group, " ", s);
    return seconds.at(layout.group);
}

}   // namespace

TEST_CASE("exposed waits: a rank that comes late to a group shows in that group's waits, of every axis") {
    for (const Layout& layout :
         {Layout{.group = "dp", .dp = 2, .zero = 1}, Layout{.group = "dp", .dp = 2, .zero = 3},
          Layout{.group = "tp", .tp = 2}, Layout{.group = "cp ring", .cp = 2}, Layout{.group = "pp", .pp = 2}}) {
        CAPTURE(layout.group);
        const PlannedRun run = run_of(layout);
        on_ranks(run.mesh, [&](TestRank& me) {
            Arena arena;
            RunParts parts(run.options, run.config, me.world, arena, me.stream);
            initialize_parameters(parts.stage.parameters(), 1, parts.stage.stream());
            parts.make_step(run.options, arena);
            ExposedWaits exposed(parts.stage.stream());
            double with = 0, without = 0, pause = 0.1;
            for (; pause < 10; pause *= 2) {   // until it is longer than what a busy machine takes by itself
                with = waited(exposed, layout, me, parts, run, pause);
                without = waited(exposed, layout, me, parts, run, 0);
                const bool enough = with > pause / 2 && without < pause / 4;
                if (me.world.gather_text(enough ? "y" : "n")[0] == "y") return;
            }
            me.require(me.rank() != 0, layout.group, ": waited ", with, " s for a rank that slept ", pause / 2,
                       " s, and ", without, " s where it did not");
        });
    }
}

TEST_CASE("exposed waits: what does not communicate is not counted, and other streams' waits are not") {
    on_ranks(2, [&](TestRank& me) {
        OwnedStream other;
        OwnedEvent own, behind, of_compute;
        DeviceBuffer<float> one = me.on_device(std::vector<float>{1, 2});
        CUDA_CHECK(cudaStreamSynchronize(me.stream));
        ExposedWaits exposed(me.stream);
        exposed.step_begins();
        own.record(other.get());
        own.wait(me.stream);   // behind no communication
        me.require(exposed.count() == 0, "a wait for other work");
        me.all.all_reduce(one.data(), 1, ReduceOp::sum, other.get());
        behind.record(other.get());
        behind.wait(other.get());
        of_compute.record(me.stream);
        of_compute.wait(other.get());
        me.require(exposed.count() == 0, "another stream's wait");
        behind.wait(me.stream);
        me.require(exposed.count() == 1, "a wait for a group");
        {
            const Communicator::Group together(me.all);
            me.all.all_reduce(one.data(), 1, ReduceOp::sum, me.stream);
            me.all.all_reduce(one.data() + 1, 1, ReduceOp::sum, me.stream);
        }
        me.require(exposed.count() == 2, "operations that are launched together are one wait, not ", exposed.count());
        exposed.step_ends();
        me.all.all_reduce(one.data(), 1, ReduceOp::sum, me.stream);
        me.require(exposed.count() == 2, "after the step");
        CUDA_CHECK(cudaStreamSynchronize(me.stream));
        me.require(exposed.seconds(0).empty() && exposed.seconds().size() == 1, "one group");
        exposed.step_begins();
        me.require(exposed.seconds().empty(), "a new step");
    });
}
