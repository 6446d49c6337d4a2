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

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/process/world.h"

bool ranks_are_threads();

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

// Runs `body` on every rank of the mesh and checks that none threw. False where it was passed over.
bool on_ranks(const MeshShape& mesh, const RankBody& body);
inline bool on_ranks(int ranks, const RankBody& body) { return on_ranks(MeshShape{1, ranks, 1, 1}, body); }

// Returns the text of the process of rank 0. Collective: all have come so far when this returns.
std::string from_first_process(const std::string& own);

// Runs `work` in one process alone: rank 0's. The others wait for its end.
void in_first_process(const std::function<void()>& work);

// A folder that all ranks of the following tests see.
class SharedFolder {
public:
    SharedFolder();
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

private:
    std::string path_;
    std::unique_ptr<TemporaryFolder> own_;
};
