// How processes find each other, with threads for processes; dev/test/startup_test.sh does it with processes.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "llmc/base/exit_code.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/process/address.h"
#include "llmc/process/free_port_testing.h"
#include "llmc/process/sockets.h"
#include "llmc/process/startup_testing.h"

using namespace startup_testing;

TEST_CASE("startup: what launchers put into the environment") {
    struct Row {
        std::vector<std::pair<std::string, std::string>> variables;
        LaunchEnvironment expected;
    };
    const Row rows[] = {
        {{}, {-1, -1, -1, -1, ""}},
        {{{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}},
         {3, 8, 1, 2, "torchrun"}},
        {{{"OMPI_COMM_WORLD_RANK", "5"},
          {"OMPI_COMM_WORLD_SIZE", "6"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}},
         {5, 6, 2, 3, "mpirun"}},
        {{{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}}, {0, 4, -1, -1, "mpirun"}},
        {{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "7"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "3"}},
         {7, 16, 3, -1, "srun"}},
        {{{"SLURM_STEP_ID", "2"},   // srun -n 4 in a job of 16 tasks: the step's number counts
          {"SLURM_PROCID", "3"},
          {"SLURM_NTASKS", "16"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_NTASKS_PER_NODE", "16"}},
         {3, 4, -1, -1, "srun"}},
        {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "0"}}, {-1, -1, -1, -1, ""}},   // sbatch
        {{{"SLURM_STEP_ID", "4294967290"},   // the shell of salloc, a step of Slurm's own
          {"SLURM_PROCID", "0"},
          {"SLURM_NTASKS", "16"},
          {"SLURM_STEP_NUM_TASKS", "1"}},
         {-1, -1, -1, -1, ""}},
        {{{"SLURM_PROCID", "0"},   // mpirun inside a Slurm job: mpirun's word counts
          {"SLURM_NTASKS", "16"},
          {"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"}},
         {1, 2, -1, -1, "mpirun"}},
    };
    for (const Row& row : rows) {
        Environment environment(row.variables);
        const LaunchEnvironment found = read_launch_environment();
        INFO(row.expected.launcher, " ", row.variables.size());
        CHECK(found.rank == row.expected.rank);
        CHECK(found.ranks == row.expected.ranks);
        CHECK(found.local_rank == row.expected.local_rank);
        CHECK(found.local_ranks == row.expected.local_ranks);
        CHECK(std::string(found.launcher) == row.expected.launcher);
    }
    for (const auto& [name, value] : {std::pair("RANK", "3"), std::pair("WORLD_SIZE", "4"),
                                      std::pair("WORLD_SIZE", "0"), std::pair("OMPI_COMM_WORLD_SIZE", "2")}) {
        const Variables one{{name, value}};
        Environment half(one);
        CHECK_THROWS_WITH_AS(read_launch_environment(), doctest::Contains(name), Error);
    }
    Environment environment({{"RANK", "three"}, {"WORLD_SIZE", "8"}});
    CHECK_THROWS_WITH_AS(read_launch_environment(), doctest::Contains("RANK=three"), Error);
}

TEST_CASE("startup: one process alone starts nothing") {
    Environment environment({});
    const Startup startup = start_up({});
    CHECK(startup.place.ranks == 1);
    CHECK(startup.rendezvous->all_gather("x") == std::vector<std::string>{"x"});
}

TEST_CASE("startup: tcp and fs, any order of coming") {
    Environment environment({});
    for (int ranks : {2, 5}) {
        TemporaryFolder folder;
        const std::string address = text("127.0.0.1:", free_port());
        for (InitMethod method : {InitMethod::tcp, InitMethod::fs, InitMethod::fs}) {   // fs twice in one folder
            std::vector<StartupOptions> all;
            for (int r = 0; r < ranks; r++) {
                all.push_back(options_of(method, r, ranks));
                all.back().address = address;
                all.back().folder = folder.path();
            }
            check_all_met(start(all));
        }
    }
}

TEST_CASE("startup: an address of IPv6, or localhost, and what torchrun says of it") {
    const int port = free_port();
    auto meet_at = [](const std::string& address) {
        std::vector<StartupOptions> all;
        for (int r = 0; r < 3; r++) {
            all.push_back(options_of(InitMethod::tcp, r, 3));
            all.back().address = address;
        }
        check_all_met(start(all));
    };
    std::vector<std::string> hosts{"localhost"};
    if (ListeningSocket(0, true).fds().size() == 2) hosts.insert(hosts.end(), {"::1", "[::1]"});
    for (const std::string& host : hosts) {
        INFO(host);
        Environment environment({{"MASTER_ADDR", host}, {"MASTER_PORT", std::to_string(port)}});
        meet_at("");
        if (host != "::1") meet_at(text(host, ":", port));
    }
}

TEST_CASE("startup: a name that does not resolve yet is awaited, whatever the resolver says of it") {
    Environment environment({});
    for (const char* reason : {"Name or service not known", "No address associated with hostname", "Try again"}) {
        INFO(reason);
        std::vector<StartupOptions> all;
        std::atomic<int> asked = 0;
        for (int r = 0; r < 2; r++) {
            all.push_back(options_of(InitMethod::tcp, r, 2));
            all.back().timeout_seconds = 600;
            all.back().address = text("localhost:", free_port());
        }
        all[1].address = all[0].address;
        all[1].resolver = [&](const std::string& host, int port) {
            return ++asked < 4 ? Resolution{{}, reason} : resolve(host, port);
        };
        std::vector<std::string> warnings;
        {
            const WarningListener listening([&](const std::string& warning) { warnings.push_back(warning); });
            check_all_met(start(all));
        }
        CHECK(asked == 4);
        REQUIRE(warnings.size() == 1);
        CHECK(warnings[0] ==
              text("rank 1: localhost does not resolve: ", reason, "; trying until --init-timeout 600 s"));
    }
}

TEST_CASE("startup: a name that never resolves is told with the resolver's reason when the time is over") {
    Environment environment({});
    StartupOptions alone = options_of(InitMethod::tcp, 1, 2);
    alone.timeout_seconds = 0.5;
    alone.address = "rank-0.job:29500";
    alone.resolver = [](const std::string&, int) { return Resolution{{}, "no such record"}; };
    const Outcome outcome = start({alone})[0];
    CHECK(outcome.exit_code == 69);
    CHECK(contains(outcome.error,
                   "rank 1 cannot reach rank 0 at rank-0.job:29500 within 0.5 s: rank-0.job does not "
                   "resolve: no such record"));
}

TEST_CASE("startup: local ranks by --gpus-per-node") {
    Environment environment({});
    const std::string address = text("127.0.0.1:", free_port());
    std::vector<StartupOptions> all;
    for (int r = 0; r < 4; r++) {
        all.push_back(options_of(InitMethod::tcp, r, 4));
        all.back().address = address;
        all.back().gpus_per_node = 2;
    }
    const std::vector<Outcome> outcomes = start(all);
    for (int r = 0; r < 4; r++) {
        CHECK(outcomes[static_cast<std::size_t>(r)].place.local_rank == r % 2);
        CHECK(outcomes[static_cast<std::size_t>(r)].place.local_ranks == 2);
    }
}

TEST_CASE("startup: only what the launcher did not say of local ranks is counted") {
    // threads share an environment, so rank 1 of two alone is a task of srun; rank 0 is told everything by flags
    auto local_of_rank_1 = [](const std::vector<std::pair<std::string, std::string>>& variables, bool by_flags) {
        Environment environment(variables);
        std::vector<StartupOptions> all;
        const std::string address = text("127.0.0.1:", free_port());
        for (int r = 0; r < 2; r++) {
            all.push_back(options_of(InitMethod::tcp, r == 0 || by_flags ? r : -1, r == 0 || by_flags ? 2 : -1));
            all.back().address = address;
        }
        const Outcome second = start(all)[1];
        CHECK(second.error == "");
        return std::pair(second.place.local_rank, second.place.local_ranks);
    };
    const std::pair<std::string, std::string> step{"SLURM_STEP_ID", "0"}, rank{"SLURM_PROCID", "1"},
        ranks{"SLURM_NTASKS", "2"};
    // in a container whose network counts it as a host of its own; here the count would be 1 of 2
    CHECK(local_of_rank_1({step, rank, ranks, {"SLURM_LOCALID", "0"}}, false) == std::pair(0, 2));
    CHECK(local_of_rank_1({step, rank, ranks, {"SLURM_LOCALID", "5"}}, false) == std::pair(5, 6));
    CHECK(local_of_rank_1({step, rank, ranks, {"SLURM_NTASKS_PER_NODE", "4"}}, false) == std::pair(1, 4));
    CHECK(local_of_rank_1({step, rank, ranks}, false) == std::pair(1, 2));
    // both started by hand within the one task of a step
    CHECK(local_of_rank_1({step, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_LOCALID", "0"}}, true) ==
          std::pair(1, 2));
}

TEST_CASE("startup: files that an earlier run left in the folder do no harm") {
    Environment environment({});
    TemporaryFolder folder;
    auto leave = [&](const std::string& name, const std::string& content) {
        std::ofstream(folder.path() + "/" + name) << content;
    };
    ListeningSocket other(0);   // of another run, which has the port by now
    std::atomic<bool> done = false;
    std::atomic<int> refused = 0;
    std::thread other_run([&] {
        while (!done) {
            std::optional<Socket> socket = other.accept(0.02);
            if (socket && socket->send("no to rank 1 of 3: it is of another run")) refused++;
        }
    });
    const std::string at_port = text(" old_word ", own_host_identity());
    for (const std::string& left :
         {text(free_port(), at_port), text(other.port(), at_port), std::string("x"), std::string()}) {
        leave("rank_0", left);
        std::vector<StartupOptions> all;
        for (int r = 0; r < 3; r++) {
            all.push_back(options_of(InitMethod::fs, r, 3));
            all.back().folder = folder.path();
        }
        std::vector<Outcome> others;
        std::thread early([&] { others = start({all[1], all[2]}); });
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        const Outcome first = start({all[0]})[0];
        early.join();
        others.insert(others.begin(), first);
        check_all_met(others);
        CHECK(std::filesystem::is_empty(folder.path()));   // its own are gone
    }
    done = true;
    other_run.join();
    CHECK(refused >= 2);
}

TEST_CASE("startup: who does not come is named") {
    Environment environment({});
    TemporaryFolder folder;
    const std::string address = text("127.0.0.1:", free_port());
    for (InitMethod method : {InitMethod::tcp, InitMethod::fs}) {
        std::vector<StartupOptions> all;
        for (int r : {0, 2}) {   // of four
            all.push_back(options_of(method, r, 4));
            all.back().address = address;
            all.back().folder = folder.path();
            all.back().timeout_seconds = 0.5;
        }
        const std::vector<Outcome> outcomes = start(all);
        CHECK(outcomes[0].exit_code == 69);
        CHECK(contains(outcomes[0].error, "of 4 ranks these have not come within 0.5 s: 1, 3"));
        CHECK(outcomes[1].exit_code == 69);
        CHECK(contains(outcomes[1].error, "1, 3"));
    }
    StartupOptions alone = options_of(InitMethod::tcp, 1, 2);
    alone.address = text("127.0.0.1:", free_port());
    alone.timeout_seconds = 0.3;
    const std::vector<Outcome> outcomes = start({alone});
    CHECK(outcomes[0].exit_code == 69);
    CHECK(contains(outcomes[0].error, "rank 1 cannot reach rank 0 at " + alone.address));
}

TEST_CASE("startup: ranks that were told other numbers are refused, strangers are not minded") {
    Environment environment({});
    const int port = free_port();
    std::vector<StartupOptions> all;
    for (int r = 0; r < 2; r++) {
        all.push_back(options_of(InitMethod::tcp, r, 2));
        all.back().address = text("127.0.0.1:", port);
    }
    StartupOptions wrong = options_of(InitMethod::tcp, 1, 3);
    wrong.address = all[0].address;
    Outcome refused;
    std::thread stranger([&] {
        std::optional<Socket> socket = connect_to_any({"127.0.0.1"}, port, 10);
        if (socket) socket->send("GET / HTTP/1.0");
        refused = start({wrong})[0];
        start({all[1]});   // the right one, late
    });
    const std::vector<Outcome> outcomes = start({all[0]});
    stranger.join();
    CHECK(outcomes[0].exit_code == 0);
    CHECK(refused.exit_code == 69);
    CHECK(contains(refused.error, "no to rank 1 of 3: it expects ranks 1 to 1 of 2"));
}

TEST_CASE("startup: where the secret of a run comes from") {
    auto secret = [](const Variables& variables) {
        Environment environment(variables);
        const RunSecret found = run_secret();
        return std::pair(found.text, found.can_be_guessed);
    };
    CHECK(secret({}) == std::pair<std::string, bool>("", true));
    CHECK(secret({{"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "3"}}) == std::pair<std::string, bool>("slurm 12", true));
    CHECK(secret({{"TORCHELASTIC_RUN_ID", "abc"}}) == std::pair<std::string, bool>("abc", true));
    CHECK(secret({{"TRAIN_GPT_SECRET", "own"}, {"TORCHELASTIC_RUN_ID", "abc"}}) ==
          std::pair<std::string, bool>("own", false));
}

TEST_CASE("startup: rank 0 warns once where others than this machine reach it and there is no secret") {
    auto warnings_at = [](const std::string& host, const Variables& variables) {
        Environment environment(variables);
        const int port = free_port();
        std::vector<StartupOptions> all;
        for (int r = 0; r < 3; r++) {
            all.push_back(options_of(InitMethod::tcp, r, 3));
            all.back().address = text(r == 0 ? host : "127.0.0.1", ":", port);
        }
        std::vector<std::string> warnings;
        const WarningListener listening([&](const std::string& warning) { warnings.push_back(warning); });
        check_all_met(start(all));
        for (const std::string& warning : warnings) {
            CHECK(contains(warning, text("rank 0: without TRAIN_GPT_SECRET whoever reaches port ", port)));
        }
        return warnings.size();
    };
    CHECK(warnings_at("0.0.0.0", {}) == 1);
    CHECK(warnings_at("0.0.0.0", {{"TORCHELASTIC_RUN_ID", "abc"}}) == 1);
    CHECK(warnings_at("0.0.0.0", {{"TRAIN_GPT_SECRET", "own"}}) == 0);
    CHECK(warnings_at("127.0.0.1", {}) == 0);
}

TEST_CASE("startup: settings that make no sense are refused") {
    Environment environment({});
    auto code_of = [](const StartupOptions& options) { return start({options})[0]; };
    CHECK(code_of(options_of(InitMethod::tcp, 0, 2)).exit_code == 64);   // no address
    CHECK(code_of(options_of(InitMethod::fs, 0, 2)).exit_code == 64);    // no folder
    CHECK(code_of(options_of(InitMethod::tcp, 2, 2)).exit_code == 64);
    StartupOptions bad_port = options_of(InitMethod::tcp, 0, 2);
    for (const char* address :
         {"host:", "host:0", "host:99999", "host:12x", ":29500", "::1:29500", "[::1", "a b:29500", "..:29500"}) {
        bad_port.address = address;
        CHECK(code_of(bad_port).exit_code == 64);
    }
    if (!built_with_mpi()) {
        const Outcome without = code_of(options_of(InitMethod::mpi, 0, 2));
        CHECK(without.exit_code == 64);
        CHECK(contains(without.error, "libopenmpi-dev"));
    }
}
