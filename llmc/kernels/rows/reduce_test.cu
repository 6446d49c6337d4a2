// Warp and block reductions: a fixed order, every thread gets the result, and the CPU's shortcut gives the bits of the
// shuffles and barriers that a GPU runs.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/kernels/rows/reduce.cuh"

namespace {

// A stream and device memory for one test.
class KernelTest {
public:
    KernelTest() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    ~KernelTest() { cudaStreamDestroy(stream_); }
    KernelTest(const KernelTest&) = delete;
    KernelTest& operator=(const KernelTest&) = delete;
    template <class T>
    DeviceBuffer<T> upload(const std::vector<T>& values) {
        DeviceBuffer<T> buffer = arena_.allocate<T>("test", values.size());
        buffer.upload(values, stream_);
        return buffer;
    }
    cudaStream_t stream() const { return stream_; }

private:
    cudaStream_t stream_ = nullptr;
    Arena arena_;
};

template <class T>
struct Results {
    T warp_sum, block_sum, block_max, sum_by_warps, max_by_warps, again;
};

template <class T>
__global__ void reduce_kernel(Results<T>* out, const T* in) {
    const unsigned thread = block_thread(), place = blockIdx.x * block_threads() + thread;
    const T value = in[place];
    Results<T> r;
    r.warp_sum = warp_sum(value);
    r.block_sum = block_sum(value), r.block_max = block_max(value);
    r.sum_by_warps = block_reduce_by_warps(value, ReduceSum());
    r.max_by_warps = block_reduce_by_warps(value, ReduceMax());
    r.again = block_sum(static_cast<T>(r.block_sum + static_cast<T>(thread)));   // one straight after another
    out[place] = r;
}

// op over the xor butterfly: all 32 lanes end with the same.
template <class T, class Op>
T butterfly(std::vector<T> v, Op op) {
    for (int d = 16; d > 0; d /= 2) {
        std::vector<T> next(32);
        for (int i = 0; i < 32; i++) next[i] = op(v[i], v[i ^ d]);
        v = next;
    }
    return v[0];
}
template <class T, class Op>
T block_result(const T* values, unsigned threads, T neutral, Op op) {
    std::vector<T> of_warps(32, neutral);
    for (unsigned w = 0; w < threads / 32; w++)
        of_warps[w] = butterfly(std::vector<T>(values + w * 32, values + w * 32 + 32), op);
    return threads == 32 ? of_warps[0] : butterfly(of_warps, op);
}

template <class T>
bool same_bits(T a, T b) {
    return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class T>
void check_block(dim3 block) {
    const unsigned threads = block.x * block.y * block.z;
    const int blocks = 3;
    CAPTURE(threads);
    KernelTest test;
    std::vector<T> values(blocks * threads);
    for (std::size_t i = 0; i < values.size(); i++) {
        values[i] = static_cast<T>(static_cast<double>(i * 7919 % 1013) * 0.37 - 120);
    }
    auto in = test.upload(values);
    auto out = test.upload(std::vector<Results<T>>(values.size()));
    launch(reduce_kernel<T>,
           Launch{blocks, block, 0, test.stream()}.reads(in.data(), in.bytes()).writes(out.data(), out.bytes()),
           out.data(), in.data());
    std::vector<Results<T>> result = out.download(test.stream());
    auto sum = [](T a, T b) -> T { return a + b; };
    auto max = [](T a, T b) -> T { return a > b ? a : b; };
    for (int b = 0; b < blocks; b++) {
        const T* of_block = values.data() + b * threads;
        const T lowest = std::numeric_limits<T>::lowest();
        const T total = block_result(of_block, threads, T(0), sum),
                largest = block_result(of_block, threads, lowest, max);
        std::vector<T> second(threads);
        for (unsigned t = 0; t < threads; t++) second[t] = static_cast<T>(total + static_cast<T>(t));
        const T again = block_result(second.data(), threads, T(0), sum);
        for (unsigned t = 0; t < threads; t++) {
            const Results<T>& r = result[b * threads + t];
            std::vector<T> warp(of_block + t / 32 * 32, of_block + t / 32 * 32 + 32);
            REQUIRE(same_bits(r.warp_sum, butterfly(warp, sum)));
            REQUIRE(same_bits(r.block_sum, total));
            REQUIRE(same_bits(r.block_max, largest));
            REQUIRE(same_bits(r.sum_by_warps, total));
            REQUIRE(same_bits(r.max_by_warps, largest));
            REQUIRE(same_bits(r.again, again));
        }
    }
}

__global__ void special_kernel(float* out, const float* in) { out[threadIdx.x] = block_max(in[threadIdx.x]); }

}   // namespace

TEST_CASE("reduce: warps and blocks of every size and shape, in the butterfly's order, bit for bit") {
    for (dim3 block : {dim3(32), dim3(64), dim3(96), dim3(512), dim3(1024), dim3(16, 10), dim3(32, 4), dim3(8, 4, 3),
                       dim3(1, 32, 2)}) {
        check_block<float>(block);
        check_block<double>(block);
        check_block<int>(block);
    }
}

TEST_CASE("reduce: the largest of infinities, and of numbers beside NaN") {
    for (unsigned threads : {32u, 64u, 1024u}) {
        std::vector<float> values(threads, -INFINITY);
        KernelTest test;
        auto run = [&] {
            auto in = test.upload(values);
            auto out = test.upload(std::vector<float>(threads, 0.0f));
            launch(special_kernel, Launch{1, threads, 0, test.stream()}.writes(out.data(), out.bytes()), out.data(),
                   in.data());
            return out.download(test.stream());
        };
        for (float x : run()) REQUIRE(x == -INFINITY);
        values[5] = NAN, values[threads - 3] = -2.0f;
        for (float x : run()) REQUIRE(x == -2.0f);   // as fmaxf: a number wins
    }
}
