#include "llmc/process/ended_ranks.h"

#include <fstream>

#include "llmc/io/temporary_folder_testing.h"
#include "llmc/process/free_port_testing.h"
#include "llmc/process/startup_testing.h"

using namespace startup_testing;

namespace {

constexpr const char* kKilled = "75 rank 2 was killed by signal 9\n75 rank 0 ended with exit code 75\n";

// Starts a rank of three by itself, as launch.sh does, whose file of ended ranks has that content.
Outcome start_alone(const StartupOptions& options, const std::string& content) {
    TemporaryFolder folder;
    std::ofstream(folder / "ended") << content;
    Environment environment(
        {{"RANK", std::to_string(options.rank)}, {"WORLD_SIZE", "3"}, {"TRAIN_GPT_ENDED", folder / "ended"}});
    return start({options})[0];
}

}   // namespace

TEST_CASE("ended_ranks: whatever a rank waits for at start-up, it ends once launch.sh has seen another one end") {
    TemporaryFolder folder;
    for (const int rank : {0, 1}) {
        StartupOptions by_tcp = options_of(InitMethod::tcp, rank, 3), by_folder = options_of(InitMethod::fs, rank, 3),
                       by_name = by_tcp;
        by_tcp.address = text("127.0.0.1:", free_port());
        by_folder.folder = folder.path();
        by_name.address = "rank-0.example:1";
        by_name.resolver = [](const std::string&, int) { return Resolution{{}, "not yet"}; };
        for (const StartupOptions& options : {by_tcp, by_folder, by_name}) {
            if (rank == 0 && options.address == by_name.address) continue;   // rank 0 looks no name up
            const Outcome outcome = start_alone(options, kKilled);
            INFO(options.address, options.folder, ", rank ", rank);
            CHECK(outcome.exit_code == 75);
            CHECK(contains(outcome.error, "rank 2 was killed by signal 9 at start-up, before all had met"));
        }
    }
}

TEST_CASE("ended_ranks: a rank that ended well is one that never came; without a whole line none has ended") {
    Environment environment({{"RANK", "0"}, {"WORLD_SIZE", "3"}});
    StartupOptions options = options_of(InitMethod::tcp, 0, 3);
    options.address = text("127.0.0.1:", free_port());
    const Outcome outcome = start_alone(options, "0 rank 1 ended with exit code 0\n");
    CHECK(outcome.exit_code == 69);
    CHECK(contains(outcome.error, "rank 1 ended with exit code 0 at start-up"));
    TemporaryFolder folder;
    for (const std::string content : {"", "7", "75 rank 1 ended with ex", "rank\n"}) {
        std::ofstream(folder / "ended") << content;
        Environment launched({{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"TRAIN_GPT_ENDED", folder / "ended"}});
        CHECK_NOTHROW(throw_if_a_rank_has_ended(0, 3));
    }
    Environment without_file({{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"TRAIN_GPT_ENDED", folder / "none"}});
    CHECK_NOTHROW(throw_if_a_rank_has_ended(0, 3));
}

TEST_CASE("ended_ranks: processes that are not launch.sh's ranks of that number meet all the same") {
    TemporaryFolder folder;
    std::ofstream(folder / "ended") << kKilled;
    Environment environment({{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"TRAIN_GPT_ENDED", folder / "ended"}});
    std::vector<StartupOptions> all;
    for (int rank = 0; rank < 2; rank++) {
        all.push_back(options_of(InitMethod::fs, rank, 2));
        all.back().folder = folder.path();
    }
    check_all_met(start(all));
}
