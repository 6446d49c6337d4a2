// The runtime calls on devices, errors, streams and events.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "llmc/base/check.h"
#include "llmc/cuda_on_cpu/checks/test_device.h"

using host::contains;
using host::TestDevice;

namespace {

void append(cudaStream_t stream, std::string& log, char letter) {
    host::enqueue(stream, host::operation(std::string(1, letter), {}, [&log, letter] { log += letter; }));
}

}   // namespace

TEST_CASE("runtime: one device with the limits of a GPU") {
    TestDevice device;
    int count = 0, current = -1, value = 0;
    CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
    CHECK(count == 1);
    CHECK(cudaSetDevice(0) == cudaSuccess);
    CHECK(cudaSetDevice(1) == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
    CHECK(cudaGetDevice(&current) == cudaSuccess);
    CHECK(current == 0);

    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, 1) == cudaErrorInvalidDevice);
    CHECK(cudaGetDeviceProperties(&p, 0) == cudaSuccess);
    CHECK(contains(p.name, "CPU stand-in on "));
    CHECK(p.sharedMemPerBlock == 48 * 1024);
    CHECK(p.sharedMemPerBlockOptin == 227 * 1024);
    CHECK(p.maxThreadsPerBlock == 1024);
    CHECK(p.warpSize == 32);
    CHECK(p.multiProcessorCount >= 1);
    CHECK(p.totalGlobalMem >= std::size_t{1} << 28);

    CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess);
    CHECK(value == 227 * 1024);
    CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0) == cudaSuccess);
    CHECK(value == 228 * 1024);
    CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxGridDimY, 0) == cudaSuccess);
    CHECK(value == 65535);
    CHECK(cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(120), 0) == cudaErrorInvalidValue);
    CHECK(cudaRuntimeGetVersion(&value) == cudaSuccess);
    CHECK(value >= 12000);
    CHECK(cudaDriverGetVersion(&value) == cudaSuccess);
    CHECK(value >= 12000);
}

TEST_CASE("runtime: errors have CUDA's names and texts, and are forgotten once read") {
    TestDevice device;
    cudaGetLastError();
    CHECK(std::string(cudaGetErrorName(cudaErrorIllegalAddress)) == "cudaErrorIllegalAddress");
    CHECK(std::string(cudaGetErrorString(cudaErrorIllegalAddress)) == "an illegal memory access was encountered");
    CHECK(std::string(cudaGetErrorString(cudaSuccess)) == "no error");
    CHECK(std::string(cudaGetErrorName(static_cast<cudaError_t>(1000))) == "unrecognized error code");
    CHECK(std::string(cudaGetErrorString(static_cast<cudaError_t>(1000))) == "unrecognized error code");
    CHECK(cudaSetDevice(5) == cudaErrorInvalidDevice);
    CHECK(cudaPeekAtLastError() == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("runtime: CUDA_CHECK shows what the stand-in knows") {
    TestDevice device;
    host::report_fault(cudaErrorIllegalAddress, "'gelu' (gelu.cu:9): block 3, thread 7");
    CHECK_THROWS_WITH_AS(CUDA_CHECK(cudaDeviceSynchronize()),
                         doctest::Contains("'gelu' (gelu.cu:9): block 3, thread 7"), Error);
}

TEST_CASE("runtime: streams with flags and priorities") {
    TestDevice device;
    int least = -1, greatest = -1, priority = 7;
    unsigned flags = 7;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess);
    CHECK(least == 0);
    CHECK(greatest < least);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -100) == cudaSuccess);
    CHECK(cudaStreamGetPriority(stream, &priority) == cudaSuccess);
    CHECK(priority == greatest);
    CHECK(cudaStreamGetFlags(stream, &flags) == cudaSuccess);
    CHECK(flags == cudaStreamNonBlocking);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(cudaStreamGetFlags(stream, &flags) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamCreateWithFlags(&stream, 0x40) == cudaErrorInvalidValue);
    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
    CHECK(cudaStreamGetFlags(stream, &flags) == cudaSuccess);
    CHECK(flags == cudaStreamDefault);
    CHECK(cudaStreamDestroy(nullptr) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamSynchronize(cudaStreamPerThread) == cudaErrorInvalidResourceHandle);
    CHECK(contains(cudaGetErrorString(cudaErrorInvalidResourceHandle), "per-thread default stream is not offered"));
}

TEST_CASE("runtime: a query says whether work is left, and lets polling programs go on") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    std::string log;
    CHECK(cudaStreamQuery(stream) == cudaSuccess);
    for (char letter : {'a', 'b', 'c'}) append(stream, log, letter);
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    int polls = 1;
    while (cudaStreamQuery(stream) == cudaErrorNotReady) polls++;
    CHECK(polls < 4);
    CHECK(log == "abc");
    CHECK(cudaGetLastError() == cudaSuccess);   // not ready is no failure
}

TEST_CASE("runtime: destroying a stream finishes its work") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    std::string log;
    append(stream, log, 'a');
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(log == "a");
    CHECK(cudaStreamDestroy(stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
}

TEST_CASE("runtime: an event wait keeps a stream back") {
    host::Checks checks = host::strict_checks();
    checks.random_order = true;
    for (checks.order_seed = 1; checks.order_seed < 30; checks.order_seed++) {
        TestDevice device(checks);
        cudaStream_t one = device.stream(), two = device.stream();
        cudaEvent_t event;
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
        std::string log;
        CHECK(cudaStreamWaitEvent(two, event, 0) == cudaSuccess);   // never recorded: no wait
        for (char letter : {'a', 'b', 'c'}) append(one, log, letter);
        CHECK(cudaEventRecord(event, one) == cudaSuccess);
        CHECK(cudaStreamWaitEvent(two, event, 0) == cudaSuccess);
        CHECK(cudaEventDestroy(event) == cudaSuccess);   // which the wait survives
        append(two, log, 'x');
        CHECK(cudaStreamSynchronize(two) == cudaSuccess);
        CHECK(log == "abcx");
    }
    TestDevice device;
    cudaEvent_t event;
    cudaEventCreate(&event);
    CHECK(cudaStreamWaitEvent(device.stream(), event, 0x10) == cudaErrorInvalidValue);
}

TEST_CASE("runtime: events are queried, waited for, and measure time") {
    TestDevice device;
    cudaStream_t stream = device.stream(), other = device.stream();
    cudaEvent_t start, stop, untimed;
    CHECK(cudaEventCreate(&start) == cudaSuccess);
    CHECK(cudaEventCreate(&stop) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming | cudaEventBlockingSync) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&untimed, cudaEventInterprocess) == cudaErrorInvalidValue);
    float milliseconds = -1;
    CHECK(cudaEventQuery(start) == cudaSuccess);   // never recorded: complete
    CHECK(cudaEventSynchronize(start) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&milliseconds, start, stop) == cudaErrorInvalidResourceHandle);

    std::string log;
    CHECK(cudaEventRecord(start, stream) == cudaSuccess);
    host::enqueue(stream, host::operation("wait", {}, [] {
                      auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
                      while (std::chrono::steady_clock::now() < end) {
                      }
                  }));
    CHECK(cudaEventRecord(stop, stream) == cudaSuccess);
    append(stream, log, 'a');
    CHECK(cudaEventElapsedTime(&milliseconds, start, stop) == cudaErrorNotReady);
    CHECK(cudaEventQuery(stop) == cudaErrorNotReady);
    CHECK(cudaEventSynchronize(stop) == cudaSuccess);
    CHECK(cudaEventQuery(stop) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&milliseconds, start, stop) == cudaSuccess);
    CHECK(milliseconds >= 3.0f);
    CHECK(milliseconds < 3000.0f);
    CHECK(cudaEventRecord(untimed, other) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(cudaEventElapsedTime(&milliseconds, start, untimed) == cudaErrorInvalidResourceHandle);

    CHECK(cudaEventRecord(stop, stream) == cudaSuccess);   // recorded again: not complete any more
    CHECK(cudaEventQuery(stop) != cudaErrorInvalidResourceHandle);
    CHECK(cudaEventDestroy(stop) == cudaSuccess);
    CHECK(cudaEventDestroy(stop) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventQuery(stop) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord(stop, stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamDestroy(other) == cudaSuccess);
    CHECK(cudaEventSynchronize(untimed) == cudaSuccess);   // though its stream is gone
}

TEST_CASE("runtime: the legacy default stream waits for blocking streams, and they for it") {
    host::Checks checks = host::strict_checks();
    checks.random_order = true;
    for (checks.order_seed = 1; checks.order_seed < 30; checks.order_seed++) {
        TestDevice device(checks);
        cudaStream_t one, two;
        cudaStreamCreate(&one);
        cudaStreamCreate(&two);
        std::string log;
        append(one, log, 'a');
        append(two, log, 'a');
        append(nullptr, log, 'b');
        append(two, log, 'c');
        append(cudaStreamLegacy, log, 'd');
        append(one, log, 'e');
        CHECK(cudaStreamSynchronize(one) == cudaSuccess);
        CHECK(log == "aabcde");
    }
}

TEST_CASE("runtime: a non-blocking stream does not wait for the legacy default stream") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    std::string log;
    bool released = false;
    host::Operation held{"held", __FILE__, __LINE__, {}, [&] { return released; }, {}, {}};
    host::enqueue(nullptr, std::move(held));
    append(stream, log, 'a');
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(log == "a");
    released = true;
    CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
}

TEST_CASE("runtime: host functions run in order, with device memory closed to them") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    struct State {
        std::string log;
        bool open = true;
        cudaError_t inner = cudaSuccess;
        host::Device* device = nullptr;
    } state;
    state.device = &host::device();
    append(stream, state.log, 'a');
    auto function = [](void* data) {
        State& mine = *static_cast<State*>(data);
        mine.log += 'h';
        mine.open = mine.device->memory.is_open();
        mine.inner = cudaStreamSynchronize(nullptr);
    };
    CHECK(cudaLaunchHostFunc(stream, function, &state) == cudaSuccess);
    append(stream, state.log, 'b');
    CHECK(state.log.empty());
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(state.log == "ahb");
    CHECK_FALSE(state.open);
    CHECK(state.inner == cudaErrorNotPermitted);
    CHECK(cudaLaunchHostFunc(stream, nullptr, &state) == cudaErrorInvalidValue);
}
