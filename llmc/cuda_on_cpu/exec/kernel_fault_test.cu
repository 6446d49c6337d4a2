// Kernels that are wrong on purpose, each reported by name: kernel, launch site, block, thread, and what was wrong.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/reduce.cuh"

using host::contains;

namespace {

// The message of the fault that the work queued on `stream` ends with, having checked that it is the given CUDA error,
// that it sticks, and that the message names the kernel and this file.
std::string fault_of(host::TestDevice& device, cudaStream_t stream, cudaError_t expected, const char* kernel) {
    CHECK(cudaStreamSynchronize(stream) == expected);
    CHECK(cudaStreamSynchronize(stream) == expected);
    CHECK(cudaGetLastError() == expected);
    std::string message = device->fault_message();
    CAPTURE(message);
    CHECK(contains(message,
                   std::string("kernel ") + kernel + " launched at llmc/cuda_on_cpu/exec/kernel_fault_test.cu:"));
    CHECK(device->take_fault() == message);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);   // the process goes on
    return message;
}

#define CHECK_CONTAINS(message, part)                  \
    do {                                               \
        std::string whole = message;                   \
        INFO("message: ", whole, "\nmissing: ", part); \
        CHECK(contains(whole, part));                  \
    } while (0)

// ---- barriers

template <bool barrier>
__global__ void neighbour(int* data) {
    __shared__ int shared[64];
    int i = static_cast<int>(threadIdx.x);
    shared[i] = data[i];
    if (barrier) __syncthreads();
    data[i] = shared[(i + 1) % 64];
}

// The barrier between two uses of the same shared memory is the one that is missing.
__global__ void reduce_twice(float* data) {
    __shared__ float of_warps[2];
    for (int round = 0; round < 2; round++) {
        float sum = warp_sum(data[threadIdx.x]);
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
        __syncthreads();
        data[threadIdx.x] = of_warps[0] + of_warps[1] + static_cast<float>(threadIdx.x);
    }
}

__global__ void warp_neighbour(int* data) {   // without __syncwarp
    __shared__ int shared[32];
    shared[threadIdx.x] = data[threadIdx.x];
    data[threadIdx.x] = shared[threadIdx.x ^ 1];
}

__global__ void barriers_in_branches(int* data) {
    if (threadIdx.x < 5) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    data[threadIdx.x] = 1;
}

__global__ void barrier_for_some(int* data) {
    if (threadIdx.x < 16) __syncthreads();
    data[threadIdx.x] = 1;
}

__global__ void barrier_after_return(int* data) {
    if (threadIdx.x < 16) return;
    __syncthreads();
    data[threadIdx.x] = 1;
}

__global__ void barrier_against_warp(int* data) {
    if (threadIdx.x % 32 == 3) {
        __syncthreads();
        __syncwarp();
    } else {
        __syncwarp();
        __syncthreads();
    }
    data[threadIdx.x] = 1;
}

__global__ void wait_for_nothing(int* flag) {
    host::wait_until([flag] { return *flag != 0; }, "the flag", __builtin_FILE(), __builtin_LINE());
}

// ---- blocks

__global__ void read_other_block(int* data) {
    if (threadIdx.x == 0) data[blockIdx.x] = data[(blockIdx.x + 1) % gridDim.x] + 1;
}

__global__ void add_floats(float* sum) { atomicAdd(sum, 1.0f / static_cast<float>(1 + threadIdx.x)); }

__global__ void write_two(int* a, int* b) { a[threadIdx.x] = b[threadIdx.x] = static_cast<int>(threadIdx.x); }

// ---- warps

__global__ void shuffle_from_absent(int* data) {
    if (threadIdx.x < 16) data[threadIdx.x] = __shfl_sync(0xffffu, data[threadIdx.x], 20);
}
__global__ void shuffle_from_gone(int* data) {
    if (threadIdx.x == 7) return;
    data[threadIdx.x] = __shfl_xor_sync(0xffffffffu, data[threadIdx.x], 1);
}
__global__ void mask_without_self(int* data) { data[threadIdx.x] = __shfl_sync(0x7fffffffu, data[threadIdx.x], 0); }
__global__ void shuffles_in_branches(int* data) {
    if (threadIdx.x < 9) {
        data[threadIdx.x] = __shfl_sync(0xffffffffu, data[threadIdx.x], 0);
    } else {
        data[threadIdx.x] = __shfl_sync(0xffffffffu, data[threadIdx.x], 1);
    }
}
__global__ void sums_in_branches(float* data) {
    if (threadIdx.x < 16) {
        data[threadIdx.x] = warp_sum(data[threadIdx.x]);
    } else {
        data[threadIdx.x] = warp_sum(2 * data[threadIdx.x]);
    }
}
__global__ void block_sums_in_branches(float* data) {
    if (threadIdx.x < 32) {
        data[threadIdx.x] = block_sum(data[threadIdx.x]);
    } else {
        data[threadIdx.x] = block_sum(2 * data[threadIdx.x]);
    }
}
__global__ void sum_of_partial_warp(float* data) {
    if (threadIdx.x < 40) data[threadIdx.x] = warp_sum(data[threadIdx.x]);
}

// ---- memory

__global__ void fill_shared(float* out) {
    DYNAMIC_SHARED(float, shared);
    shared[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}
__global__ void read_before_shared(float* out) {
    DYNAMIC_SHARED(float, shared);
    out[threadIdx.x] = shared[static_cast<int>(threadIdx.x) - 1024];
}
__global__ void read_fresh_shared(float* out) {
    DYNAMIC_SHARED(float, dynamic);
    __shared__ float fixed[8];
    __shared__ int number;
    out[0] = dynamic[3];
    out[1] = fixed[7];
    out[2] = static_cast<float>(number);
    // not constants: a compiler may keep a variable that only ever holds one value as a flag
    dynamic[3] = fixed[7] = static_cast<float>(blockIdx.x);
    number = static_cast<int>(blockIdx.x);
}
__global__ void write_at(int* data, long index) {
    if (threadIdx.x == 3 && threadIdx.y == 1 && blockIdx.y == 2) data[index] = 1;
}
__global__ void read_at(int* out, const int* data, long index) { out[threadIdx.x] = data[index]; }
// Some kernels have planted faults, which the processor must find and not a sanitizer.
__attribute__((no_sanitize("alignment"))) __global__ void read_misaligned(float4* out, const float* data) {
    *reinterpret_cast<volatile int*>(out) = static_cast<int>(data[0]);
#ifdef __SSE2__
    out[1] = *reinterpret_cast<const float4*>(__builtin_assume_aligned(data + 1, 4));
    asm volatile("movaps %0, %%xmm0" ::"m"(*reinterpret_cast<const float4*>(data + 1)) : "xmm0");
#endif
}

// ---- the rest

__global__ void recurse(int* data, int depth) {
    volatile char frame[4096];
    const int index = depth & 4095;   // not known to the compiler, so that the whole frame exists
    frame[index] = static_cast<char>(depth);
    if (depth > 0) recurse(data, depth - 1);
    data[threadIdx.x] = frame[index];
}
__attribute__((no_sanitize("integer-divide-by-zero"))) __global__ void divide(int* data, int by) {
    data[threadIdx.x] = data[threadIdx.x] / by;
}
__global__ void trap(int* data) {
    if (data[threadIdx.x] == 0 && threadIdx.x == 2) __trap();
}

}   // namespace

TEST_CASE("exec_fault: a missing __syncthreads is reported by name") {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    int* data = device.allocate<int>(64);
    std::vector<int> values(64);
    for (int i = 0; i < 64; i++) values[i] = i;
    cudaMemcpyAsync(data, values.data(), 256, cudaMemcpyHostToDevice, stream);
    launch(neighbour<true>, Launch{1, 64, 0, stream}, data);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    launch(neighbour<false>, Launch{1, 64, 0, stream}, data);
    std::string message = fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::neighbour<false>");
    CHECK_CONTAINS(message, "depends on the order in which the threads of a block run: a __syncthreads");
}

TEST_CASE("exec_fault: a missing second barrier and a missing __syncwarp are reported") {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    std::vector<float> values(64, 1.5f);
    float* data = device.allocate<float>(64);
    cudaMemcpyAsync(data, values.data(), 256, cudaMemcpyHostToDevice, stream);
    launch(reduce_twice, Launch{1, 64, 0, stream}, data);
    CHECK_CONTAINS(fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::reduce_twice"),
                   "a __syncthreads or __syncwarp is missing");
    std::vector<int> numbers(32);
    for (int i = 0; i < 32; i++) numbers[i] = 7 * i;
    int* few = device.allocate<int>(32);
    cudaMemcpyAsync(few, numbers.data(), 128, cudaMemcpyHostToDevice, stream);
    launch(warp_neighbour, Launch{1, 32, 0, stream}, few);
    CHECK_CONTAINS(fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::warp_neighbour"),
                   "a __syncthreads or __syncwarp is missing");
}

TEST_CASE("exec_fault: divergent barriers are reported with both threads") {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    int* data = device.allocate<int>(64);
    launch(barriers_in_branches, Launch{1, 64, 0, stream}, data);
    std::string message =
        fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::barriers_in_branches");
    CHECK_CONTAINS(message,
                   "block (0,0,0), thread (5,0,0): divergent barrier: this thread waits at "
                   "llmc/cuda_on_cpu/exec/kernel_fault_test.cu:");
    CHECK_CONTAINS(message, "but thread (0,0,0) waits at llmc/cuda_on_cpu/exec/kernel_fault_test.cu:");

    launch(barrier_for_some, Launch{dim3(1, 2), 64, 0, stream}, data);
    message = fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::barrier_for_some");
    CHECK_CONTAINS(message, "block (0,0,0), thread (0,0,0): divergent barrier");
    CHECK_CONTAINS(message, "that thread (16,0,0) never reached, having left the kernel");

    launch(barrier_after_return, Launch{1, 64, 0, stream}, data);
    message = fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::barrier_after_return");
    CHECK_CONTAINS(message, "thread (16,0,0): divergent barrier");
    CHECK_CONTAINS(message, "that thread (0,0,0) never reached");
}

TEST_CASE("exec_fault: threads that wait for each other are a deadlock, told with what each waits for") {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    int* data = device.allocate<int>(64);
    launch(barrier_against_warp, Launch{1, 64, 0, stream}, data);
    std::string message =
        fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::barrier_against_warp");
    CHECK_CONTAINS(message, "thread (0,0,0): deadlock: no thread of the block can go on");
    CHECK_CONTAINS(message, "2 of 64 threads, (3,0,0) first, are at the __syncthreads");
    CHECK_CONTAINS(message, "warp 0: lanes 0xfffffff7 wait at the warp collective");
    CHECK_CONTAINS(message, "for lanes 0x8");

    cudaMemsetAsync(data, 0, 256, stream);
    launch(wait_for_nothing, Launch{1, 64, 0, stream}, data);
    message = fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::wait_for_nothing");
    CHECK_CONTAINS(message, "deadlock: waits for the flag at llmc/cuda_on_cpu/exec/kernel_fault_test.cu:");
}

TEST_CASE("exec_fault: blocks that depend on each other, and atomics whose order shows, are reported") {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    int* data = device.allocate<int>(64);
    cudaMemsetAsync(data, 0, 256, stream);
    launch(read_other_block, Launch{8, 32, 0, stream}, data);
    CHECK_CONTAINS(fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::read_other_block"),
                   "the order in which blocks run");
    float* sum = device.allocate<float>(1);
    cudaMemsetAsync(sum, 0, 4, stream);
    launch(add_floats, Launch{1, 256, 0, stream}, sum);
    CHECK_CONTAINS(fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::add_floats"),
                   "or the order of atomics matters");
}

TEST_CASE("exec_fault: a write that the launch does not declare is reported") {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    int *a = device.allocate<int>(64), *b = device.allocate<int>(64);
    launch(write_two, Launch{1, 64, 0, stream}.writes(a, 256).writes(b, 256), a, b);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    cudaMemsetAsync(b, 0, 256, stream);
    launch(write_two, Launch{1, 64, 0, stream}.writes(a, 256).reads(b, 256), a, b);
    CHECK_CONTAINS(fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::write_two"),
                   "writes memory that the launch does not declare");
}

TEST_CASE("exec_fault: wrong warp collectives are reported with their lanes") {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    int* data = device.allocate<int>(64);
    cudaMemsetAsync(data, 0, 256, stream);
    launch(shuffle_from_absent, Launch{1, 32, 0, stream}, data);
    std::string message =
        fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::shuffle_from_absent");
    CHECK_CONTAINS(message, "thread (0,0,0): shuffle at llmc/cuda_on_cpu/exec/kernel_fault_test.cu:");
    CHECK_CONTAINS(message, "lane 0 reads from lane 20, which does not take part (lanes 0xffff do)");

    launch(shuffle_from_gone, Launch{1, 32, 0, stream}, data);
    message = fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::shuffle_from_gone");
    CHECK_CONTAINS(message, "thread (6,0,0): shuffle");
    CHECK_CONTAINS(message, "lane 6 reads from lane 7, which does not take part (lanes 0xffffff7f do)");

    launch(mask_without_self, Launch{1, 64, 0, stream}, data);
    message = fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::mask_without_self");
    CHECK_CONTAINS(message, "thread (31,0,0): warp collective at ");
    CHECK_CONTAINS(message, "mask 0x7fffffff does not name the calling lane 31");

    launch(shuffles_in_branches, Launch{1, 32, 0, stream}, data);
    message = fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::shuffles_in_branches");
    CHECK_CONTAINS(
        message, "thread (9,0,0): divergent warp collective: lane 9 is at llmc/cuda_on_cpu/exec/kernel_fault_test.cu:");
    CHECK_CONTAINS(message, "but lane 0 waits at llmc/cuda_on_cpu/exec/kernel_fault_test.cu:");

    launch(sums_in_branches, Launch{1, 32, 0, stream}, reinterpret_cast<float*>(data));
    message = fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::sums_in_branches");
    CHECK_CONTAINS(
        message,
        "thread (16,0,0): divergent warp collective: lane 16 is at llmc/cuda_on_cpu/exec/kernel_fault_test.cu:");

    launch(block_sums_in_branches, Launch{1, 64, 0, stream}, reinterpret_cast<float*>(data));
    message = fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::block_sums_in_branches");
    CHECK_CONTAINS(
        message,
        "thread (32,0,0): divergent barrier: this thread waits at llmc/cuda_on_cpu/exec/kernel_fault_test.cu:");

    launch(sum_of_partial_warp, Launch{1, 40, 0, stream}, reinterpret_cast<float*>(data));
    message = fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::sum_of_partial_warp");
    CHECK_CONTAINS(message, "it needs all 32 lanes, but of this warp only 0xff are in the kernel");
}

TEST_CASE("exec_fault: dynamic shared memory that is one byte too small is reported with block and thread") {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    float* out = device.allocate<float>(256);
    launch(fill_shared, Launch{3, 256, 1024, stream}, out);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    for (std::size_t bytes : {1023, 1020, 1008}) {
        CAPTURE(bytes);
        launch(fill_shared, Launch{3, 256, bytes, stream}, out);
        std::string message = fault_of(device, stream, cudaErrorIllegalAddress, "(anonymous namespace)::fill_shared");
        CHECK_CONTAINS(message, bytes == 1008 ? "block (0,0,0), thread (252,0,0)" : "block (0,0,0), thread (255,0,0)");
        CHECK_CONTAINS(message, "dynamic shared memory");
    }
    launch(fill_shared, Launch{3, 256, 512, stream}, out);
    CHECK_CONTAINS(
        fault_of(device, stream, cudaErrorIllegalAddress, "(anonymous namespace)::fill_shared"),
        "thread (128,0,0): out of bounds: write to dynamic shared memory at byte 512, but the launch asked for 512");
    launch(read_before_shared, Launch{1, 32, 512, stream}, out);
    CHECK_CONTAINS(fault_of(device, stream, cudaErrorIllegalAddress, "(anonymous namespace)::read_before_shared"),
                   "thread (0,0,0): out of bounds: read of dynamic shared memory at byte -4096");
}

TEST_CASE("exec_fault: fresh shared memory holds poison for every block") {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    float* out = device.allocate<float>(3);
    launch(read_fresh_shared, Launch{4, 1, 64, stream}, out);
    float result[3];
    cudaMemcpyAsync(result, out, sizeof result, cudaMemcpyDeviceToHost, stream);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(std::isnan(result[0]));
    CHECK(std::isnan(result[1]));
    CHECK(result[2] == -1.0f);
}

TEST_CASE("exec_fault: wild accesses are reported with block, thread and what lies there") {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    int* data = device.allocate<int>(1024);
    cudaMemsetAsync(data, 0, 4096, stream);
    launch(write_at, Launch{dim3(1, 3), dim3(4, 2), 0, stream}, data, 1024 * 1024L);
    std::string message = fault_of(device, stream, cudaErrorIllegalAddress, "(anonymous namespace)::write_at");
    CHECK_CONTAINS(message, "block (0,2,0), thread (3,1,0): illegal write to 0x");
    launch(write_at, Launch{dim3(1, 3), dim3(4, 2), 0, stream}, data, 1024L);
    message = fault_of(device, stream, cudaErrorIllegalAddress, "(anonymous namespace)::write_at");
    CHECK_CONTAINS(message, "past the end of");
    launch(read_at, Launch{1, 32, 0, stream}, data, nullptr, 5L);
    message = fault_of(device, stream, cudaErrorIllegalAddress, "(anonymous namespace)::read_at");
    CHECK_CONTAINS(message, "thread (0,0,0): illegal read of 0x14, a null pointer");
    launch(read_misaligned, Launch{1, 1, 0, stream}, reinterpret_cast<float4*>(data),
           reinterpret_cast<const float*>(data));
    fault_of(device, stream, cudaErrorMisalignedAddress, "(anonymous namespace)::read_misaligned");
}

TEST_CASE("exec_fault: stack overflow, division by zero and traps are reported") {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    int* data = device.allocate<int>(64);
    cudaMemsetAsync(data, 0, 256, stream);
    launch(recurse, Launch{1, 32, 0, stream}, data, 2);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    launch(recurse, Launch{1, 32, 0, stream}, data, 1000);
    CHECK_CONTAINS(fault_of(device, stream, cudaErrorHardwareStackError, "(anonymous namespace)::recurse"),
                   "thread (0,0,0): stack overflow");
    launch(divide, Launch{1, 32, 0, stream}, data, 0);
    CHECK_CONTAINS(fault_of(device, stream, cudaErrorIllegalInstruction, "(anonymous namespace)::divide"),
                   "thread (0,0,0): integer division by zero");
    cudaMemsetAsync(data, 0, 256, stream);
    launch(trap, Launch{1, 32, 0, stream}, data);
    CHECK_CONTAINS(fault_of(device, stream, cudaErrorLaunchFailure, "(anonymous namespace)::trap"),
                   "thread (2,0,0): __trap at llmc/cuda_on_cpu/exec/kernel_fault_test.cu:");
}

TEST_CASE("exec_fault: after a fault, launches are refused with it; of several faults the lowest block's is told") {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    int* data = device.allocate<int>(64);
    launch(barrier_for_some, Launch{100, 64, 0, stream}, data);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
    CHECK_CONTAINS(device->fault_message(), "block (0,0,0)");
    CHECK_THROWS_WITH_AS(launch(trap, Launch{1, 32, 0, stream}, data), doctest::Contains("cudaErrorLaunchFailure"),
                         Error);
    device->take_fault();
}
