// The execution model as kernels see it: built-in variables, barriers, warp collectives, shared memory, atomics.
#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/kernels/launch.cuh"

namespace {

// A stream and device memory for one test.
struct Device {
    Device() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    ~Device() { cudaStreamDestroy(stream); }
    template <class T>
    DeviceBuffer<T> filled(std::size_t count, T value) {
        return upload(std::vector<T>(count, value));
    }
    template <class T>
    DeviceBuffer<T> upload(const std::vector<T>& values) {
        DeviceBuffer<T> buffer = arena.allocate<T>("test", values.size());
        buffer.upload(values, stream);
        return buffer;
    }
    cudaStream_t stream = nullptr;
    Arena arena;
};

__global__ void write_position(int* out) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    out[i] = static_cast<int>(((blockIdx.x * 10 + blockIdx.y) * 10 + blockIdx.z) * 1000 +
                              (threadIdx.x * 10 + threadIdx.y) * 10 + threadIdx.z);
}

template <bool barrier>
__global__ void reverse_block(int* data) {
    DYNAMIC_SHARED(int, shared);
    unsigned n = blockDim.x, i = threadIdx.x;
    shared[i] = data[blockIdx.x * n + i];
    if (barrier) __syncthreads();
    data[blockIdx.x * n + i] = shared[n - 1 - i];
}

}   // namespace

TEST_CASE("launch: of a span with gaps the bytes that are moved count, and all of it may not be shared") {
    float memory[10];
    Launch where(1, 1);
    where.reads(memory, 24).writes(memory, 40, 12).reads(nullptr, 8, 8);
    CHECK(where.bytes() == 24 + 12);
#ifdef HOST_EXECUTION_MODEL
    REQUIRE(where.accesses().size() == 2);
    CHECK(where.accesses()[1].bytes == 40);
#endif
}

TEST_CASE("launch: every thread of a 3-D grid runs once, at its position") {
    Device device;
    dim3 grid(3, 2, 4), block(5, 3, 2);
    DeviceBuffer<int> out = device.filled<int>(24 * 30, -1);
    launch(write_position, Launch{grid, block, 0, device.stream}.writes(out.data(), out.bytes()), out.data());
    std::vector<int> result = out.download(device.stream);
    int i = 0;
    for (int bz = 0; bz < 4; bz++)
        for (int by = 0; by < 2; by++)
            for (int bx = 0; bx < 3; bx++)
                for (int tz = 0; tz < 2; tz++)
                    for (int ty = 0; ty < 3; ty++)
                        for (int tx = 0; tx < 5; tx++)
                            REQUIRE(result[i++] == ((bx * 10 + by) * 10 + bz) * 1000 + (tx * 10 + ty) * 10 + tz);
}

TEST_CASE("launch: threads exchange values through dynamic shared memory") {
    Device device;
    std::vector<int> values(4 * 1000);
    std::iota(values.begin(), values.end(), 0);
    DeviceBuffer<int> data = device.upload(values);
    launch(reverse_block<true>, Launch{4, 1000, 1000 * sizeof(int), device.stream}.writes(data.data(), data.bytes()),
           data.data());
    std::vector<int> result = data.download(device.stream);
    for (int i = 0; i < 4000; i++) REQUIRE(result[i] == i / 1000 * 1000 + 999 - i % 1000);
}

TEST_CASE("launch: blocks and grids beyond the device's limits are refused with kernel, place and limit") {
    Device device;
    DeviceBuffer<int> data = device.filled(1, 0);
    auto refusal = [&](dim3 grid, dim3 block, std::size_t shared = 0) -> std::string {
        try {
            launch(write_position, Launch{grid, block, shared, device.stream}, data.data());
        } catch (const Error& error) {
            return error.message();
        }
        return "launched";
    };
    for (const std::string& message : {refusal(1, 1025), refusal(1, dim3(32, 33)), refusal(1, dim3(1, 1, 65))}) {
        CAPTURE(message);
        CHECK(message.find("llmc/kernels/launch_test.cu:") == 0);
        CHECK(message.find("write_position") != std::string::npos);
        CHECK(message.find("cudaErrorInvalidConfiguration") != std::string::npos);
        CHECK(message.find("1024") != std::string::npos);
    }
    CHECK(refusal(0, 32).find("a dimension is zero") != std::string::npos);
    CHECK(refusal(1, 32, std::size_t{1} << 20).find("bytes of dynamic shared memory") != std::string::npos);
    // nothing was started, and nothing sticks
    CHECK(data.download(device.stream)[0] == 0);
    CHECK(cudaStreamSynchronize(device.stream) == cudaSuccess);
}

TEST_CASE("launch: what the runtime says of a kernel") {
    const char* name = nullptr;
    CHECK(cudaFuncGetName(&name, reinterpret_cast<const void*>(write_position)) == cudaSuccess);
    CHECK(std::string(name).find("write_position") != std::string::npos);
    const void* kernel = reinterpret_cast<const void*>(reverse_block<true>);
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess);
    CHECK(attributes.sharedSizeBytes == 0);
    int most = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most) == cudaSuccess);
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1) == cudaErrorInvalidValue);
    cudaGetLastError();   // that one is not the next test's
}
