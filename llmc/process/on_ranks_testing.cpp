#include "llmc/process/on_ranks_testing.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <thread>
#include <utility>

#include "llmc/base/stand_in.h"

bool ranks_are_threads() {
    const char* asked = std::getenv("TRAIN_GPT_TEST_RANKS");
    return stand_in() != nullptr && (asked == nullptr || std::string(asked) != "processes");
}

namespace {

// Returns "" or what the body threw.
std::string run(World& world, const RankBody& body) {
    try {
        TestRank rank(world);
        body(rank);
        return "";
    } catch (const std::exception& error) {
        return error.what()[0] != '\0' ? error.what() : "an error without words";
    }
}

// Exchanges texts between threads.
class ThreadRendezvous : public Rendezvous {
public:
    struct Table {
        std::mutex mutex;
        std::condition_variable all_came;
        std::vector<std::string> coming, told;
        std::size_t came = 0;
        std::uint64_t round = 0;
    };
    ThreadRendezvous(int rank, int ranks, std::shared_ptr<Table> table)
        : Rendezvous(rank, ranks), table_(std::move(table)) {}

    std::vector<std::string> all_gather(const std::string& own) override {
        std::unique_lock lock(table_->mutex);
        const std::uint64_t round = table_->round;
        table_->coming.resize(static_cast<std::size_t>(ranks()));
        table_->coming[static_cast<std::size_t>(rank())] = own;
        if (++table_->came == table_->coming.size()) {
            table_->told = std::exchange(table_->coming, {});
            table_->came = 0;
            table_->round++;
            table_->all_came.notify_all();
        } else if (!table_->all_came.wait_for(lock, std::chrono::seconds(60), [&] { return table_->round > round; })) {
            throw std::runtime_error("a rank has not come");
        }
        return table_->told;   // until all have come again
    }

private:
    std::shared_ptr<Table> table_;
};

std::vector<std::string> run_threads(const MeshShape& mesh, const RankBody& body) {
    struct Rank {
        const MeshShape& mesh;
        const RankBody& body;
        ncclUniqueId id;
        int rank;
        std::shared_ptr<ThreadRendezvous::Table> table;
        std::string error;
    };
    const ncclUniqueId id = Communicator::make_unique_id();
    const auto table = std::make_shared<ThreadRendezvous::Table>();
    std::vector<Rank> ranks;
    for (int r = 0; r < mesh.size(); r++) ranks.push_back({mesh, body, id, r, table, ""});
    std::vector<std::thread> threads;
    for (Rank& own : ranks) {
        threads.emplace_back([&own] {
            auto live = [](Rank& here) {
                try {
                    World world(here.mesh, here.rank, here.id,
                                std::make_unique<ThreadRendezvous>(here.rank, here.mesh.size(), here.table));
                    here.error = run(world, here.body);
                } catch (const std::exception& error) {
                    here.error = error.what();
                }
            };
            try {
                stand_in()->on_own_device([&] { live(own); });
            } catch (const std::exception& error) {   // a fault that the body has not met
                if (own.error.empty()) own.error = error.what();
            }
        });
    }
    for (std::thread& t : threads) t.join();
    std::vector<std::string> errors;
    for (const Rank& own : ranks) errors.push_back(own.error);
    return errors;
}

// The processes that the launcher started, kept for all tests. When one of them fails, the others end as well.
struct Launched {
    Startup startup;
    std::vector<std::unique_ptr<TemporaryFolder>> folders;   // made by rank 0; removed after the others have ended
    Watchdog watchdog;
    Launched() : startup(start_up({})), watchdog(*startup.rendezvous, startup.place, {}) {
        open_device(startup.place.local_rank);
    }
};
Launched& launched() {
    static Launched processes;
    return processes;
}

void leave(const std::string& error) {
    std::cout.flush();   // the test's output: no destructor will
    launched().watchdog.leave(std::runtime_error(error));
}

// Returns true if enough processes were started.
bool can_run(const MeshShape& mesh) {
    if (ranks_are_threads() || mesh.size() <= launched().startup.place.ranks) return true;
    MESSAGE("passed over: needs scripts/launch.sh -n " << mesh.size());
    return false;
}

std::vector<std::string> run_processes(const MeshShape& mesh, const RankBody& body) {
    const Startup& here = launched().startup;
    const int rank = here.place.rank;
    std::vector<std::string> errors(static_cast<std::size_t>(mesh.size()));
    const ncclUniqueId own = rank == 0 ? Communicator::make_unique_id() : ncclUniqueId{};
    const std::string bytes = here.rendezvous->from_rank_0(std::string(own.internal, sizeof own.internal));
    if (rank == 0) launched().folders.push_back(std::make_unique<TemporaryFolder>());
    StartupOptions meeting;
    meeting.method = InitMethod::fs, meeting.rank = rank, meeting.ranks = mesh.size();
    meeting.folder = here.rendezvous->from_rank_0(rank == 0 ? launched().folders.back()->path() : "");
    if (rank >= mesh.size()) return errors;
    ncclUniqueId id;
    bytes.copy(id.internal, sizeof id.internal);
    World world(mesh, rank, id, start_up(meeting).rendezvous);
    errors[static_cast<std::size_t>(rank)] = run(world, body);
    return errors;
}

}   // namespace

bool on_ranks(const MeshShape& mesh, const RankBody& body) {
    if (!can_run(mesh)) return false;
    const std::vector<std::string> errors = ranks_are_threads() ? run_threads(mesh, body) : run_processes(mesh, body);
    for (std::size_t r = 0; r < errors.size(); r++) {
        INFO("rank ", r, " of ", errors.size());
        CHECK(errors[r] == "");
        // the other processes would wait for this one
        if (!ranks_are_threads() && !errors[r].empty()) leave(errors[r]);
    }
    return true;
}

std::string from_first_process(const std::string& own) {
    return ranks_are_threads() ? own : launched().startup.rendezvous->from_rank_0(own);
}

void in_first_process(const std::function<void()>& work) {
    if (ranks_are_threads()) return work();
    try {
        if (launched().startup.place.rank == 0) work();
    } catch (const std::exception& error) {
        leave(error.what());
    }
    from_first_process("");
}

SharedFolder::SharedFolder() {
    auto own = std::make_unique<TemporaryFolder>();
    path_ = from_first_process(own->path());
    if (path_ != own->path()) return;
    auto& keeper = ranks_are_threads() ? own_ : launched().folders.emplace_back();
    keeper = std::move(own);
}
