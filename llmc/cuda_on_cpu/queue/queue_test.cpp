// The deferred queues: order, interleaving, standstill, faults, recording. Streams and events as calls:
// runtime_test.cpp.
#include "llmc/cuda_on_cpu/queue/queue.h"

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <thread>

#include "llmc/base/error.h"
#include "llmc/cuda_on_cpu/checks/test_device.h"

using host::contains;
using host::Operation;
using host::TestDevice;

namespace {

// Appends a letter to a log; polled `turns` times before it is done.
Operation logs(std::string& log, char letter, int turns = 1) {
    Operation operation{std::string(1, letter), __FILE__, __LINE__, {}, {}, {}, {}};
    operation.step = [&log, letter, turns]() mutable {
        if (--turns > 0) return false;
        log += letter;
        return true;
    };
    return operation;
}

// Never done.
Operation stuck(const char* name, const char* reason) {
    Operation operation{name, "stuck.cu", 12, {}, [] { return false; }, {}, {}};
    if (reason) operation.waiting = [reason] { return std::string(reason); };
    return operation;
}

std::string interleaving(std::uint64_t seed) {
    host::Checks checks = host::strict_checks();
    checks.random_order = true;
    checks.order_seed = seed;
    TestDevice device(checks);
    std::string log;
    cudaStream_t streams[] = {device.stream(), device.stream(), device.stream()};
    for (int i = 0; i < 8; i++)
        for (int s = 0; s < 3; s++)
            REQUIRE(host::enqueue(streams[s], logs(log, static_cast<char>('a' + s))) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    return log;
}

}   // namespace

TEST_CASE("queue: operations are deferred and keep their order within a stream") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    std::string log;
    for (char letter : {'a', 'b', 'c'})
        REQUIRE(host::enqueue(stream, logs(log, letter, letter == 'b' ? 5 : 1)) == cudaSuccess);
    CHECK(log.empty());
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(log == "abc");
}

TEST_CASE("queue: streams advance in turn while the host waits for one of them") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream();
    std::string log;
    for (char letter : {'a', 'b'}) host::enqueue(one, logs(log, letter));
    for (char letter : {'x', 'y', 'z'}) host::enqueue(two, logs(log, letter));
    CHECK(cudaStreamSynchronize(one) == cudaSuccess);
    CHECK(contains(log, "axb"));
    CHECK(cudaStreamSynchronize(two) == cudaSuccess);
    CHECK(log == "axbyz");
}

TEST_CASE("queue: an exchange across streams that eager execution could not finish") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream();
    bool sent = false, received = false;
    Operation receive{"receive", __FILE__, __LINE__, {}, [&] { return received = sent; }, {}, {}};
    host::enqueue(one, std::move(receive));
    host::enqueue(two, host::operation("send", {}, [&] { sent = true; }));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(received);
}

TEST_CASE("queue: random order depends on the seed alone, and keeps each stream's own order") {
    const std::string first = interleaving(1);
    CHECK(interleaving(1) == first);
    int different = 0;
    for (std::uint64_t seed = 2; seed < 12; seed++) different += interleaving(seed) != first;
    CHECK(different >= 9);
    CHECK(first.size() == 24);
}

TEST_CASE("queue: a full stream makes the host wait, as a launch on a GPU does") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    int done = 0;
    for (std::size_t i = 0; i < host::queue_limit; i++)
        host::enqueue(stream, host::operation("count", {}, [&] { done++; }));
    CHECK(done == 0);
    host::enqueue(stream, host::operation("count", {}, [&] { done++; }));
    CHECK(done >= static_cast<int>(host::queue_limit / 2));
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(done == static_cast<int>(host::queue_limit) + 1);
}

TEST_CASE("queue: a standstill is an error that lists what each stream's head waits for") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream(), three = device.stream();
    cudaEvent_t event;
    cudaEventCreate(&event);
    host::enqueue(one, stuck("all-reduce", "waits for rank 3, bytes 10 of 20"));
    cudaEventRecord(event, one);
    cudaStreamWaitEvent(two, event);
    std::string log;
    host::enqueue(three, logs(log, 'a'));
    CHECK(cudaStreamSynchronize(two) == cudaErrorLaunchTimeout);
    CHECK(log == "a");
    const std::string message = host::last_fault();
    CHECK(contains(message, "stream 1: 'all-reduce' (stuck.cu:12), 2 queued, waits for rank 3, bytes 10 of 20"));
    CHECK(contains(message, "stream 2: 'cudaStreamWaitEvent'"));
    CHECK(contains(message, "waits for an event recorded in stream 1"));
    CHECK_FALSE(contains(message, "stream 3"));
}

TEST_CASE("queue: a step that moves bytes without finishing is not stuck") {
    TestDevice device;   // which gives up after 0.05 s
    cudaStream_t stream = device.stream();
    const auto start = std::chrono::steady_clock::now();
    Operation slow{"slow", __FILE__, __LINE__, {}, {}, {}, {}};
    slow.step = [&] {
        host::note_progress();
        return std::chrono::steady_clock::now() - start > std::chrono::milliseconds(120);
    };
    host::enqueue(stream, std::move(slow));
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

TEST_CASE("queue: a fault is sticky, drops queued work, and keeps its first message") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    std::string log;
    host::enqueue(stream,
                  host::operation("bad", {}, [] { host::report_fault(cudaErrorIllegalAddress, "first cause"); }));
    auto held = std::make_shared<int>(0);
    host::enqueue(stream, host::operation("dropped", {}, [&log, held] { log += 'a'; }));
    CHECK(host::last_fault().empty());
    CHECK(held.use_count() == 2);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    CHECK(log.empty());
    CHECK(held.use_count() == 1);
    host::report_fault(cudaErrorAssert, "second cause");
    CHECK(host::last_fault() == "first cause\nand then: second cause");

    // every later call says so
    void* pointer = nullptr;
    CHECK(cudaMalloc(&pointer, 16) == cudaErrorIllegalAddress);
    CHECK(host::enqueue(stream, logs(log, 'b')) == cudaErrorIllegalAddress);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
    CHECK(std::string(cudaGetErrorString(cudaErrorIllegalAddress)) ==
          "an illegal memory access was encountered: first cause\nand then: second cause");

    // a test may forget it and go on
    CHECK(contains(host::take_fault(), "first cause"));
    CHECK(host::enqueue(stream, logs(log, 'c')) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(log == "c");
}

TEST_CASE("queue: an exception in an operation becomes a fault that names the operation") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    host::enqueue(stream, host::operation(
                              "library call", {}, [] { throw std::runtime_error("no such primitive"); }, "x.cu", 3));
    CHECK(cudaStreamSynchronize(stream) == cudaErrorUnknown);
    CHECK(host::last_fault() == "'library call' (x.cu:3): no such primitive");
}

TEST_CASE("queue: the runtime may not be called inside an operation") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    cudaError_t inner = cudaSuccess, inner_enqueue = cudaSuccess, inner_free = cudaSuccess;
    host::enqueue(stream, host::operation("nested", {}, [&] {
                      inner = cudaDeviceSynchronize();
                      inner_enqueue = host::enqueue(stream, host::operation("inner", {}));
                      inner_free = cudaStreamDestroy(stream);
                  }));
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(inner == cudaErrorNotPermitted);
    CHECK(inner_enqueue == cudaErrorNotPermitted);
    CHECK(inner_free == cudaErrorNotPermitted);
    CHECK(cudaStreamQuery(stream) == cudaSuccess);
}

TEST_CASE("queue: a stream that does not exist is refused") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(host::enqueue(stream, host::operation("late", {})) == cudaErrorInvalidResourceHandle);
    CHECK(host::enqueue(cudaStreamPerThread, host::operation("per thread", {})) == cudaErrorInvalidResourceHandle);
}

TEST_CASE("queue: threads with devices of their own do not disturb each other") {
    TestDevice outer;
    auto rank = [](int value, int* result, bool fails) {
        host::Device own;
        host::BindDevice bind(own);
        cudaStream_t stream;
        cudaStreamCreate(&stream);
        int* pointer = nullptr;
        cudaMalloc(&pointer, sizeof(int));
        for (int i = 0; i < 200; i++) {
            host::enqueue(stream,
                          host::operation("add", {{pointer, sizeof(int), true}}, [=] { *pointer = value + i; }));
            cudaStreamSynchronize(stream);
        }
        if (fails) host::report_fault(cudaErrorAssert, "this rank only");
        cudaMemcpyAsync(result, pointer, sizeof(int), cudaMemcpyDeviceToHost, stream);
    };
    int results[3] = {-1, -1, -1};
    std::thread threads[3];
    for (int i = 0; i < 3; i++) threads[i] = std::thread(rank, 1000 * i, &results[i], i == 1);
    for (auto& thread : threads) thread.join();
    CHECK(results[0] == 199);
    CHECK(results[1] == -1);   // its fault kept the copy from happening
    CHECK(results[2] == 2199);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("queue: another thread may enqueue while one waits") {
    TestDevice device;
    cudaStream_t stream = device.stream(), other = device.stream();
    bool arrived = false;
    Operation waits{"waits", __FILE__, __LINE__, {}, [&] { return arrived; }, {}, {}};
    host::enqueue(stream, std::move(waits));
    std::thread second([&, bound = &host::device()] {
        host::BindDevice bind(*bound);
        host::enqueue(other, host::operation("arrive", {}, [&] { arrived = true; }));
    });
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    second.join();
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("queue: a recorder sees operations, events and waits in the program's order") {
    struct Log : host::Recorder {
        std::string text_;
        void operation(int stream, const Operation& op) override { text_ += text(op.name, "@", stream, " "); }
        void event_recorded(int stream, std::uint64_t record) override {
            text_ += text("record", record, "@", stream, " ");
        }
        void event_awaited(int stream, std::uint64_t record) override {
            text_ += text("await", record, "@", stream, " ");
        }
        void host_waited_for_stream(int stream) override { text_ += text("host:", stream, " "); }
        void host_waited_for_event(std::uint64_t record) override { text_ += text("host:e", record, " "); }
    } log;
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream();
    cudaEvent_t event;
    cudaEventCreate(&event);
    host::set_recorder(&log);
    host::enqueue(one, host::operation("a", {}));
    cudaEventRecord(event, one);
    cudaStreamWaitEvent(two, event);
    host::enqueue(two, host::operation("b", {}));
    cudaEventSynchronize(event);
    cudaStreamSynchronize(two);
    host::set_recorder(nullptr);
    host::enqueue(two, host::operation("unseen", {}));
    CHECK(log.text_ == "a@1 record1@1 await1@2 b@2 host:e1 host:2 ");
}
