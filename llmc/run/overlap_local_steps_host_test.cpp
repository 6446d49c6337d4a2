// How much of local steps' moves is hidden behind the steps, judged on the stand-in's virtual clock.
#include <doctest/doctest.h>

#include "llmc/cuda_on_cpu/clock/record.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/trainee_testing.h"

using namespace trainee_testing;

namespace {

constexpr int replicas = 2;

// Records the steps of every replica after the first `every`, as many again and the last one's arrival.
std::vector<host::Recording> record_steps(const LocalSteps& local) {
    std::vector<host::Recording> recordings(replicas);
    on_ranks(MeshShape{1, replicas, 1, 1, 1}, [&](TestRank& me) {
        Trainee own(options(local), me.arena, me.stream, &me.world);
        for (int step = 1; step <= local.every; step++) own.train(step);
        CUDA_CHECK(cudaDeviceSynchronize());
        recordings[static_cast<std::size_t>(me.rank())] = host::record([&] {
            for (int step = local.every + 1; step <= 3 * local.every; step++) own.train(step);
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
        const std::vector<host::Recording> recorded = record_steps(local);
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
