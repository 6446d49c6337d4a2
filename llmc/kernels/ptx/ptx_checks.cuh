// Compares every wrapped instruction (ptx.cuh) with a plain computation on the host. On a GPU this checks the
// hardware's fragment layouts, elsewhere the models. Used by the tests, and by the self-check of a device
// (self_check.h).
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/dtype.h"
#include "llmc/base/rng.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/ptx/ptx.cuh"

namespace ptx_checks {

// Runs one warp of `kernel` on `in`: kernel(out, in, in.size()). Returns `out`, `count` elements.
template <class Out, class In, class Kernel>
std::vector<Out> on_one_warp(Arena& arena, cudaStream_t stream, Kernel kernel, const std::vector<In>& in,
                             std::size_t count) {
    const DeviceBuffer<In> source = arena.allocate<In>("check/in", in.size());
    const DeviceBuffer<Out> target = arena.allocate<Out>("check/out", count);
    source.upload(in, stream);
    launch(kernel, Launch(1, 32, 0, stream), target.data(), source.data(), static_cast<int>(in.size()));
    return target.download(stream);
}

// Returns why the first element outside its tolerance is wrong; empty if all are within. NaN never is.
template <class Expected, class Tolerance, class T>
std::string first_difference(const std::vector<T>& found, Expected expected, Tolerance tolerance) {
    for (std::size_t i = 0; i < found.size(); i++) {
        const double wanted = expected(i), is = static_cast<double>(found[i]);
        if (is == wanted || std::abs(is - wanted) <= tolerance(i)) continue;
        return text("element ", i, " is ", is, ", expected ", wanted);
    }
    return "";
}
inline double exactly(std::size_t) { return 0; }

// Loads four matrices of 8x8 from shared memory, row r of matrix m at row 8 m + r; writes each lane's four registers.
template <bool TRANSPOSED, class T>
__global__ void load_matrices(std::uint32_t* registers, const T* elements, int) {
    alignas(16) __shared__ T tile[32 * 8];
    for (int i = 0; i < 8; i++) tile[threadIdx.x * 8 + i] = elements[threadIdx.x * 8 + i];
    __syncwarp();
    std::uint32_t values[4];
    SharedAddress row = shared_address(tile + threadIdx.x * 8);
    if constexpr (TRANSPOSED) {
        ldmatrix_x4_transposed(values, row);
    } else {
        ldmatrix_x4(values, row);
    }
    for (int m = 0; m < 4; m++) registers[threadIdx.x * 4 + m] = values[m];
}

template <bool TRANSPOSED>
std::string ldmatrix(Arena& arena, cudaStream_t stream) {
    std::vector<std::uint16_t> elements(256);
    for (int i = 0; i < 256; i++) elements[i] = static_cast<std::uint16_t>(1000 + i);
    const auto registers =
        on_one_warp<std::uint32_t>(arena, stream, load_matrices<TRANSPOSED, std::uint16_t>, elements, 128);
    auto element = [&](std::size_t i, int second) {
        const int lane = static_cast<int>(i) / 4, matrix = static_cast<int>(i) % 4;
        const int row = lane / 4, column = lane % 4 * 2 + second;
        return elements[matrix * 64 + (TRANSPOSED ? column * 8 + row : row * 8 + column)];
    };
    return first_difference(
        registers, [&](std::size_t i) { return element(i, 0) + 65536.0 * element(i, 1); }, exactly);
}

// Multiplies row-major matrices in bf16, a (16, 16) then b (16, 8), and adds c (16, 8) with c[i] = i.
template <class T>
__global__ void multiply_once(float* result, const T* matrices, int) {
    const T *a = matrices, *b = matrices + 256;
    int g = threadIdx.x / 4, t = threadIdx.x % 4 * 2;
    auto pair = [](T low, T high) { return std::uint32_t{low} | std::uint32_t{high} << 16; };
    std::uint32_t left[4];
    for (int e = 0; e < 4; e++) {
        const T* from = a + (g + e % 2 * 8) * 16 + t + e / 2 * 8;
        left[e] = pair(from[0], from[1]);
    }
    std::uint32_t b0 = pair(b[t * 8 + g], b[(t + 1) * 8 + g]), b1 = pair(b[(t + 8) * 8 + g], b[(t + 9) * 8 + g]);
    float sum[4];
    for (int e = 0; e < 4; e++) sum[e] = static_cast<float>((g + e / 2 * 8) * 8 + t + e % 2);
    mma_m16n8k16(sum, left, b0, b1);
    for (int e = 0; e < 4; e++) result[(g + e / 2 * 8) * 8 + t + e % 2] = sum[e];
}

inline std::uint16_t bits_of(bf16 value) {
    std::uint16_t bits;
    std::memcpy(&bits, &value, 2);
    return bits;
}

inline std::string mma(Arena& arena, cudaStream_t stream) {
    std::vector<std::uint16_t> matrices;
    std::vector<double> values;
    for (int i = 0; i < 384; i++) {
        const bf16 value = static_cast<bf16>(normal(1, i));
        matrices.push_back(bits_of(value));
        values.push_back(static_cast<double>(static_cast<float>(value)));
    }
    const auto result = on_one_warp<float>(arena, stream, multiply_once<std::uint16_t>, matrices, 128);
    auto sum = [&](std::size_t i, auto of) {
        double total = of(static_cast<double>(i));
        for (std::size_t k = 0; k < 16; k++) total += of(values[i / 8 * 16 + k] * values[256 + k * 8 + i % 8]);
        return total;
    };
    // Hardware truncates sums of 8 or 16 products a few bits below fp32's last bit.
    return first_difference(
        result, [&](std::size_t i) { return sum(i, [](double x) { return x; }); },
        [&](std::size_t i) { return 1e-6 * sum(i, [](double x) { return std::abs(x); }); });
}

template <class T>
__global__ void pack_pairs(std::uint32_t* result, const T* values, int count) {
    for (int i = threadIdx.x; i < count / 2; i += 32) result[i] = pack_bf16(values[2 * i], values[2 * i + 1]);
}

inline std::string pack(Arena& arena, cudaStream_t stream) {
    std::vector<float> values;
    for (int i = 0; i < 256; i++) values.push_back(normal(2, i));
    values[0] = 1.00390625f, values[1] = 1.01171875f;   // halfway between two: rounded to the even
    const auto packed = on_one_warp<std::uint32_t>(arena, stream, pack_pairs<float>, values, 128);
    auto rounded = [&](std::size_t i) { return static_cast<double>(bits_of(static_cast<bf16>(values[i]))); };
    return first_difference(
        packed, [&](std::size_t i) { return rounded(2 * i) + 65536.0 * rounded(2 * i + 1); }, exactly);
}

// Copies tiles of 128 floats through two buffers; each tile is summed by a neighbour's lanes after its copy.
template <class T>
__global__ void sum_tiles(T* sums, const T* tiles, int elements) {
    alignas(16) __shared__ T buffer[2][128];
    int thread = threadIdx.x, count = elements / 128;
    auto load = [&](int tile) {
        if (tile < count)
            cp_async_16(shared_address(&buffer[tile % 2][4 * thread]), tiles + tile * 128 + 4 * thread, true);
        cp_async_commit();
    };
    load(0);
    for (int tile = 0; tile < count; tile++) {
        load(tile + 1);
        cp_async_wait<1>();
        __syncthreads();
        T sum = 0;
        for (int i = 0; i < 4; i++) sum += buffer[tile % 2][(4 * thread + 4 + i) % 128];   // the neighbour's copies
        sums[tile * 32 + thread] = sum;
        __syncthreads();
    }
}

inline std::string waits(Arena& arena, cudaStream_t stream) {
    std::vector<float> tiles(7 * 128);   // more than the two buffers
    for (std::size_t i = 0; i < tiles.size(); i++) tiles[i] = static_cast<float>(i);
    const auto sums = on_one_warp<float>(arena, stream, sum_tiles<float>, tiles, tiles.size() / 4);
    return first_difference(
        sums, [&](std::size_t i) { return 4.0 * tiles[i / 32 * 128 + (4 * i + 4) % 128] + 6; }, exactly);
}

// Writes the source's element i where its copy is valid, else zero. The first 32 elements use 16-byte copies, every
// second of them valid, then 8 elements use 4-byte copies, likewise.
template <class T>
__global__ void copy_some(T* result, const T* source, int count) {
    alignas(16) __shared__ T buffer[40];
    int thread = threadIdx.x;
    if (thread < 8) cp_async_16(shared_address(buffer + 4 * thread), source + 4 * thread, thread % 2 == 0);
    if (thread >= 8 && thread < 16)
        cp_async_4(shared_address(buffer + 24 + thread), source + 24 + thread, thread % 2 == 0);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int i = thread; i < count; i += 32) result[i] = buffer[i];
}

template <int BYTES>
std::string copies(Arena& arena, cudaStream_t stream) {
    std::vector<float> source(40);
    for (int i = 0; i < 40; i++) source[i] = static_cast<float>(i + 1);
    std::vector<float> result = on_one_warp<float>(arena, stream, copy_some<float>, source, 40);
    const std::size_t first = BYTES == 16 ? 0 : 32;
    result = {result.begin() + static_cast<std::ptrdiff_t>(first), result.begin() + (BYTES == 16 ? 32 : 40)};
    return first_difference(
        result,
        [&](std::size_t i) { return (BYTES == 16 ? i / 4 : i) % 2 == 0 ? static_cast<double>(source[first + i]) : 0; },
        exactly);
}

// Runs blocks one after the other, by numbers drawn as they start. Each waits for the counter of the blocks before it,
// records what it sees, then adds 1 to what another thread of the previous block has written.
inline constexpr int turn_blocks = 8, turn_threads = 64;
struct Turns {   // counters begin at zero
    int drawn, count, seen[turn_blocks], numbers[turn_blocks][turn_threads];
};
template <class T>
__global__ void take_turns(T* turns) {
    __shared__ int number;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
        number = atomicAdd(&turns->drawn, 1);
        int seen = 0;
        do {
            seen = load_acquire(&turns->count);
        } while (seen < number);
        if (seen == number) wait_acquire(&turns->count, number);   // returns at once, else it would wait for long
        turns->seen[number] = seen;
    }
    __syncthreads();
    turns->numbers[number][thread] = number == 0 ? thread : turns->numbers[number - 1][turn_threads - 1 - thread] + 1;
    __syncthreads();
    if (thread == 0) add_release(&turns->count, 1);
}

inline std::string turns(Arena& arena, cudaStream_t stream) {
    const auto found = arena.allocate<Turns>("check/turns", 1);
    found.zero(stream);
    launch(take_turns<Turns>, Launch(turn_blocks, turn_threads, 0, stream), found.data());
    const Turns is = found.download(stream).front();
    if (is.count != turn_blocks) return text("the count is ", is.count, ", expected ", turn_blocks);
    for (int block = 0; block < turn_blocks; block++) {
        if (is.seen[block] != block) return text("block ", block, " has seen a count of ", is.seen[block]);
        for (int thread = 0; thread < turn_threads; thread++) {
            const int expected = block + (block % 2 == 0 ? thread : turn_threads - 1 - thread),
                      number = is.numbers[block][thread];
            if (number != expected)
                return text("number ", thread, " of block ", block, " is ", number, ", expected ", expected);
        }
    }
    return "";
}

template <class T>
__global__ void powers_of_two(T* result, const T* exponents, int count) {
    for (int i = threadIdx.x; i < count; i += 32) result[i] = exp2_approximate(exponents[i]);
}

inline std::string exp2(Arena& arena, cudaStream_t stream) {
    std::vector<float> exponents;
    for (float x = -130.0f; x < 20.0f; x += 0.37f) exponents.push_back(x);
    exponents.push_back(-INFINITY);
    const auto powers = on_one_warp<float>(arena, stream, powers_of_two<float>, exponents, exponents.size());
    auto exact = [&](std::size_t i) { return std::exp2(static_cast<double>(exponents[i])); };
    return first_difference(powers, exact, [&](std::size_t i) {   // tolerance: two units in the last place
        return exponents[i] < -126.0f ? 1.2e-38 : 2.4e-7 * exact(i);
    });
}

}   // namespace ptx_checks

// A check. Returns what disagrees, or nothing. It waits for the stream.
struct InstructionCheck {
    const char* instruction;
    std::string (*run)(Arena& arena, cudaStream_t stream);
};
inline constexpr InstructionCheck instruction_checks[] = {
    {"ldmatrix_x4", ptx_checks::ldmatrix<false>},
    {"ldmatrix_x4_transposed", ptx_checks::ldmatrix<true>},
    {"mma_m16n8k16", ptx_checks::mma},
    {"pack_bf16", ptx_checks::pack},
    {"cp_async_16", ptx_checks::copies<16>},
    {"cp_async_4", ptx_checks::copies<4>},
    {"cp_async_wait", ptx_checks::waits},
    {"add_release, load_acquire", ptx_checks::turns},
    {"exp2_approximate", ptx_checks::exp2},
};
