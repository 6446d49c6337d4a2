// What --recompute auto takes on devices of several sizes.
#include "llmc/cuda_on_cpu/queue/device.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/process/on_ranks_test.h"
#include "llmc/run/option_names.h"
#include "llmc/run/run_parts.h"

namespace {

// Bytes that a run of this rank has allocated with that level.
double taken(Options options, const ModelConfig& config, Recompute level, TestRank& rank) {
    options.recompute = level;
    Arena arena;
    RunParts parts(options, config, rank.world, arena, rank.stream);
    parts.stage.initialize(1);
    parts.make_step(options, arena);
    return static_cast<double>(arena.high_water());
}

}   // namespace

TEST_CASE("recompute auto: the least with which nine tenths of the device suffice for all its ranks") {
    for (const int ranks : {1, 2}) {   // test ranks share one device
        on_ranks(ranks, [&](TestRank& rank) {
            const ModelConfig config = custom_model_config(3, 2, 32, 32, 97);
            Options options;
            options.micro_batch = 8, options.seq_len = 32, options.dp = ranks, options.zero = ranks == 1 ? 0 : 3;
            host::Memory& memory = host::device().memory;
            const std::size_t total = memory.bytes_total();
            Recompute below = Recompute::block;   // what is taken where a level just does not fit
            for (const Recompute level : {Recompute::block, Recompute::gelu_norm, Recompute::gelu, Recompute::none}) {
                const double needed = ranks * taken(options, config, level, rank) / 0.9;
                memory.set_bytes_total(static_cast<std::size_t>(0.999 * needed));
                const Recompute without_room = recompute_that_fits(options, config, rank.world);
                memory.set_bytes_total(static_cast<std::size_t>(1.001 * needed));
                const Recompute with_room = recompute_that_fits(options, config, rank.world);
                memory.set_bytes_total(total);
                rank.require(without_room == below, name_of(level), " does not fit, ", name_of(without_room), " taken");
                rank.require(with_room == level, name_of(level), " fits, ", name_of(with_room), " is taken");
                below = level;
            }
        });
    }
}
