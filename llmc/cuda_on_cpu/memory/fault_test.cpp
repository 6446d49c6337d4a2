#include "llmc/cuda_on_cpu/memory/fault.h"

#include <cuda_runtime.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>

#include <thread>

#include "llmc/cuda_on_cpu/checks/test_device.h"

using host::contains;
using host::TestDevice;

namespace {

char* handled_page = nullptr;
int handled = 0;

// Makes its own page accessible, so that the access that faulted succeeds when it is repeated.
bool open_my_page(const host::Fault& fault) {
    if (fault.address != handled_page) return false;
    handled++;
    return mprotect(handled_page, 4096, PROT_READ | PROT_WRITE) == 0;
}

char* closed_page() { return static_cast<char*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)); }

}   // namespace

TEST_CASE("fault: null, foreign and impossible addresses are told apart") {
    TestDevice device;
    volatile char* nothing = nullptr;
    asm volatile("" : "+r"(nothing));   // the compiler must not know
    CHECK(contains(host::host_fault_of([&] { (void)nothing[8]; }), "read of 0x8, a null pointer"));
    volatile char* page = closed_page();
    CHECK(contains(host::host_fault_of([&] { page[1] = 1; }), "neither device memory nor pinned host memory"));
    munmap(const_cast<char*>(page), 4096);
#ifdef __x86_64__
    volatile char* impossible = reinterpret_cast<char*>(0x8000000000000000ull);
    asm volatile("" : "+r"(impossible));
    CHECK(contains(host::host_fault_of([&] { (void)impossible[0]; }), "an address that cannot exist"));
#endif
    CHECK(host::host_fault_of([] {}).empty());
}

TEST_CASE("fault: a registered handler is asked first, and only for what is its own") {
    TestDevice device;
    handled_page = closed_page();
    handled = 0;
    host::add_fault_handler(open_my_page);
    host::add_fault_handler(open_my_page);   // once is enough
    volatile char* page = handled_page;
    CHECK(host::host_fault_of([&] { page[0] = 5; }).empty());
    CHECK(handled == 1);
    CHECK(page[0] == 5);
    volatile int* memory = device.allocate<int>(1);
    CHECK_FALSE(host::host_fault_of([&] { (void)memory[0]; }).empty());
    CHECK(handled == 1);
    munmap(handled_page, 4096);
    handled_page = nullptr;
}

TEST_CASE("fault: on another thread, and again and again") {
    TestDevice device;
    volatile int* memory = device.allocate<int>(1);
    int messages = 0;
    std::thread([&] {
        for (int i = 0; i < 20; i++) messages += !host::host_fault_of([&] { (void)memory[0]; }).empty();
    }).join();
    CHECK(messages == 20);
}

TEST_CASE("fault: a host function that touches device memory is at fault, and the device goes on") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    int* memory = device.allocate<int>(1);
    CHECK(cudaLaunchHostFunc(
              stream, [](void* p) { *static_cast<volatile int*>(p) = 1; }, memory) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    CHECK(contains(host::last_fault(), "'host function'"));
    CHECK(contains(host::take_fault(), "the host may not touch device memory"));
    CHECK_FALSE(device->memory.is_open());
    CHECK(cudaMemsetAsync(memory, 0, 4, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

TEST_CASE("fault: an operation finds open what it touches, and the host in between nothing") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    volatile int* declared = device.allocate<int>(1);
    volatile int* other = device.allocate<int>(1);
    auto outcome = [&](host::Touches touches, volatile int* touched) {
        auto operation = host::operation("toucher", {{const_cast<int*>(declared), 4, true}}, [=] { *touched = 1; });
        operation.touches = touches;
        REQUIRE(host::enqueue(stream, std::move(operation)) == cudaSuccess);
        cudaStreamSynchronize(stream);
        CHECK_FALSE(device->memory.is_open());
        CHECK_FALSE(host::host_fault_of([&] { (void)*declared; }).empty());
        CHECK_FALSE(host::host_fault_of([&] { (void)*other; }).empty());
        return host::take_fault();
    };
    CHECK(outcome(host::Touches::declared, declared) == "");
    CHECK(outcome(host::Touches::anything, other) == "");
    CHECK(contains(outcome(host::Touches::declared, other), "'toucher'"));
    CHECK(contains(outcome(host::Touches::nothing, declared), "'toucher'"));
    // a fill opens its range until the wait ends, but not to the host's code that comes next
    int* const filled = const_cast<int*>(declared);
    CHECK(cudaMemsetAsync(filled, 0, 4, stream) == cudaSuccess);
    CHECK(cudaLaunchHostFunc(
              stream, [](void* p) { *static_cast<volatile int*>(p) = 1; }, filled) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    CHECK(contains(host::take_fault(), "'host function'"));
    CHECK_FALSE(host::host_fault_of([&] { (void)*declared; }).empty());
}

TEST_CASE("fault: exceptions pass through a guarded body") {
    CHECK_THROWS_AS(host::host_fault_of([] { throw 3; }), int);
    TestDevice device;
    volatile int* memory = device.allocate<int>(1);
    CHECK_FALSE(host::host_fault_of([&] { (void)memory[0]; }).empty());
}
