// Device and pinned memory: allocation, and what the memory and poison checks notice.
#include "llmc/cuda_on_cpu/memory/memory.h"

#include <cuda_runtime.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/cuda_on_cpu/memory/fault.h"

using host::contains;
using host::TestDevice;

namespace {

host::Checks no_checks() { return host::Checks{}; }

// Runs on the device: the only way to touch device memory besides copies.
cudaError_t on_device(cudaStream_t stream, std::function<void()> body, const char* name = "kernel") {
    host::enqueue(stream, host::operation(name, {}, std::move(body), "kernel.cu", 5));
    return cudaStreamSynchronize(stream);
}

}   // namespace

TEST_CASE("memory: allocations are aligned, apart, and counted") {
    for (bool checked : {false, true}) {
        TestDevice device(checked ? host::strict_checks() : no_checks());
        std::size_t free_before = 0, total = 0, free_after = 0;
        CHECK(cudaMemGetInfo(&free_before, &total) == cudaSuccess);
        CHECK(free_before <= total);
        std::vector<std::pair<char*, std::size_t>> all;
        for (std::size_t bytes : {1, 255, 256, 257, 4095, 4096, 4097, 5 << 20}) {
            char* pointer = device.allocate<char>(bytes);
            REQUIRE(pointer != nullptr);
            CHECK(reinterpret_cast<std::uintptr_t>(pointer) % 256 == 0);
            for (auto& [other, size] : all) CHECK((pointer + bytes <= other || other + size <= pointer));
            all.emplace_back(pointer, bytes);
        }
        CHECK(cudaMemGetInfo(&free_after, &total) == cudaSuccess);
        CHECK(free_before - free_after >= (5 << 20));
        CHECK(free_before - free_after <= (5 << 20) + 10 * 4096);
        for (auto& [pointer, size] : all) CHECK(cudaFree(pointer) == cudaSuccess);
        CHECK(cudaMemGetInfo(&free_after, &total) == cudaSuccess);
        CHECK(free_after == free_before);
    }
}

TEST_CASE("memory: no room is an error that is not sticky") {
    TestDevice device;
    device->memory.set_bytes_total(1 << 20);
    void* pointer = &device;
    CHECK(cudaMalloc(&pointer, 2 << 20) == cudaErrorMemoryAllocation);
    CHECK(pointer == nullptr);
    CHECK(contains(cudaGetErrorString(cudaErrorMemoryAllocation),
                   "out of memory: 2097152 bytes asked for, 0 of 1048576 in use"));
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaMalloc(&pointer, SIZE_MAX) == cudaErrorMemoryAllocation);
    CHECK(cudaMalloc(&pointer, 1 << 20) == cudaSuccess);
    CHECK(cudaMalloc(&pointer, 1) == cudaErrorMemoryAllocation);
}

TEST_CASE("memory: nothing can be allocated, and null freed") {
    TestDevice device;
    void* pointer = &device;
    CHECK(cudaMalloc(&pointer, 0) == cudaSuccess);
    CHECK(pointer == nullptr);
    CHECK(cudaFree(nullptr) == cudaSuccess);
    CHECK(cudaFreeHost(nullptr) == cudaSuccess);
}

TEST_CASE("memory: addresses are used again, at once without the check, late with it") {
    for (bool checked : {false, true}) {
        TestDevice device(checked ? host::strict_checks() : no_checks());
        char* first = device.allocate<char>(10000);
        cudaFree(first);
        char* second = device.allocate<char>(10000);
        CHECK((first == second) == !checked);
    }
}

TEST_CASE("memory: many allocations and frees in any order") {
    TestDevice device(no_checks());
    std::vector<char*> held;
    unsigned state = 1;
    for (int i = 0; i < 3000; i++) {
        state = state * 1664525u + 1013904223u;
        if (held.size() < 20 || (state >> 16) % 2) {
            held.push_back(device.allocate<char>(1 + (state >> 12) % 40000));
            REQUIRE(held.back() != nullptr);
        } else {
            std::swap(held[(state >> 8) % held.size()], held.back());
            REQUIRE(cudaFree(held.back()) == cudaSuccess);
            held.pop_back();
        }
    }
    for (char* pointer : held) REQUIRE(cudaFree(pointer) == cudaSuccess);
    CHECK(device->memory.bytes_used() == 0);

    // Memory freed in pieces can be allocated as a whole.
    char* lowest = device.allocate<char>(4096);
    char* second = device.allocate<char>(4096);
    char* third = device.allocate<char>(4096);
    device.allocate<char>(4096);
    for (char* pointer : {lowest, third, second}) REQUIRE(cudaFree(pointer) == cudaSuccess);
    CHECK(device.allocate<char>(5 * 4096) == lowest);   // with the guard pages that lay between
}

TEST_CASE("memory: fresh device and pinned memory is not a number") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    float* memory = device.allocate<float>(3000);
    std::vector<float> seen(3000, 0.0f);
    CHECK(cudaMemcpyAsync(seen.data(), memory, 12000, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    int numbers = 0;
    for (float x : seen) numbers += x == x;
    CHECK(numbers == 0);
    float* pinned = nullptr;
    CHECK(cudaMallocHost(&pinned, sizeof(float)) == cudaSuccess);
    CHECK(*pinned != *pinned);
    cudaFreeHost(pinned);
}

TEST_CASE("memory: a host dereference of device memory is named") {
    TestDevice device;
    Arena arena;
    DeviceBuffer<float> weights = arena.allocate<float>("parameters/wte", 1000);
    volatile float* pointer = weights.data();
    std::string message = host::host_fault_of([&] { (void)pointer[3]; });
    CHECK(contains(message, "read of 0x"));
    CHECK(contains(message, "byte 12 of device memory 'parameters/wte' [0x"));
    CHECK(contains(message, "4000 bytes from llmc/base/arena.cpp:"));
    CHECK(contains(message, "the host may not touch device memory, only copy it"));
    message = host::host_fault_of([&] { pointer[0] = 1; });
    CHECK(contains(message, "write to 0x"));

    // also while and after work was done, and after a failed attempt the device still works
    cudaStream_t stream = device.stream();
    weights.zero(stream);
    CHECK(contains(host::host_fault_of([&] { (void)pointer[3]; }), "byte 12"));
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(contains(host::host_fault_of([&] { (void)pointer[3]; }), "byte 12"));
    CHECK(weights.download(stream)[3] == 0.0f);
}

TEST_CASE("memory: an unexpected host dereference ends the process with the message") {
    TestDevice device;
    int* pointer = device.allocate<int>(16);
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        host::prepare_thread_for_faults();
        *static_cast<volatile int*>(pointer) = 1;
        _exit(0);
    }
    close(ends[1]);
    std::string message;
    char buffer[512];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
        message.append(buffer, static_cast<std::size_t>(n));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(!(WIFEXITED(status) && WEXITSTATUS(status) == 0));
    CHECK(contains(message, "fault: write to 0x"));
    CHECK(contains(message, "byte 0 of device memory"));
}

TEST_CASE("memory: without the check device memory is plain memory") {
    TestDevice device(no_checks());
    volatile int* pointer = device.allocate<int>(16);
    CHECK(host::host_fault_of([&] { pointer[15] = 7; }).empty());
    CHECK(pointer[15] == 7);
}

TEST_CASE("memory: an operation that reaches past an allocation's last page faults by name") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    volatile char* pointer = device.allocate<char>(512);   // a multiple of the alignment: the guard page follows
    device->memory.name(const_cast<char*>(pointer), "gradients/lnf");
    CHECK(on_device(stream, [&] { pointer[511] = 1; }) == cudaSuccess);
    CHECK(on_device(
              stream, [&] { pointer[512] = 1; }, "layernorm_backward") == cudaErrorIllegalAddress);
    const std::string message = host::take_fault();
    CHECK(contains(message, "'layernorm_backward' (kernel.cu:5): write to 0x"));
    CHECK(contains(message, "0 bytes past the end of device memory 'gradients/lnf'"));
    CHECK(on_device(stream, [&] { (void)pointer[-4096]; }) == cudaErrorIllegalAddress);
    CHECK(contains(host::take_fault(), "before the beginning of"));
    CHECK(on_device(stream, [&] { pointer[0] = 1; }) == cudaSuccess);   // and the device works on
}

TEST_CASE("memory: bytes written between the end and the guard page are noticed") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    volatile char* pointer = device.allocate<char>(1000);
    void* address = const_cast<char*>(pointer);
    device->memory.name(address, "losses");
    SUBCASE("at the next device synchronisation") {
        CHECK(on_device(stream, [&] { pointer[1003] = 1; }) == cudaSuccess);
        CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
        CHECK(contains(host::last_fault(), "bytes past the end of device memory 'losses'"));
        CHECK(contains(host::last_fault(), "offset 1003 of 1000"));
    }
    SUBCASE("at the free") {
        CHECK(on_device(stream, [&] { pointer[1023] = 1; }) == cudaSuccess);
        CHECK(cudaFree(address) == cudaErrorIllegalAddress);
        CHECK(contains(host::last_fault(), "offset 1023 of 1000"));
    }
    SUBCASE("before the beginning") {
        CHECK(on_device(stream, [&] { pointer[-1] = 1; }) == cudaSuccess);
        CHECK(cudaFree(address) == cudaErrorIllegalAddress);
        CHECK(contains(host::last_fault(), "before the beginning of device memory 'losses'"));
    }
}

TEST_CASE("memory: an operation that uses freed memory faults by name") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    volatile char* pointer = device.allocate<char>(100);
    void* address = const_cast<char*>(pointer);
    device->memory.name(address, "scratch");
    CHECK(cudaFree(address) == cudaSuccess);
    for (int i = 0; i < 50; i++) device.allocate<char>(100);
    CHECK(on_device(stream, [&] { (void)pointer[9]; }) == cudaErrorIllegalAddress);
    CHECK(contains(host::take_fault(), "byte 9 of freed device memory 'scratch'"));
    CHECK(cudaFree(address) == cudaErrorInvalidValue);
    CHECK(contains(cudaGetErrorString(cudaErrorInvalidValue),
                   "cannot be freed: byte 0 of freed device memory 'scratch'"));
}

TEST_CASE(
    "memory: what lies between allocations stays closed however often they are opened, with and without guard pages") {
    for (bool guard_pages : {true, false}) {
        TestDevice device;
        if (!guard_pages) device->memory.do_without_guard_pages();
        cudaStream_t stream = device.stream();
        std::vector<char*> all;
        for (std::size_t bytes : {4096, 100, 3 << 20, 8192, 40 << 10, 8192, 4096, 256})
            all.push_back(device.allocate<char>(bytes));
        // freed ones of which one is longer than what opening walks across, and two are neighbours
        for (std::size_t freed : {2, 4, 5}) REQUIRE(cudaFree(all[freed]) == cudaSuccess);
        for (int times = 0; times < 3; times++) {
            for (std::size_t i : {0, 1, 3, 6, 7}) {
                volatile char* block = all[i];
                CHECK(on_device(stream, [&] { block[0] = 1; }) == cudaSuccess);
                CHECK(contains(host::host_fault_of([&] { block[0] = 1; }), "byte 0 of device memory"));
            }
            for (auto [pointer, offset, place] : {std::tuple(all[0], 4096L, "0 bytes past the end of device memory"),
                                                  {all[1], -256L * 15 - 1, "4095 bytes past the end of device memory"},
                                                  {all[2], 2L << 20, "byte 2097152 of freed device memory"},
                                                  {all[3], 8192L, "0 bytes past the end of device memory"},
                                                  {all[4], 5L, "byte 5 of freed device memory"},
                                                  {all[5], 8191L, "byte 8191 of freed device memory"},
                                                  {all[7], 256L, "0 bytes past the end of device memory"}}) {
                volatile char* address = pointer + offset;
                const std::string expected = place;   // clang++ does not capture the binding
                INFO(expected);
                CHECK(on_device(stream, [&] { (void)*address; }) == cudaErrorIllegalAddress);
                CHECK(contains(host::take_fault(), expected));
                CHECK_FALSE(host::host_fault_of([&] { *address = 1; }).empty());
            }
        }
    }
}

TEST_CASE("memory: freeing what is not the beginning of an allocation is refused") {
    TestDevice device;
    char* pointer = device.allocate<char>(100);
    char host_memory = 0;
    CHECK(cudaFree(pointer + 1) == cudaErrorInvalidValue);
    CHECK(cudaFree(&host_memory) == cudaErrorInvalidValue);
    CHECK(cudaFree(pointer) == cudaSuccess);
}

TEST_CASE("memory: freeing memory that queued work uses is reported by both names") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    char* pointer = device.allocate<char>(100);
    device->memory.name(pointer, "activations/qkv");
    host::enqueue(stream, host::operation(
                              "attention", {{pointer + 10, 4, false}}, [] {}, "attention.cu", 77));
    CHECK(cudaFree(pointer) == cudaErrorIllegalAddress);
    const std::string message = host::last_fault();
    CHECK(contains(message, "use after free: byte 0 of device memory 'activations/qkv'"));
    CHECK(contains(message, "while 'attention' (attention.cu:77), queued in stream 1, uses it"));
    CHECK(contains(message, "memory_test.cpp"));
}

TEST_CASE("memory: an exception that passes by frees what queued work uses without a second complaint") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    Arena arena;
    bool done = false;
    try {
        DeviceBuffer<float> buffer = arena.allocate<float>("test/unwound", 100);
        host::enqueue(stream, host::operation("uses it", {{buffer.data(), 4, true}}, [&] { done = true; }));
        throw std::runtime_error("the cause");
    } catch (const std::runtime_error&) {
    }
    CHECK(done);
    CHECK(host::last_fault() == "");
}

TEST_CASE("memory: freeing beside queued work performs it") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    char* pointer = device.allocate<char>(100);
    bool done = false;
    host::enqueue(stream, host::operation("other", {}, [&] { done = true; }));
    CHECK(cudaFree(pointer) == cudaSuccess);
    CHECK(done);
}

TEST_CASE("memory: what kind of memory a pointer is") {
    TestDevice device;
    char* pointer = device.allocate<char>(100);
    char pageable[16], *pinned = nullptr;
    CHECK(cudaHostAlloc(&pinned, 100, cudaHostAllocPortable) == cudaSuccess);
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, pointer + 99) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeDevice);
    CHECK(attributes.devicePointer == pointer + 99);
    CHECK(cudaPointerGetAttributes(&attributes, pinned) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeHost);
    CHECK(attributes.hostPointer == pinned);
    CHECK(cudaPointerGetAttributes(&attributes, pageable) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeUnregistered);
    CHECK(cudaFreeHost(pinned) == cudaSuccess);
    CHECK(cudaPointerGetAttributes(&attributes, pinned) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeUnregistered);
}

TEST_CASE("memory: pinning and releasing, and what is refused") {
    TestDevice device;
    static char pageable[8192];
    CHECK(cudaHostRegister(pageable, 4096, cudaHostRegisterDefault) == cudaSuccess);
    CHECK(cudaHostRegister(pageable + 100, 10, cudaHostRegisterDefault) == cudaErrorHostMemoryAlreadyRegistered);
    CHECK(cudaHostRegister(pageable + 4096, 4096, cudaHostRegisterPortable) == cudaSuccess);
    CHECK(cudaFreeHost(pageable) == cudaErrorInvalidValue);
    CHECK(cudaHostUnregister(pageable + 1) == cudaErrorHostMemoryNotRegistered);
    CHECK(cudaHostUnregister(pageable) == cudaSuccess);
    CHECK(cudaHostUnregister(pageable) == cudaErrorHostMemoryNotRegistered);
    CHECK(cudaHostUnregister(pageable + 4096) == cudaSuccess);
    CHECK(cudaHostRegister(nullptr, 10, 0) == cudaErrorInvalidValue);
    CHECK(cudaHostRegister(pageable, 10, 0x80) == cudaErrorInvalidValue);
    void* pinned = nullptr;
    CHECK(cudaHostAlloc(&pinned, 10, 0x80) == cudaErrorInvalidValue);
    CHECK(cudaMallocHost(&pinned, std::size_t{1} << 60) == cudaErrorMemoryAllocation);
    CHECK(cudaMallocHost(&pinned, 10) == cudaSuccess);
    CHECK(cudaHostUnregister(pinned) == cudaErrorHostMemoryNotRegistered);
    CHECK(cudaFreeHost(pinned) == cudaSuccess);
    CHECK(cudaFreeHost(pinned) == cudaErrorInvalidValue);
}

TEST_CASE("memory: the checks may be switched while allocations exist") {
    TestDevice device;
    volatile int* guarded = device.allocate<int>(4);
    host::set_checks(no_checks());
    volatile int* plain = device.allocate<int>(4);
    cudaStream_t stream = device.stream();
    CHECK(on_device(stream, [&] {
              guarded[0] = 3;
              plain[0] = 3;
          }) == cudaSuccess);
    host::set_checks(host::strict_checks());
    CHECK(on_device(stream, [&] {
              guarded[1] = 4;
              plain[1] = 4;
          }) == cudaSuccess);
    CHECK_FALSE(host::host_fault_of([&] { guarded[0] = 1; }).empty());
    CHECK(plain[0] == 3);
}
