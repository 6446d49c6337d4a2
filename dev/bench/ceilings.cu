// What the machine can do at best: the ceilings that every benchmark is compared with.
#include <algorithm>
#include <vector>

#include "dev/bench/bench.h"
#include "llmc/kernels/init.cuh"
#include "llmc/kernels/matmul/matmul.h"
#include "llmc/model/precision.h"

namespace {

// Bytes read and written per second by the better of the runtime's copy and an element-wise kernel.
double copy_speed(cudaStream_t stream, bool on_gpu, std::int64_t cache_bytes) {
    Arena arena;
    // bytes of each side: more than any cache keeps
    const std::int64_t least = on_gpu ? std::int64_t{1} << 29 : std::int64_t{1} << 26;
    const std::int64_t n = std::max(least, 4 * cache_bytes) / 64 * 64;
    const std::int64_t floats = n / 4;
    auto from = arena.allocate<float>("ceiling/from", static_cast<std::size_t>(floats));
    auto to = arena.allocate<float>("ceiling/to", static_cast<std::size_t>(floats));
    from.zero(stream);
    to.zero(stream);
    auto by_runtime = [&](int count) {
        for (int i = 0; i < count; i++) {
            CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyDeviceToDevice, stream));
        }
    };
    auto by_kernel = [&](int count) {
        for (int i = 0; i < count; i++) cast<float, float>(to.data(), from.data(), floats, stream);
    };
    const double seconds = std::min(sample_calls(by_runtime, stream, 0.3, on_gpu).median,
                                    sample_calls(by_kernel, stream, 0.3, on_gpu).median);
    return 2.0 * static_cast<double>(n) / seconds;
}

// The best of a few sizes, square: which size is fastest differs between libraries and clocks.
double matmul_speed(cudaStream_t stream, bool on_gpu) {
    const std::vector<int> sizes = on_gpu ? std::vector<int>{4096, 8192} : std::vector<int>{768, 1536, 2304};
    double best = 0;
    for (int size : sizes) {
        Arena arena;
        Matmul matmul(arena, {.tries = 0});
        const std::int64_t n = std::int64_t{size} * size;
        auto matrix = [&](std::uint64_t key) {
            auto buffer = arena.allocate<floatX>("ceiling/matrix", static_cast<std::size_t>(n));
            fill_normal(buffer.data(), n, 1.0f, key, GlobalSpan{}, stream);
            return buffer;
        };
        auto a = matrix(1), b = matrix(2), c = matrix(3);
        auto multiply = [&](int count) {
            for (int i = 0; i < count; i++) {
                matmul.forward<floatX>(c.data(), a.data(), b.data(), nullptr, MatmulShape{size, size, size}, stream);
            }
        };
        best = std::max(best, 2.0 * size * static_cast<double>(n) / sample_calls(multiply, stream, 0.5, on_gpu).median);
        CUDA_CHECK(cudaStreamSynchronize(stream));
    }
    return best;
}

}   // namespace

Ceilings measure_ceilings(cudaStream_t stream, bool on_gpu, std::int64_t cache_bytes) {
    return {copy_speed(stream, on_gpu, cache_bytes), matmul_speed(stream, on_gpu)};
}
