// Copies and fills: every direction, CUDA's rules on when they return, and what is refused.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "llmc/cuda_on_cpu/checks/test_device.h"

using host::contains;
using host::TestDevice;

namespace {

// Keeps a stream from moving until it is released.
struct Gate {
    bool open = false;
    explicit Gate(cudaStream_t stream) {
        host::enqueue(stream, host::Operation{"gate", __FILE__, __LINE__, {}, [this] { return open; }, {}, {}});
    }
};

struct Pinned {
    explicit Pinned(std::size_t bytes) { cudaMallocHost(&data, bytes); }
    ~Pinned() { cudaFreeHost(data); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    char* data = nullptr;
};

std::vector<char> pattern(std::size_t bytes) {
    std::vector<char> data(bytes);
    for (std::size_t i = 0; i < bytes; i++) data[i] = static_cast<char>(i * 31 + i / 251);
    return data;
}

host::Checks with_random_order(bool random) {
    host::Checks checks = host::strict_checks();
    checks.random_order = random;
    return checks;
}

}   // namespace

TEST_CASE("copy: there and back, by every call and size") {
    for (bool checked : {false, true})
        for (std::size_t bytes : {1, 300, 65536, 65537, 1000003}) {
            TestDevice device(checked ? with_random_order(true) : host::Checks{});
            cudaStream_t stream = device.stream();
            const std::vector<char> sent = pattern(bytes);
            std::vector<char> received(bytes);
            char* one = device.allocate<char>(bytes);
            char* two = device.allocate<char>(bytes);
            CHECK(cudaMemcpyAsync(one, sent.data(), bytes, cudaMemcpyHostToDevice, stream) == cudaSuccess);
            CHECK(cudaMemcpyAsync(two, one, bytes, cudaMemcpyDeviceToDevice, stream) == cudaSuccess);
            CHECK(cudaMemcpyAsync(received.data(), two, bytes, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
            CHECK(received == sent);

            std::fill(received.begin(), received.end(), 0);
            CHECK(cudaMemset(one, 0, bytes) == cudaSuccess);
            CHECK(cudaMemcpy(one, sent.data(), bytes, cudaMemcpyDefault) == cudaSuccess);
            CHECK(cudaMemcpy(two, one, bytes, cudaMemcpyDefault) == cudaSuccess);
            CHECK(cudaMemcpy(received.data(), two, bytes, cudaMemcpyDefault) == cudaSuccess);
            CHECK(received == sent);
            CHECK(cudaDeviceSynchronize() == cudaSuccess);
        }
}

TEST_CASE("copy: a pageable source is read before the call returns, whatever its size") {
    for (bool random : {false, true})
        for (std::size_t bytes : {16, 200000}) {
            TestDevice device(with_random_order(random));
            cudaStream_t stream = device.stream();
            char* memory = device.allocate<char>(bytes);
            cudaMemsetAsync(memory, 1, bytes, stream);
            std::vector<char> source(bytes, 2);
            CHECK(cudaMemcpyAsync(memory, source.data(), bytes, cudaMemcpyHostToDevice, stream) == cudaSuccess);
            std::fill(source.begin(), source.end(), 3);
            std::vector<char> seen(bytes);
            CHECK(cudaMemcpyAsync(seen.data(), memory, bytes, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
            CHECK(seen == std::vector<char>(bytes, 2));
        }
}

TEST_CASE("copy: small pageable sources do not wait for the stream") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    char* memory = device.allocate<char>(16);
    Gate gate(stream);
    char source[16] = {5}, seen[16] = {};
    CHECK(cudaMemcpyAsync(memory, source, 16, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    gate.open = true;
    CHECK(cudaMemcpyAsync(seen, memory, 16, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(seen[0] == 5);
}

TEST_CASE("copy: into pageable memory it is complete on return") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    char* memory = device.allocate<char>(16);
    cudaMemsetAsync(memory, 9, 16, stream);
    char seen[16] = {};
    CHECK(cudaMemcpyAsync(seen, memory, 16, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(seen[15] == 9);
}

TEST_CASE("copy: with pinned memory it is deferred, unless the call is the blocking one") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    char* memory = device.allocate<char>(16);
    Pinned pinned(16), source(16);
    std::memset(pinned.data, 1, 16);
    std::memset(source.data, 4, 16);
    CHECK(cudaMemcpyAsync(memory, source.data, 16, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned.data, memory, 16, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(pinned.data[0] == 1);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(pinned.data[0] == 4);
    CHECK(cudaMemset(memory, 6, 16) == cudaSuccess);
    CHECK(cudaMemcpy(pinned.data, memory, 16, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(pinned.data[0] == 6);
    CHECK(cudaMemcpy(memory, source.data, 16, cudaMemcpyHostToDevice) == cudaSuccess);
    source.data[0] = 0;   // it has been read
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("copy: device to device and fills are deferred, also the calls without Async") {
    TestDevice device;
    char* one = device.allocate<char>(16);
    char* two = device.allocate<char>(16);
    Gate gate(nullptr);
    CHECK(cudaMemset(one, 2, 16) == cudaSuccess);
    CHECK(cudaMemcpy(two, one, 16, cudaMemcpyDeviceToDevice) == cudaSuccess);
    CHECK(cudaStreamQuery(nullptr) == cudaErrorNotReady);
    gate.open = true;
    char seen[16] = {};
    CHECK(cudaMemcpy(seen, two, 16, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(seen[3] == 2);
}

TEST_CASE("copy: host to host is complete on return, after the stream's earlier work") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    char source[8] = {1, 2, 3}, target[8] = {};
    bool earlier = false;
    host::enqueue(stream, host::operation("earlier", {}, [&] { earlier = true; }));
    CHECK(cudaMemcpyAsync(target, source, 8, cudaMemcpyHostToHost, stream) == cudaSuccess);
    CHECK(earlier);
    CHECK(std::memcmp(target, source, 8) == 0);
    Pinned one(8), two(8);
    one.data[7] = 4;
    CHECK(cudaMemcpyAsync(two.data, one.data, 8, cudaMemcpyHostToHost, stream) == cudaSuccess);
    CHECK(two.data[7] == 4);
}

TEST_CASE("copy: fills pinned memory too, but not pageable") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    Pinned pinned(32);
    CHECK(cudaMemset(pinned.data, 5, 32) == cudaSuccess);
    CHECK(pinned.data[31] == 5);
    CHECK(cudaMemsetAsync(pinned.data, 6, 32, stream) == cudaSuccess);
    CHECK(pinned.data[31] == 5);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(pinned.data[31] == 6);
    char pageable[8];
    CHECK(cudaMemsetAsync(pageable, 0, 8, stream) == cudaErrorInvalidValue);
}

TEST_CASE("copy: the direction is checked against the pointers") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    char* memory = device.allocate<char>(16);
    char* other = device.allocate<char>(16);
    char pageable[16] = {};
    auto refused = [&](void* to, const void* from, cudaMemcpyKind kind, const char* why) {
        CHECK(cudaMemcpyAsync(to, from, 16, kind, stream) == cudaErrorInvalidValue);
        CHECK(contains(cudaGetErrorString(cudaErrorInvalidValue), why));
    };
    refused(pageable, memory, cudaMemcpyHostToDevice, "destination is device memory, but it is host memory");
    refused(memory, other, cudaMemcpyHostToDevice, "source is host memory, but it is device memory");
    refused(memory, pageable, cudaMemcpyDeviceToDevice, "source is device memory, but it is host memory");
    refused(memory, pageable, cudaMemcpyDeviceToHost, "destination is host memory, but it is device memory");
    refused(pageable, memory, cudaMemcpyHostToHost, "source is host memory, but it is device memory");
    refused(nullptr, memory, cudaMemcpyDeviceToHost, "a null pointer");
    CHECK(cudaMemcpyAsync(memory, other, 16, static_cast<cudaMemcpyKind>(7), stream) ==
          cudaErrorInvalidMemcpyDirection);
    CHECK(cudaMemcpyAsync(memory, pageable, 16, cudaMemcpyHostToDevice, cudaStreamPerThread) ==
          cudaErrorInvalidResourceHandle);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("copy: ranges must lie within one allocation") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    char* memory = device.allocate<char>(100);
    device->memory.name(memory, "tokens");
    char pageable[200] = {};
    CHECK(cudaMemcpyAsync(memory, pageable, 101, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
    CHECK(contains(cudaGetErrorString(cudaErrorInvalidValue),
                   "101 bytes that begin at byte 0 of device memory 'tokens'"));
    CHECK(cudaMemcpyAsync(memory + 99, pageable, 1, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    CHECK(cudaMemcpyAsync(memory + 100, pageable, 1, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
    CHECK(cudaMemsetAsync(memory + 50, 0, 51, stream) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyAsync(memory, memory + 40, 50, cudaMemcpyDeviceToDevice, stream) == cudaErrorInvalidValue);
    CHECK(contains(cudaGetErrorString(cudaErrorInvalidValue), "overlap"));
    CHECK(cudaMemcpyAsync(memory, memory + 50, 50, cudaMemcpyDeviceToDevice, stream) == cudaSuccess);
    Pinned pinned(16);
    CHECK(cudaMemcpyAsync(memory, pinned.data, 17, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyAsync(memory, pageable, 0, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    CHECK(cudaMemsetAsync(memory, 0, 0, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(cudaFree(memory) == cudaSuccess);
    CHECK(cudaMemcpyAsync(memory, pageable, 1, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
    CHECK(contains(cudaGetErrorString(cudaErrorInvalidValue), "freed device memory 'tokens'"));
}

TEST_CASE("copy: memory of another device is refused") {
    TestDevice device;
    char* theirs = nullptr;
    host::Device second;
    {
        host::BindDevice bind(second);
        REQUIRE(cudaMalloc(&theirs, 16) == cudaSuccess);
    }
    char* memory = device.allocate<char>(16);
    CHECK(cudaMemcpyAsync(memory, theirs, 16, cudaMemcpyDefault, device.stream()) == cudaErrorInvalidValue);
    CHECK(contains(cudaGetErrorString(cudaErrorInvalidValue), "another device"));
}

TEST_CASE("copy: rows with a pitch") {
    for (bool random : {false, true}) {
        TestDevice device(with_random_order(random));
        cudaStream_t stream = device.stream();
        constexpr std::size_t width = 5, height = 4, host_pitch = 7, device_pitch = 8;
        const std::vector<char> source = pattern(host_pitch * height);
        char* memory = device.allocate<char>(device_pitch * height);
        char* packed = device.allocate<char>(width * height);
        cudaMemsetAsync(memory, 0x77, device_pitch * height, stream);
        CHECK(cudaMemcpy2DAsync(memory, device_pitch, source.data(), host_pitch, width, height, cudaMemcpyHostToDevice,
                                stream) == cudaSuccess);
        CHECK(cudaMemcpy2DAsync(packed, width, memory, device_pitch, width, height, cudaMemcpyDeviceToDevice, stream) ==
              cudaSuccess);
        std::vector<char> whole(device_pitch * height), rows(host_pitch * height, 1), dense(width * height);
        CHECK(cudaMemcpyAsync(whole.data(), memory, whole.size(), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
        CHECK(cudaMemcpy2DAsync(rows.data(), host_pitch, memory, device_pitch, width, height, cudaMemcpyDeviceToHost,
                                stream) == cudaSuccess);
        CHECK(cudaMemcpyAsync(dense.data(), packed, dense.size(), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
        for (std::size_t r = 0; r < height; r++)
            for (std::size_t c = 0; c < device_pitch; c++) {
                const char expected = c < width ? source[r * host_pitch + c] : 0x77;
                CHECK(whole[r * device_pitch + c] == expected);
                if (c < host_pitch) CHECK(rows[r * host_pitch + c] == (c < width ? expected : 1));
                if (c < width) CHECK(dense[r * width + c] == expected);
            }
        CHECK(cudaMemcpy2DAsync(memory, 4, source.data(), host_pitch, 5, 1, cudaMemcpyHostToDevice, stream) ==
              cudaErrorInvalidPitchValue);
        CHECK(cudaMemcpy2DAsync(memory, device_pitch, source.data(), host_pitch, 5, 5, cudaMemcpyHostToDevice,
                                stream) == cudaErrorInvalidValue);   // five rows do not fit
        CHECK(cudaMemcpy2DAsync(memory, device_pitch, source.data(), host_pitch, 5, 0, cudaMemcpyHostToDevice,
                                stream) == cudaSuccess);
    }
}
