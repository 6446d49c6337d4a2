// Streams, events, faults: the deferred queues.
#include "llmc/host/queue.h"

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "llmc/host/checks.h"

namespace {

// An operation that appends to a log; with `turns`, it must be polled that often.
host::Operation logs(std::string& log, char letter, int turns = 1) {
    host::Operation operation{std::string(1, letter), __FILE__, __LINE__, {}, {}, {}, {}};
    operation.step = [&log, letter, turns]() mutable {
        if (--turns > 0) return false;
        log += letter;
        return true;
    };
    return operation;
}

}   // namespace

TEST_CASE("queue: operations are deferred and keep their order within a stream") {
    cudaStream_t stream;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    std::string log;
    for (char letter : {'a', 'b', 'c'}) REQUIRE(host::enqueue(stream, logs(log, letter, letter == 'b' ? 5 : 1)) == cudaSuccess);
    CHECK(log.empty());
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(log == "abc");
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}
