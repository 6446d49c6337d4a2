// For tests: runs a kernel of the stand-in, and returns what it wrote or the message of its fault.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/kernels/launch.cuh"

namespace run_kernel {

constexpr unsigned full = 0xffffffffu;

// Returns what `kernel` writes to `count` elements that were zero. Unit tests run it in ascending and descending order
// of threads and blocks, which must agree.
template <class T, class... Parameters>
std::vector<T> run(void (*kernel)(T*, Parameters...), dim3 grid, dim3 block, std::size_t count,
                   std::type_identity_t<Parameters>... arguments) {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    T* data = device.allocate<T>(count);
    cudaMemsetAsync(data, 0, count * sizeof(T), stream);
    launch(kernel, Launch{grid, block, 0, stream}, data, arguments...);
    std::vector<T> result(count);
    cudaMemcpyAsync(result.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost, stream);
    cudaError_t status = cudaStreamSynchronize(stream);
    INFO(device->fault_message());
    REQUIRE(status == cudaSuccess);
    return result;
}

// The message of the fault that `kernel` ends with.
template <class T, class... Parameters>
std::string fault(void (*kernel)(T*, Parameters...), dim3 grid, dim3 block,
                  std::type_identity_t<Parameters>... arguments) {
    host::TestDevice device;
    cudaStream_t stream = device.stream();
    T* data = device.allocate<T>(2048);
    cudaMemsetAsync(data, 0, 2048 * sizeof(T), stream);
    launch(kernel, Launch{grid, block, 0, stream}, data, arguments...);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
    return device->take_fault();
}

inline __device__ unsigned linear_thread() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
inline __device__ unsigned block_size() { return blockDim.x * blockDim.y * blockDim.z; }

// Something that differs between lanes and has all bytes of T in use.
template <class T>
__host__ __device__ T value_of(unsigned i) {
    return static_cast<T>((i + 1) * 0x9e3779b97f4a7c15ull >> 3);
}

}   // namespace run_kernel
