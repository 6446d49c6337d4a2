// For tests: runs a function on several ranks at once, each with a world, a stream and an arena.
//
// On a CPU the ranks are threads of this process, each with a device of its own. On GPUs, and on a CPU with
// TRAIN_GPT_TEST_RANKS=processes, they are processes: the test program is started by scripts/launch.sh (or mpirun),
// every process runs every test, and ranks beyond a test's number sit it out; where fewer were started than a test
// needs, it is passed over with a message.
//
// So a test must not rely on what another rank's body left in a variable: rank 0's is told to all with
// `from_first_process`, files go into a SharedFolder, and what one process does alone is done `in_first_process`. All
// of these are collective over the processes, those that sat out included.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/stand_in.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/process/world.h"

inline bool ranks_are_threads() {
    const char* asked = std::getenv("TRAIN_GPT_TEST_RANKS");
    return stand_in() != nullptr && (asked == nullptr || std::string(asked) != "processes");
}

// Holds what the body of a test works with on one rank. Failed requirements are thrown, and end up in the test's own
// thread.
struct TestRank {
    World& world;
    Communicator& all;
    Arena arena;
    cudaStream_t stream = nullptr;

    explicit TestRank(World& its_world) : world(its_world), all(*its_world.all()) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    ~TestRank() {
        cudaStreamSynchronize(stream);
        cudaStreamDestroy(stream);
    }
    TestRank(const TestRank&) = delete;
    TestRank& operator=(const TestRank&) = delete;

    int rank() const { return world.rank(); }
    int ranks() const { return world.ranks(); }

    template <class T>
    DeviceBuffer<T> on_device(const std::vector<T>& values) {
        DeviceBuffer<T> buffer = arena.allocate<T>("test/values", values.size());
        buffer.upload(values, stream);
        return buffer;
    }
    template <class... What>
    void require(bool condition, const What&... what) const {
        if (!condition) throw std::runtime_error(text("rank ", rank(), ": ", what...));
    }
};

using RankBody = std::function<void(TestRank&)>;

namespace on_ranks_detail {

// Returns "" or what the body threw.
inline std::string run(World& world, const RankBody& body) {
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

inline std::vector<std::string> run_threads(const MeshShape& mesh, const RankBody& body) {
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
inline Launched& launched() {
    static Launched processes;
    return processes;
}

inline void leave(const std::string& error) {
    std::cout.flush();   // the test's output: no destructor will
    launched().watchdog.leave(std::runtime_error(error));
}

// Returns true if enough processes were started.
inline bool can_run(const MeshShape& mesh) {
    if (ranks_are_threads() || mesh.size() <= launched().startup.place.ranks) return true;
    MESSAGE("passed over: needs scripts/launch.sh -n " << mesh.size());
    return false;
}

inline std::vector<std::string> run_processes(const MeshShape& mesh, const RankBody& body) {
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

}   // namespace on_ranks_detail

// Runs `body` on every rank of the mesh and checks that none threw. False where it was passed over.
inline bool on_ranks(const MeshShape& mesh, const RankBody& body) {
    using namespace on_ranks_detail;
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
inline bool on_ranks(int ranks, const RankBody& body) { return on_ranks(MeshShape{1, ranks, 1, 1}, body); }

// Returns the text of the process of rank 0. Collective: all have come so far when this returns.
inline std::string from_first_process(const std::string& own) {
    return ranks_are_threads() ? own : on_ranks_detail::launched().startup.rendezvous->from_rank_0(own);
}

// Runs `work` in one process alone: rank 0's. The others wait for its end.
inline void in_first_process(const std::function<void()>& work) {
    if (ranks_are_threads()) return work();
    try {
        if (on_ranks_detail::launched().startup.place.rank == 0) work();
    } catch (const std::exception& error) {
        on_ranks_detail::leave(error.what());
    }
    from_first_process("");
}

// A folder that all ranks of the following tests see.
class SharedFolder {
public:
    SharedFolder() {
        auto own = std::make_unique<TemporaryFolder>();
        path_ = from_first_process(own->path());
        if (path_ != own->path()) return;
        auto& keeper = ranks_are_threads() ? own_ : on_ranks_detail::launched().folders.emplace_back();
        keeper = std::move(own);
    }
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

private:
    std::string path_;
    std::unique_ptr<TemporaryFolder> own_;
};
