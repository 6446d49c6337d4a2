#include "llmc/base/stream.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "llmc/base/arena.h"

namespace {

struct Look {
    const std::atomic<bool>* waits;   // flag of the host thread
    bool seen = false;
};

// Looks, as work of a stream, whether the host waits for it; on a GPU this runs on another thread, perhaps too early.
void look(void* data) {
    auto& at = *static_cast<Look*>(data);
    for (int i = 0; i < 60000 && !at.seen; i++) {
        at.seen = *at.waits;
        if (!at.seen) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

}   // namespace

// A watchdog names those of a run that stands still whose hosts do not wait.
TEST_CASE("host waits: a download is one from its copy on, which waits too where host memory is pageable") {
    const OwnedStream stream;
    Arena arena;
    const DeviceBuffer<int> buffer = arena.allocate<int>("numbers", 4);
    buffer.zero(stream.get());
    Look state{&host_waits};
    CUDA_CHECK(cudaLaunchHostFunc(stream.get(), look, &state));
    CHECK(buffer.download(stream.get()) == std::vector<int>(4, 0));
    CHECK(state.seen);
    CHECK(!host_waits);
}
