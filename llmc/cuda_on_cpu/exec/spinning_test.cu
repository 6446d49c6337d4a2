// Threads of the stand-in that spin on memory until others have written it, and waits that nothing ends.
#include "llmc/cuda_on_cpu/exec/run_kernel_testing.h"

using namespace run_kernel;

namespace {

// Every thread waits for the one before it (or after it), within one block, by one of the ways to look at memory.
enum class Look { atomic, load, fence, sleep };
__global__ void take_turns(int* turn, Look look, bool from_above) {
    const int me = static_cast<int>(from_above ? blockDim.x - 1 - threadIdx.x : threadIdx.x);
    for (;;) {
        int now = 0;
        switch (look) {
            case Look::atomic: now = atomicAdd(turn, 0); break;
            case Look::load: now = __ldcv(turn); break;
            case Look::fence: __threadfence(), now = *static_cast<volatile int*>(turn); break;
            case Look::sleep: __nanosleep(100), now = *static_cast<volatile int*>(turn); break;
        }
        if (now == me) break;
    }
    atomicAdd(turn, 1);
}

// A lock, taken and given back by every thread of every block.
__global__ void locked(int* lock_and_sum) {
    while (atomicCAS(&lock_and_sum[0], 0, 1) != 0) {
    }
    __threadfence();
    const int seen = *static_cast<volatile int*>(&lock_and_sum[1]);
    if (threadIdx.x % 7 == 0) __nanosleep(20);   // others find it taken
    lock_and_sum[1] = seen + 1;
    __threadfence();
    atomicExch(&lock_and_sum[0], 0);
}

// Blocks in a chain, by tickets: each adds to what the one before it has left.
__global__ void chain(int* data) {
    __shared__ int ticket;
    if (threadIdx.x == 0) ticket = atomicAdd(&data[0], 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        while (atomicAdd(&data[1], 0) != ticket) {
        }
        data[2] += ticket;
        __threadfence();
        atomicAdd(&data[1], 1);
    }
}

__global__ void wait_for_next_block(int* data) {
    if (blockIdx.x + 1 < gridDim.x) {
        while (atomicAdd(&data[blockIdx.x + 1], 0) == 0) {
        }
    }
    atomicAdd(&data[blockIdx.x], 1);
}

// A thread that has spun for a while waits at a barrier; another waits for what nothing will bring about.
__global__ void spin_then_hang(int* data) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < 3000; i++) atomicAdd(&data[0], 1);
        __syncthreads();
    } else {
        int* flag = &data[1];
        host::wait_until([flag] { return *flag != 0; }, "the flag");
        __syncthreads();
    }
}

}   // namespace

TEST_CASE("exec: threads that spin on memory let others run") {
    for (Look look : {Look::atomic, Look::load, Look::fence, Look::sleep}) {
        for (bool from_above : {false, true}) {
            CAPTURE(static_cast<int>(look));
            REQUIRE(run(take_turns, 1, 67, 1, look, from_above)[0] == 67);
        }
    }
    std::vector<int> result = run(locked, 5, 50, 2);
    CHECK(result[0] == 0);
    CHECK(result[1] == 250);
    CHECK(run(chain, 300, 33, 3)[2] == 300 * 299 / 2);
}

TEST_CASE("exec: a wait that nothing ends is a fault, also after somebody has spun") {
    const std::string message = fault(spin_then_hang, 1, 2);
    CAPTURE(message);
    CHECK(host::contains(message, "deadlock: waits for the flag at llmc/cuda_on_cpu/exec/spinning_test.cu:"));
}

TEST_CASE("exec: a wait for a later block ends with a fault that says so") {
    const std::string message = fault(wait_for_next_block, 64, 32);
    CAPTURE(message);
    CHECK(host::contains(message, "deadlock: spins on memory"));
    CHECK(host::contains(message, "one can wait for an earlier one only"));
}
