// Tests the level that --recompute auto takes on devices of several sizes, and what a run is told of its memory.
#include <algorithm>

#include "llmc/base/exit_code.h"
#include "llmc/cuda_on_cpu/blas/attention_workspace.h"
#include "llmc/cuda_on_cpu/queue/device.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/process/value_bytes.h"
#include "llmc/run/options/option_names.h"
#include "llmc/run/run_parts.h"

namespace {

// Bytes that a run of this rank has allocated with that level.
double taken(Options options, const ModelConfig& config, Recompute level, TestRank& rank) {
    options.recompute = level;
    Arena arena;
    RunParts parts(options, config, rank.world, arena, rank.stream);
    initialize_parameters(parts.stage.parameters(), 1, parts.stage.stream());
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
            Recompute below = Recompute::block;   // the level taken if the next one just does not fit
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

TEST_CASE("memory plan: the workspace of the library's attention is counted where the library would serve") {
    constexpr std::size_t mebibyte = 1 << 20;
    Options options;
    options.layers = 1, options.heads = 2, options.channels = 32, options.vocab_size = 97;
    options.micro_batch = 2, options.seq_len = 32, options.recompute = Recompute::none;
    on_ranks(1, [&](TestRank& rank) {
        auto counted = [&](AttentionKind attention, std::size_t workspace) {
            options.attention = attention;
            host::attention_workspace_bytes = workspace;
            const ModelConfig config = custom_model_config(1, 2, 32, 32, 97);
            const std::size_t bytes = counted_run(options, config, rank.world).high_water();
            const std::string plan = memory_plan(options);
            host::attention_workspace_bytes = 0;
            return std::pair(bytes, plan);
        };
        for (const AttentionKind kind : {AttentionKind::auto_, AttentionKind::library}) {
            const auto [without, plan_without] = counted(kind, 0);
            const auto [with, plan_with] = counted(kind, 3 * mebibyte);
            rank.require(with == without + 3 * mebibyte, with, " bytes with a workspace, ", without, " without");
            rank.require(plan_with != plan_without, plan_with);
        }
        rank.require(counted(AttentionKind::own, 3 * mebibyte) == counted(AttentionKind::own, 0), "own needs none");
        options.document_mask = true;   // which own-sm90 cannot serve
        rank.require(counted(AttentionKind::own_sm90, 0) == counted(AttentionKind::own, 0), "own in place of own-sm90");
    });
}

TEST_CASE("memory plan: the stages that are counted are those that take the most") {
    Options options;
    options.heads = 2, options.channels = 32, options.seq_len = 32, options.zero = 0, options.dp = 1;
    int middle = 0;   // layouts whose second stage takes most
    for (const int pp : {3, 4, 5, 8}) {
        for (const int layers : {pp * 4, pp * 4 + 1, pp * 4 + 2, pp * 5 - 1}) {
            for (const std::int64_t vocabulary : {97, 1000}) {
                for (const auto& [schedule, chunks] : {std::pair{PipelineKind::one_f_one_b, 1},
                                                       {PipelineKind::zero_bubble, 1},
                                                       {PipelineKind::gpipe, 1},
                                                       {PipelineKind::interleaved, 2},
                                                       {PipelineKind::interleaved, 4}}) {
                    options.pp = pp, options.layers = layers, options.vocab_size = vocabulary;
                    options.pipeline.kind = schedule, options.pipeline.chunks = chunks;
                    options.total_batch = std::int64_t{2 * pp} * options.micro_batch * options.seq_len;
                    const PlannedRun run = planned_run(options);
                    std::vector<std::size_t> bytes;
                    for (int stage = 0; stage < pp; stage++) {
                        bytes.push_back(fullest_rank(run, stage, Recompute::block).high_water());
                    }
                    std::size_t most = 0;
                    for (const int stage : fullest_stages(options)) {
                        most = std::max(most, bytes[static_cast<std::size_t>(stage)]);
                    }
                    CHECK_MESSAGE(most == std::ranges::max(bytes), pp, " stages, ", layers, " layers, vocabulary ",
                                  vocabulary, ", ", std::string(name_of(schedule)), " ", chunks, ", stage ",
                                  std::ranges::max_element(bytes) - bytes.begin());
                    middle += bytes[1] > std::max(bytes.front(), bytes.back()) ? 1 : 0;
                }
            }
        }
    }
    CHECK(middle > 0);
}

namespace {

// What memory_that_suffices says of two ranks here and one elsewhere, or its error; what it warns of goes to `warned`.
std::string suffices(const MemoryNeed& own, std::string* warned = nullptr) {
    const MemoryNeed::Bytes far{std::size_t{1} << 40, std::size_t{1} << 40};
    std::FILE* const err = std::tmpfile();
    std::string words;
    try {
        const std::string bytes = to_bytes(own.bytes);
        words = memory_that_suffices(own, {own.device, own.device, "other::0"}, {bytes, bytes, to_bytes(far)},
                                     Log(true, err, err));
    } catch (const Error& error) {
        words = text(static_cast<int>(error.kind()), " ", error.what());
    }
    std::rewind(err);
    char line[300] = "";
    if (std::fgets(line, sizeof line, err) != nullptr && warned != nullptr) *warned = line;
    std::fclose(err);
    return words;
}

}   // namespace

TEST_CASE("memory plan: what the ranks of a device, and of a machine, need together") {
    constexpr std::size_t mebibyte = 1 << 20;
    MemoryNeed own;
    own.host = "here", own.device = "here::0", own.table = "the table";
    own.bytes = {100 * mebibyte, 30 * mebibyte};
    own.machine.all = {{"a parent", 300 * mebibyte, 260 * mebibyte}};
    own.machine.slowing = {{"memory.high", 270 * mebibyte, 260 * mebibyte}};

    own.device_is_host = true, own.free_bytes = 260 * mebibyte;   // device and copies share one memory
    std::string warned;
    CHECK(
        suffices(own, &warned) ==
        "100.0 MiB a rank, 2 ranks on this device, together 200.0 MiB, and 60.0 MiB of the machine's for checkpoints, "
        "of 260.0 MiB free (300 MiB by a parent)");
    CHECK(
        warned ==
        "warning: the run leaves 0.0 MiB of memory for libraries and communication, which are not counted: the kernel "
        "may kill it\n");
    own.free_bytes += 128 * mebibyte, warned = "";
    suffices(own, &warned);
    CHECK(warned == "");
    own.free_bytes -= 128 * mebibyte;
    own.machine.slowing[0].free -= 1;
    suffices(own, &warned);
    CHECK(warned ==
          "warning: 270 MiB by memory.high leaves 260.0 MiB: the kernel slows down a run that needs 260.0 MiB\n");
    own.free_bytes -= 1;
    CHECK(suffices(own).starts_with("69 too little memory: 100.0 MiB a rank"));
    CHECK(suffices(own).find("(300 MiB by a parent):\nthe table") != std::string::npos);

    own.device_is_host = false;   // a GPU
    own.free_bytes = 200 * mebibyte, own.machine.all[0].free = 60 * mebibyte;
    CHECK(suffices(own).ends_with("of 200.0 MiB free"));
    own.free_bytes -= 1;
    CHECK(suffices(own).starts_with("69 too little memory: "));
    own.free_bytes += 1, own.machine.all[0].free -= 1;
    CHECK(suffices(own).starts_with("69 too little memory of the machine: its ranks keep 60.0 MiB for checkpoints"));
    own.bytes.machine = 0;
    CHECK(suffices(own).ends_with("of 200.0 MiB free"));
}

TEST_CASE("plan: --processes is the number of ranks that is planned, or an error says what would be") {
    auto fault = [](int processes, int pp, int tp, int dp) {
        Options o;
        o.layers = 6, o.heads = 8, o.channels = 64, o.seq_len = 32, o.micro_batch = 1;
        o.startup.ranks = processes, o.pp = pp, o.tp = tp, o.dp = dp;
        try {
            const int planned = planned_run(o).mesh.size();
            CHECK(planned == (processes > 0 ? processes : pp * tp * std::max(1, dp)));
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::usage);
            return words_of(error);
        }
        return std::string();
    };
    CHECK(fault(16, 1, 4, 4).empty());
    CHECK(fault(16, 1, 4, 0).empty());
    CHECK(fault(15, 3, 1, 0).empty());
    CHECK(fault(-1, 3, 2, 4).empty());
    CHECK_MESSAGE(
        fault(16, 1, 4, 8) ==
            "--processes 16 --tp 4 --dp 8: the layout has 32 ranks\n  Give --processes 32, or leave --dp out: 4 "
            "replicas of the model use all 16.",
        fault(16, 1, 4, 8));
    CHECK_MESSAGE(fault(16, 3, 1, 0) ==
                      "--processes 16 --pp 3: expected a multiple of 3\n  Give --processes 15 or 18, or a layout that "
                      "divides 16.",
                  fault(16, 3, 1, 0));
    CHECK(fault(2, 1, 4, 0).ends_with("Give --processes 4, or a layout that divides 2."));
    CHECK(fault(7, 1, 2, 2).ends_with("Give --processes 4, or another layout."));
}
