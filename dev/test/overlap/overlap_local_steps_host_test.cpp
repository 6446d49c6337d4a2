// How much of local steps' moves is hidden behind the steps, judged on the stand-in's virtual clock.
#include <doctest/doctest.h>

#include "llmc/cuda_on_cpu/clock/record.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/trainee_testing.h"

using namespace trainee_testing;

namespace {

constexpr int replicas = 2;

// Records `steps` steps of every replica after the first `before`.
std::vector<host::Recording> record_steps(const LocalSteps& local, int before, int steps) {
    std::vector<host::Recording> recordings(replicas);
    on_ranks(local.every > 0 ? MeshShape{1, replicas, 1, 1, 1} : MeshShape{1, replicas, 1, 1}, [&](TestRank& me) {
        Trainee own(options(local), me.arena, me.stream, &me.world);
        for (int step = 1; step <= before; step++) own.train(step);
        CUDA_CHECK(cudaDeviceSynchronize());
        recordings[static_cast<std::size_t>(me.rank())] = host::record([&] {
            for (int step = before + 1; step <= before + steps; step++) own.train(step);
        });
        CUDA_CHECK(cudaDeviceSynchronize());
    });
    return recordings;
}

}   // namespace

// The link is so slow that a move takes about two steps, a layer of it less than one: on this clock the sums of a step,
// over the same link, wait for what is on its way.
TEST_CASE("overlap: fragments of local steps travel beside the steps") {
    host::CostModel costs;
    costs.seconds_per_flop = 1e-12, costs.seconds_per_byte = 1e-12, costs.seconds_per_exchange = 1e-7;
    auto longer = [&](const LocalSteps& local) {
        // as many again as come before, and the last one's arrival
        const std::vector<host::Recording> recorded = record_steps(local, local.every, 2 * local.every);
        costs.seconds_per_exchanged_byte = 0;
        const double free = host::replay(recorded, costs).seconds;
        costs.seconds_per_exchanged_byte = 1.5 * free / (2 * local.every) / 1e5;
        return host::replay(recorded, costs).seconds / free - 1;
    };
    const double at_once = longer({.every = 8}), in_turns = longer({.every = 8, .fragments = 4}),
                 beside = longer({.every = 8, .fragments = 4, .delay = 2});
    MESSAGE("moves make 16 steps ", 100 * at_once, "% longer, in turns ", 100 * in_turns, "%, beside the steps ",
            100 * beside, "%");
    CHECK(beside < at_once / 5);
    CHECK(in_turns > at_once / 2);
}

// The times of gpt2:124M in steps of 524,288 tokens on two replicas of 400 TFLOP/s: one computes 0.49 s, and its
// gradients in fp32 take 4.0 s on such a link.
TEST_CASE("overlap: over a link of 1 Gb/s 100 local steps take an eighth of the time of steps together") {
    constexpr double parameters = 124.4e6, computing = 6 * parameters * 524'288 / replicas / 400e12,
                     travelling = 4 * parameters / 0.125e9;
    host::CostModel costs;
    costs.seconds_per_flop = 1e-12, costs.seconds_per_byte = 1e-12;
    constexpr int few = 4;
    const std::vector<host::Recording> together = record_steps({}, 2, few);
    const double free = host::replay(together, costs).seconds / few;
    costs.seconds_per_exchange = 50e-6 / computing * free;
    costs.seconds_per_exchanged_byte =
        travelling / computing * free / (4 * static_cast<double>(parameter_count(model())));
    LocalSteps local;
    local.every = 100;
    const double each_together = host::replay(together, costs).seconds / few / free * computing,
                 each_apart = host::replay(record_steps(local, 100, 100), costs).seconds / 100 / free * computing;
    MESSAGE("a step takes ", each_together, " s together, ", each_apart, " s apart, ", computing, " s with free links");
    CHECK(each_together > 4);
    CHECK(each_together < 5);
    CHECK(each_apart < each_together / 7.5);
    CHECK(each_apart > computing * 1.05);
}
