// For tests: runs a function on several ranks at once, each with a world, a stream and an arena.
//
// On a CPU the ranks are threads of this process, each with a device of its own. On GPUs they are processes: the test
// program is started by scripts/launch.sh (or mpirun), every process runs every test, and ranks beyond a test's number
// sit it out; a test of more ranks than were started is passed over with a message.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/parallel/world.h"

// Defined by the stand-in; null on a GPU.
extern "C" __attribute__((weak)) void stand_in_own_device(void (*body)(void*), void* context);

// What the body of a test works with on one rank. Failed requirements are thrown, and end up in the test's own thread.
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

// "" or what the body threw.
inline std::string run(World& world, const RankBody& body) {
    try {
        TestRank rank(world);
        body(rank);
        return "";
    } catch (const std::exception& error) {
        return error.what()[0] != '\0' ? error.what() : "an error without words";
    }
}

inline std::vector<std::string> run_threads(const MeshShape& mesh, const RankBody& body) {
    struct Place {
        const MeshShape& mesh;
        const RankBody& body;
        ncclUniqueId id;
        int rank;
        std::string error;
    };
    const ncclUniqueId id = Communicator::make_unique_id();
    std::vector<Place> places;
    for (int r = 0; r < mesh.size(); r++) places.push_back({mesh, body, id, r, ""});
    std::vector<std::thread> threads;
    for (Place& place : places) {
        threads.emplace_back([&place] {
            auto live = [](void* context) {
                Place& here = *static_cast<Place*>(context);
                try {
                    World world(here.mesh, here.rank, here.id);
                    here.error = run(world, here.body);
                } catch (const std::exception& error) {
                    here.error = error.what();
                }
            };
            try {
                stand_in_own_device(live, &place);
            } catch (const std::exception& error) {   // a fault that the body has not met
                if (place.error.empty()) place.error = error.what();
            }
        });
    }
    for (std::thread& t : threads) t.join();
    std::vector<std::string> errors;
    for (const Place& place : places) errors.push_back(place.error);
    return errors;
}

// The processes that the launcher started, kept for all tests. When one of them fails, the others end as well.
struct Launched {
    Startup startup;
    Control control;
    Launched() : startup(start_up({})), control(*startup.meeting, startup.place, {}) {
        open_device(startup.place.local_rank);
    }
};
inline Launched& launched() {
    static Launched processes;
    return processes;
}

inline void leave(const std::string& error) { launched().control.leave(std::runtime_error(error)); }

inline std::vector<std::string> run_processes(const MeshShape& mesh, const RankBody& body) {
    const Startup& here = launched().startup;
    const int rank = here.place.rank;
    std::vector<std::string> errors(static_cast<std::size_t>(mesh.size()));
    if (mesh.size() > here.place.ranks) {
        MESSAGE("passed over: needs scripts/launch.sh -n " << mesh.size());
        return errors;
    }
    const ncclUniqueId own = rank == 0 ? Communicator::make_unique_id() : ncclUniqueId{};
    const std::string bytes = here.meeting->from_rank_0(std::string(own.internal, sizeof own.internal));
    if (rank >= mesh.size()) return errors;
    ncclUniqueId id;
    bytes.copy(id.internal, sizeof id.internal);
    World world(mesh, rank, id);
    errors[static_cast<std::size_t>(rank)] = run(world, body);
    return errors;
}

}   // namespace on_ranks_detail

// What each rank's body threw, "" for nothing; of other processes' ranks nothing is known here.
inline std::vector<std::string> errors_on_ranks(const MeshShape& mesh, const RankBody& body) {
    return stand_in_own_device ? on_ranks_detail::run_threads(mesh, body) : on_ranks_detail::run_processes(mesh, body);
}

// Runs `body` on every rank of the mesh and checks that none threw.
inline void on_ranks(const MeshShape& mesh, const RankBody& body) {
    const std::vector<std::string> errors = errors_on_ranks(mesh, body);
    for (std::size_t r = 0; r < errors.size(); r++) {
        INFO("rank ", r, " of ", errors.size());
        CHECK(errors[r] == "");
        // the other processes would wait for this one
        if (!stand_in_own_device && !errors[r].empty()) on_ranks_detail::leave(errors[r]);
    }
}
inline void on_ranks(int ranks, const RankBody& body) { on_ranks(MeshShape{1, ranks, 1, 1}, body); }
