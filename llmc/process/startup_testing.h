// For tests: the environment of a launcher, and ranks that find each other, with threads for processes.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/process/startup.h"

namespace startup_testing {

using Variables = std::vector<std::pair<std::string, std::string>>;

// Environment variables of a launcher while it lives; all those of other launchers are gone meanwhile.
class Environment {
public:
    explicit Environment(const Variables& variables) {
        for (const char* name : {"RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "LOCAL_WORLD_SIZE",
                                 "TRAIN_GPT_SECRET",
                                 "TRAIN_GPT_ENDED",
                                 "TORCHELASTIC_RUN_ID",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "OMPI_COMM_WORLD_RANK",
                                 "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 "PMI_RANK",
                                 "PMI_SIZE",
                                 "MPI_LOCALRANKID",
                                 "MPI_LOCALNRANKS",
                                 "SLURM_PROCID",
                                 "SLURM_NTASKS",
                                 "SLURM_LOCALID",
                                 "SLURM_NTASKS_PER_NODE",
                                 "SLURM_JOB_ID",
                                 "SLURM_STEP_ID",
                                 "SLURM_STEP_NUM_TASKS"}) {
            const char* value = std::getenv(name);
            if (value) before_.emplace_back(name, value);
            unsetenv(name);
        }
        for (const auto& [name, value] : variables) {
            setenv(name.c_str(), value.c_str(), 1);
            set_.push_back(name);
        }
    }
    ~Environment() {
        for (const std::string& name : set_) unsetenv(name.c_str());
        for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
    }

private:
    Variables before_;
    std::vector<std::string> set_;
};

inline StartupOptions options_of(InitMethod method, int rank, int ranks) {
    StartupOptions options;
    options.method = method;
    options.rank = rank;
    options.ranks = ranks;
    options.timeout_seconds = 600;
    return options;
}

// Starts the given ranks as threads. What each found out, or the error's code and message.
struct Outcome {
    ProcessInfo place;
    std::vector<std::string> heard;
    int exit_code = 0;
    std::string error;
};
inline std::vector<Outcome> start(const std::vector<StartupOptions>& all) {
    std::vector<Outcome> outcomes(all.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < all.size(); i++) {
        threads.emplace_back([&, i] {
            try {
                Startup startup = start_up(all[i]);
                outcomes[i].place = startup.place;
                outcomes[i].heard = startup.rendezvous->all_gather(text("rank ", startup.place.rank));
                outcomes[i].heard.push_back(
                    startup.rendezvous->from_rank_0(startup.place.rank == 0 ? "word" : "other"));
            } catch (const Error& error) {
                outcomes[i].exit_code = error.exit_code();
                outcomes[i].error = error.what();
            }
        });
    }
    for (std::thread& t : threads) t.join();
    return outcomes;
}

inline void check_all_met(const std::vector<Outcome>& outcomes) {
    const int ranks = static_cast<int>(outcomes.size());
    for (int r = 0; r < ranks; r++) {
        const Outcome& o = outcomes[static_cast<std::size_t>(r)];
        INFO("rank ", r, ": ", o.error);
        REQUIRE(o.exit_code == 0);
        CHECK(o.place.rank == r);
        CHECK(o.place.ranks == ranks);
        CHECK(o.place.local_rank == r);   // all are on this host
        CHECK(o.place.local_ranks == ranks);
        REQUIRE(o.heard.size() == outcomes.size() + 1);
        for (int other = 0; other < ranks; other++) {
            CHECK(o.heard[static_cast<std::size_t>(other)] == text("rank ", other));
        }
        CHECK(o.heard.back() == "word");
    }
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}   // namespace startup_testing
