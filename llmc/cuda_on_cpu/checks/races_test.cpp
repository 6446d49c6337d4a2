// The race detector: what it must report, what it must not, and a comparison with reachability in random programs.
#include "llmc/cuda_on_cpu/checks/races.h"

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/kernels/launch.cuh"

using host::Access;
using host::contains;
using host::TestDevice;

namespace {

cudaError_t touch(cudaStream_t stream, const char* name, const void* begin, std::size_t bytes, bool write,
                  int line = 1) {
    return host::enqueue(stream, host::operation(
                                     name, {{begin, bytes, write}}, [] {}, "kernels.cu", line));
}

template <class T>
__global__ void scale(T* out, const T* in, int n) {
    int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = 2 * in[i];
}

void launch_scale(float* out, const float* in, int n, cudaStream_t stream) {
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(float);
    launch(scale<float>,
           Launch{ceil_div(static_cast<unsigned>(n), 64u), 64, 0, stream}.writes(out, bytes).reads(in, bytes), out, in,
           n);
}

}   // namespace

TEST_CASE("races: kernels declare at their launch; with the event wait they run, without it both are named") {
    for (bool waits : {true, false}) {
        TestDevice device;
        cudaStream_t one = device.stream(), two = device.stream();
        cudaEvent_t event;
        cudaEventCreate(&event);
        float* a = device.allocate<float>(100);
        float* b = device.allocate<float>(100);
        const std::vector<float> ones(100, 1.0f);
        std::vector<float> result(100);
        cudaMemcpyAsync(a, ones.data(), 400, cudaMemcpyHostToDevice, one);
        launch_scale(b, a, 100, one);
        cudaEventRecord(event, one);
        if (waits) {
            cudaStreamWaitEvent(two, event);
            launch_scale(a, b, 100, two);
            CHECK(cudaMemcpyAsync(result.data(), a, 400, cudaMemcpyDeviceToHost, two) == cudaSuccess);
            CHECK(result[99] == 4.0f);
        } else {
            CHECK_THROWS_WITH(launch_scale(a, b, 100, two), doctest::Contains("race: "));
            CHECK(contains(host::last_fault(), "scale"));
            CHECK(contains(host::last_fault(), "an event wait or a synchronisation is missing"));
        }
    }
}

// A training loop's two streams: batches are uploaded into one of two buffers while the step before is computed.
// Each buffer needs two waits: the step for its upload, the upload for the step that read the buffer last.
TEST_CASE("races: a loop that uploads batches ahead needs both of its waits; without one both sides are named") {
    enum class Missing { nothing, upload_done, buffer_free };
    for (Missing missing : {Missing::nothing, Missing::upload_done, Missing::buffer_free}) {
        TestDevice device;
        cudaStream_t copies = device.stream(), compute = device.stream();
        cudaEvent_t uploaded[2], computed[2];
        float* batches[2];
        for (int i = 0; i < 2; i++) {
            cudaEventCreate(&uploaded[i]);
            cudaEventCreate(&computed[i]);
            batches[i] = device.allocate<float>(100);
        }
        float* result = device.allocate<float>(100);
        auto train = [&] {
            for (int step = 0; step < 6; step++) {
                const int i = step % 2;
                const std::vector<float> batch(100, static_cast<float>(step));
                if (missing != Missing::buffer_free) cudaStreamWaitEvent(copies, computed[i]);
                CUDA_CHECK(cudaMemcpyAsync(batches[i], batch.data(), 400, cudaMemcpyHostToDevice, copies));
                cudaEventRecord(uploaded[i], copies);
                if (missing != Missing::upload_done) cudaStreamWaitEvent(compute, uploaded[i]);
                launch_scale(result, batches[i], 100, compute);
                cudaEventRecord(computed[i], compute);
            }
            CUDA_CHECK(cudaStreamSynchronize(compute));
        };
        if (missing == Missing::nothing) {
            CHECK_NOTHROW(train());
        } else {
            CHECK_THROWS_WITH(train(), doctest::Contains("race: "));
            CHECK(contains(host::last_fault(), "scale"));
            CHECK(contains(host::last_fault(), "cudaMemcpyAsync"));
        }
    }
}

TEST_CASE("races: a missing event wait is reported by both names, places and the range") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream();
    char* memory = device.allocate<char>(4096);
    device->memory.name(memory, "activations/ln1");
    CHECK(touch(one, "layernorm_forward", memory, 1024, true, 10) == cudaSuccess);
    CHECK(touch(two, "gelu_forward", memory + 512, 1024, false, 20) == cudaErrorLaunchFailure);
    CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
    const std::string message = host::last_fault();
    CHECK(contains(message, "'layernorm_forward' (kernels.cu:10, stream 1) writes"));
    CHECK(contains(message, "'gelu_forward' (kernels.cu:20, stream 2) reads 512 bytes"));
    CHECK(contains(message, "byte 512 of device memory 'activations/ln1'"));
    CHECK(contains(message, "an event wait or a synchronisation is missing"));
}

TEST_CASE("races: it is found although the run gives the right result") {
    TestDevice device;   // streams in order of creation: the write happens first
    cudaStream_t one = device.stream(), two = device.stream();
    int* value = device.allocate<int>(1);
    int* copy = device.allocate<int>(1);
    CHECK(cudaMemsetAsync(value, 0, sizeof(int), one) == cudaSuccess);
    CHECK(cudaMemcpyAsync(copy, value, sizeof(int), cudaMemcpyDeviceToDevice, two) == cudaErrorLaunchFailure);
    CHECK(contains(host::last_fault(), "'cudaMemsetAsync'"));
    CHECK(contains(host::last_fault(), "'cudaMemcpyAsync'"));
    CHECK(contains(host::last_fault(), "races_test.cpp"));
}

TEST_CASE("races: an event wait, also through a third stream, orders") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream(), three = device.stream();
    cudaEvent_t first, second;
    cudaEventCreate(&first);
    cudaEventCreate(&second);
    char* memory = device.allocate<char>(256);
    CHECK(touch(one, "write", memory, 256, true) == cudaSuccess);
    cudaEventRecord(first, one);
    cudaStreamWaitEvent(two, first);
    cudaEventRecord(second, two);
    cudaStreamWaitEvent(three, second);
    CHECK(touch(three, "write again", memory, 256, true) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("races: a wait orders only what was recorded before it") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream();
    cudaEvent_t event;
    cudaEventCreate(&event);
    char* memory = device.allocate<char>(256);
    cudaEventRecord(event, one);   // too early: the write comes later
    touch(one, "write", memory, 256, true);
    cudaStreamWaitEvent(two, event);
    CHECK(touch(two, "read", memory, 256, false) == cudaErrorLaunchFailure);
    host::take_fault();

    // a wait refers to the record it saw, not to a later one of the same event
    touch(one, "write", memory, 256, true);
    cudaEventRecord(event, one);
    cudaStreamWaitEvent(two, event);
    touch(one, "write later", memory + 128, 128, true);
    cudaEventRecord(event, one);
    CHECK(touch(two, "read first half", memory, 128, false) == cudaSuccess);
    CHECK(touch(two, "read all", memory, 256, false) == cudaErrorLaunchFailure);
    CHECK(contains(host::last_fault(), "'write later'"));
}

TEST_CASE("races: what the host waited for is ordered before what it asks for next") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream();
    cudaEvent_t event;
    cudaEventCreate(&event);
    char* memory = device.allocate<char>(256);
    SUBCASE("stream") {
        touch(one, "write", memory, 256, true);
        cudaStreamSynchronize(one);
    }
    SUBCASE("stream query") {
        touch(one, "write", memory, 256, true);
        while (cudaStreamQuery(one) == cudaErrorNotReady) {
        }
    }
    SUBCASE("event") {
        touch(one, "write", memory, 256, true);
        cudaEventRecord(event, one);
        cudaEventSynchronize(event);
    }
    SUBCASE("event query") {
        touch(one, "write", memory, 256, true);
        cudaEventRecord(event, one);
        while (cudaEventQuery(event) == cudaErrorNotReady) {
        }
    }
    SUBCASE("device") {
        touch(one, "write", memory, 256, true);
        cudaDeviceSynchronize();
    }
    SUBCASE("a copy to pageable memory") {
        char host_memory[256];
        touch(one, "write", memory, 256, true);
        cudaMemcpyAsync(host_memory, memory, 256, cudaMemcpyDeviceToHost, one);
    }
    CHECK(touch(two, "write again", memory, 256, true) == cudaSuccess);
}

TEST_CASE("races: waiting for something else does not help") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream(), three = device.stream();
    char* memory = device.allocate<char>(256);
    touch(one, "write", memory, 256, true);
    cudaStreamSynchronize(three);
    SUBCASE("other stream") {}
    SUBCASE("the destruction of another stream") { cudaStreamDestroy(three); }
    SUBCASE("a copy from pageable memory, though it is read at once") {
        char* other = device.allocate<char>(8);
        char host_memory[8] = {};
        cudaMemcpyAsync(other, host_memory, 8, cudaMemcpyHostToDevice, one);
    }
    SUBCASE("freeing") { cudaFree(device.allocate<char>(8)); }
    CHECK(touch(two, "write again", memory, 256, true) == cudaErrorLaunchFailure);
}

TEST_CASE("races: write after read, write after write; reads side by side are fine") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream(), three = device.stream();
    char* memory = device.allocate<char>(1024);
    touch(one, "read 1", memory, 1024, false);
    touch(two, "read 2", memory, 1024, false);
    CHECK(touch(three, "read 3", memory + 1, 7, false) == cudaSuccess);
    CHECK(touch(one, "write", memory, 4, true) == cudaErrorLaunchFailure);
    CHECK(contains(host::take_fault(), "'read 2'"));
    touch(one, "write 1", memory + 100, 10, true);
    CHECK(touch(two, "write 2", memory + 110, 10, true) == cudaSuccess);   // they only touch
    CHECK(touch(three, "write 3", memory + 105, 10, true) == cudaErrorLaunchFailure);
    CHECK(contains(host::last_fault(), "'write 1'"));
    CHECK(contains(host::last_fault(), "5 bytes"));
}

TEST_CASE("races: one operation may read and write the same bytes; one stream is in order with itself") {
    TestDevice device;
    cudaStream_t one = device.stream();
    char* memory = device.allocate<char>(64);
    for (int i = 0; i < 3; i++)
        CHECK(host::enqueue(one, host::operation("in place", {{memory, 64, false}, {memory, 64, true}})) ==
              cudaSuccess);
}

TEST_CASE("races: the legacy default stream and blocking streams are in order, non-blocking ones are not") {
    TestDevice device;
    cudaStream_t blocking, free_running = device.stream();
    cudaStreamCreate(&blocking);
    char* memory = device.allocate<char>(64);
    touch(blocking, "write", memory, 64, true);
    CHECK(touch(nullptr, "read", memory, 64, false) == cudaSuccess);
    CHECK(touch(blocking, "write again", memory, 64, true) == cudaSuccess);
    CHECK(touch(free_running, "read", memory, 64, false) == cudaErrorLaunchFailure);
}

TEST_CASE("races: memory given back and allocated again has no past") {
    TestDevice device(host::parse_checks("races"));   // without the memory check, addresses are used again at once
    cudaStream_t one = device.stream(), two = device.stream();
    char* before = device.allocate<char>(64);
    touch(one, "write", before, 64, true);
    CHECK(cudaFree(before) == cudaSuccess);   // which performs the work, but the host may conclude nothing from that
    char* after = device.allocate<char>(64);
    CHECK(after == before);
    CHECK(touch(two, "write", after, 64, true) == cudaSuccess);
}

TEST_CASE("races: two copies into the same pinned memory") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream();
    char* memory = device.allocate<char>(128);
    void* pinned = nullptr;
    REQUIRE(cudaMallocHost(&pinned, 64) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned, memory, 64, cudaMemcpyDeviceToHost, one) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned, memory + 64, 64, cudaMemcpyDeviceToHost, two) == cudaErrorLaunchFailure);
    CHECK(contains(host::last_fault(), "pinned host memory"));
    cudaFreeHost(pinned);
}

TEST_CASE("races: pinned memory changed by the host before its copy is done") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    char* memory = device.allocate<char>(64);
    char* pinned = nullptr;
    REQUIRE(cudaMallocHost(&pinned, 64) == cudaSuccess);
    pinned[63] = 1;
    CHECK(cudaMemcpyAsync(memory, pinned, 64, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    pinned[63] = 2;
    CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
    CHECK(contains(host::take_fault(), "the host changed the pinned source"));

    // but an earlier copy may fill it
    cudaMemsetAsync(memory, 3, 64, stream);
    cudaMemcpyAsync(pinned, memory, 64, cudaMemcpyDeviceToHost, stream);
    CHECK(cudaMemcpyAsync(memory, pinned, 64, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(pinned[5] == 3);
    cudaFreeHost(pinned);
}

TEST_CASE("races: numbers of destroyed streams are used again without confusing them") {
    TestDevice device;
    char* memory = device.allocate<char>(64);
    for (int i = 0; i < 100; i++) {
        cudaStream_t one = device.stream(), two = device.stream();
        touch(one, "write", memory, 64, true);
        CHECK(cudaStreamSynchronize(one) == cudaSuccess);
        CHECK(touch(two, "write", memory, 64, true) == cudaSuccess);
        cudaStreamSynchronize(two);
        cudaStreamDestroy(one);
        cudaStreamDestroy(two);
    }
    CHECK(device->races.clock(0).size() <= 4);
    // work of a stream destroyed without a wait still races
    cudaStream_t one = device.stream(), two = device.stream();
    touch(one, "write", memory, 64, true);
    cudaStreamDestroy(one);
    cudaStream_t three = device.stream();
    CHECK(touch(three, "write", memory, 64, true) == cudaErrorLaunchFailure);
    (void)two;
}

// Random programs on a few streams, events and bytes. The reference draws every order as an edge between operations and
// asks for a path; it knows nothing of clocks or intervals.
TEST_CASE("races: the verdict equals reachability in random programs") {
    std::mt19937 random(7);
    auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    int racing = 0;
    for (int program = 0; program < 300; program++) {
        TestDevice device;
        constexpr int stream_count = 3, event_count = 2, bytes = 12;
        cudaStream_t streams[stream_count];
        cudaEvent_t events[event_count];
        for (auto& s : streams) s = device.stream();
        for (auto& e : events) cudaEventCreate(&e);
        char* memory = device.allocate<char>(bytes);

        struct Node {
            std::vector<int> before;   // direct predecessors
            int begin = 0, end = 0;
            bool write = false;
        };
        std::vector<Node> nodes;
        int last[stream_count] = {-1, -1, -1}, record[event_count] = {-1, -1}, host = -1;
        auto add = [&](std::vector<int> before) {
            std::erase(before, -1);
            nodes.push_back({before, 0, 0, false});
            return static_cast<int>(nodes.size()) - 1;
        };
        auto reaches = [&](int from, int to) {
            std::vector<int> open{to};
            while (!open.empty()) {
                int node = open.back();
                open.pop_back();
                if (node == from) return true;
                for (int p : nodes[static_cast<std::size_t>(node)].before)
                    if (p >= from) open.push_back(p);
            }
            return false;
        };
        for (int step = 0; step < 16; step++) {
            const int s = draw(stream_count), e = draw(event_count), what = draw(10);
            if (what < 4) {
                int node = last[s] = add({last[s], host});
                Node& mine = nodes[static_cast<std::size_t>(node)];
                mine.begin = draw(bytes);
                mine.end = mine.begin + 1 + draw(std::min(4, bytes - mine.begin));
                mine.write = draw(3) == 0;
                bool races = false;
                for (int other = 0; other < node; other++) {
                    const Node& theirs = nodes[static_cast<std::size_t>(other)];
                    bool overlap = theirs.begin < mine.end && mine.begin < theirs.end;
                    races |= overlap && (mine.write || theirs.write) && !reaches(other, node);
                }
                cudaError_t status = touch(streams[s], "op", memory + mine.begin,
                                           static_cast<std::size_t>(mine.end - mine.begin), mine.write);
                REQUIRE((status != cudaSuccess) == races);
                racing += races;
                if (races) break;
            } else if (what < 6) {
                cudaEventRecord(events[e], streams[s]);
                record[e] = add({last[s], host});
            } else if (what < 9) {
                cudaStreamWaitEvent(streams[s], events[e]);
                last[s] = add({last[s], record[e], host});
            } else if (draw(2)) {
                cudaStreamSynchronize(streams[s]);
                host = add({host, last[s]});
            } else {
                cudaEventSynchronize(events[e]);
                host = add({host, record[e]});
            }
        }
    }
    CHECK(racing > 60);
    CHECK(racing < 240);   // both verdicts were tried often
}

TEST_CASE("races: a long program does not fill memory with its past") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream();
    char* memory = device.allocate<char>(1 << 20);
    char* never_awaited = device.allocate<char>(64);
    touch(two, "write", never_awaited, 64, true);
    for (int i = 0; i < 40000; i++) {
        REQUIRE(touch(one, "write", memory + (i * 7919 % (1 << 17)) * 8, 4, true) == cudaSuccess);
        if (i % 500 == 0) cudaStreamSynchronize(one);
    }
    CHECK(device->races.segments() <= 8192);
    CHECK(touch(one, "read", never_awaited, 64, false) == cudaErrorLaunchFailure);   // still detected
}
