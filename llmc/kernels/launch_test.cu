// The execution model as kernels see it: built-in variables, barriers, warp collectives, shared memory, atomics.
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/reduce.cuh"

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

__global__ void sums(float* out, const float* in) {
    float value = in[blockIdx.x * blockDim.x + threadIdx.x];
    float by_warp = warp_sum(value), by_block = block_sum(value), largest = block_max(value);
    float* row = out + (blockIdx.x * blockDim.x + threadIdx.x) * 3;
    row[0] = by_warp;
    row[1] = by_block;
    row[2] = largest;
}

}   // namespace

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

TEST_CASE("launch: warp and block reductions give every thread the butterfly's result") {
    Device device;
    const int blocks = 3, threads = 256;
    std::vector<float> values(blocks * threads);
    for (std::size_t i = 0; i < values.size(); i++) values[i] = static_cast<float>(i * 7919 % 1013) * 0.37f;
    DeviceBuffer<float> in = device.upload(values), out = device.filled<float>(values.size() * 3, 0);
    launch(sums, Launch{blocks, threads, 0, device.stream}.reads(in.data(), in.bytes()).writes(out.data(), out.bytes()),
           out.data(), in.data());
    std::vector<float> result = out.download(device.stream);
    auto butterfly = [](std::vector<float> v) {
        for (int d = 16; d > 0; d /= 2) {
            std::vector<float> next(32);
            for (int i = 0; i < 32; i++) next[i] = v[i] + v[i ^ d];
            v = next;
        }
        return v[0];
    };
    for (int b = 0; b < blocks; b++) {
        std::vector<float> of_warps(32, 0.0f);
        float largest = 0;
        for (int w = 0; w < threads / 32; w++) {
            const float* begin = values.data() + b * threads + w * 32;
            of_warps[w] = butterfly({begin, begin + 32});
            for (int i = 0; i < 32; i++) largest = std::max(largest, begin[i]);
        }
        for (int t = 0; t < threads; t++) {
            const float* row = result.data() + (b * threads + t) * 3;
            REQUIRE(row[0] == of_warps[t / 32]);
            REQUIRE(row[1] == butterfly(of_warps));
            REQUIRE(row[2] == largest);
        }
    }
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
