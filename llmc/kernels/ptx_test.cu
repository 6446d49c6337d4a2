// The wrapped instructions against plain loops: on a GPU this tests the hardware's fragment layouts, elsewhere the
// models.
#include "llmc/kernels/ptx.cuh"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/dtype.h"
#include "llmc/base/rng.h"
#include "llmc/kernels/launch.cuh"

namespace {

struct Device {
    Device() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    ~Device() { cudaStreamDestroy(stream); }
    Arena arena;
    cudaStream_t stream = nullptr;
};

// Four matrices of 8x8 in shared memory, row r of matrix m at row 8 m + r; writes each lane's four registers.
template <bool TRANSPOSED>
__global__ void load_matrices(std::uint32_t* registers, const std::uint16_t* elements) {
    alignas(16) __shared__ std::uint16_t tile[32 * 8];
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
void check_load() {
    Device device;
    std::vector<std::uint16_t> elements(256);
    for (int i = 0; i < 256; i++) elements[i] = static_cast<std::uint16_t>(1000 + i);
    auto source = device.arena.allocate<std::uint16_t>("test/elements", 256);
    auto target = device.arena.allocate<std::uint32_t>("test/registers", 128);
    source.upload(elements, device.stream);
    launch(load_matrices<TRANSPOSED>, Launch(1, 32, 0, device.stream), target.data(), source.data());
    std::vector<std::uint32_t> registers = target.download(device.stream);
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < 4; m++)
            for (int k = 0; k < 2; k++) {
                int row = TRANSPOSED ? lane % 4 * 2 + k : lane / 4, column = TRANSPOSED ? lane / 4 : lane % 4 * 2 + k;
                CHECK((registers[lane * 4 + m] >> (16 * k) & 0xffff) == elements[(8 * m + row) * 8 + column]);
            }
}

// One product from registers that each lane fills from plain row-major matrices a (16, 16), b (16, 8), c (16, 8).
template <class T>
__global__ void multiply_once(float* result, const T* a, const T* b, const float* c) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4 * 2;
    auto pair = [](T low, T high) { return pack_bf16(static_cast<float>(low), static_cast<float>(high)); };
    std::uint32_t left[4];
    for (int e = 0; e < 4; e++) {
        const T* from = a + (g + e % 2 * 8) * 16 + t + e / 2 * 8;
        left[e] = pair(from[0], from[1]);
    }
    std::uint32_t b0 = pair(b[t * 8 + g], b[(t + 1) * 8 + g]), b1 = pair(b[(t + 8) * 8 + g], b[(t + 9) * 8 + g]);
    float sum[4];
    for (int e = 0; e < 4; e++) sum[e] = c[(g + e / 2 * 8) * 8 + t + e % 2];
    mma_m16n8k16(sum, left, b0, b1);
    for (int e = 0; e < 4; e++) result[(g + e / 2 * 8) * 8 + t + e % 2] = sum[e];
}

// Copies `count` tiles of 128 floats through two buffers, each tile summed once it is here.
template <class T>
__global__ void sum_tiles(T* sums, const T* tiles, int count) {
    alignas(16) __shared__ T buffer[2][128];
    int thread = threadIdx.x;
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

// Element i of the result: copied when i is even, zero when odd; 16 bytes by the first half, 4 by the second.
template <class T>
__global__ void copy_some(T* result, const T* source) {
    alignas(16) __shared__ T buffer[40];
    int thread = threadIdx.x;
    if (thread < 8) cp_async_16(shared_address(buffer + 4 * thread), source + 4 * thread, thread % 2 == 0);
    if (thread >= 8 && thread < 16)
        cp_async_4(shared_address(buffer + 24 + thread), source + 24 + thread, thread % 2 == 0);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int i = thread; i < 40; i += 32) result[i] = buffer[i];
}

template <class T>
__global__ void powers_of_two(T* result, const T* exponents, int count) {
    for (int i = threadIdx.x; i < count; i += 32) result[i] = exp2_approximate(exponents[i]);
}

}   // namespace

TEST_CASE("ptx: ldmatrix gives each lane its elements") { check_load<false>(); }
TEST_CASE("ptx: transposing ldmatrix gives each lane its elements") { check_load<true>(); }

TEST_CASE("ptx: mma multiplies bf16 matrices and adds in fp32") {
    Device device;
    std::vector<bf16> a(256), b(128);
    std::vector<float> c(128);
    for (int i = 0; i < 256; i++) a[i] = static_cast<bf16>(normal(1, i));
    for (int i = 0; i < 128; i++) b[i] = static_cast<bf16>(normal(2, i));
    for (int i = 0; i < 128; i++) c[i] = normal(3, i);
    auto a_device = device.arena.allocate<bf16>("test/a", 256);
    auto b_device = device.arena.allocate<bf16>("test/b", 128);
    auto c_device = device.arena.allocate<float>("test/c", 128);
    auto result_device = device.arena.allocate<float>("test/result", 128);
    a_device.upload(a, device.stream);
    b_device.upload(b, device.stream);
    c_device.upload(c, device.stream);
    launch(multiply_once<bf16>, Launch(1, 32, 0, device.stream), result_device.data(), a_device.data(), b_device.data(),
           c_device.data());
    std::vector<float> result = result_device.download(device.stream);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            double exact = c[i * 8 + j], magnitude = std::abs(exact);
            for (int k = 0; k < 16; k++) {
                double product =
                    static_cast<double>(static_cast<float>(a[i * 16 + k])) * static_cast<float>(b[k * 8 + j]);
                exact += product;
                magnitude += std::abs(product);
            }
            // hardware truncates sums of 8 or 16 products a few bits below fp32's last
            CHECK(std::abs(result[i * 8 + j] - exact) < 1e-6 * magnitude);
        }
}

TEST_CASE("ptx: asynchronous copies arrive where they are waited for") {
    Device device;
    const int count = 7;   // more than the two buffers
    std::vector<float> tiles(count * 128);
    for (std::size_t i = 0; i < tiles.size(); i++) tiles[i] = static_cast<float>(i);
    auto source = device.arena.allocate<float>("test/tiles", tiles.size());
    auto target = device.arena.allocate<float>("test/sums", count * 32);
    source.upload(tiles, device.stream);
    launch(sum_tiles<float>, Launch(1, 32, 0, device.stream), target.data(), source.data(), count);
    std::vector<float> sums = target.download(device.stream);
    for (int tile = 0; tile < count; tile++)
        for (int thread = 0; thread < 32; thread++) {
            float expected = 0;
            for (int i = 0; i < 4; i++) expected += tiles[tile * 128 + (4 * thread + 4 + i) % 128];
            CHECK(sums[tile * 32 + thread] == expected);
        }
}

TEST_CASE("ptx: asynchronous copies fill with zeros where not valid") {
    Device device;
    std::vector<float> source(40);
    for (int i = 0; i < 40; i++) source[i] = static_cast<float>(i + 1);
    auto from = device.arena.allocate<float>("test/source", 40);
    auto to = device.arena.allocate<float>("test/result", 40);
    from.upload(source, device.stream);
    launch(copy_some<float>, Launch(1, 32, 0, device.stream), to.data(), from.data());
    std::vector<float> result = to.download(device.stream);
    for (int i = 0; i < 32; i++) CHECK(result[i] == (i / 4 % 2 == 0 ? source[i] : 0.0f));
    for (int i = 32; i < 40; i++) CHECK(result[i] == (i % 2 == 0 ? source[i] : 0.0f));
}

TEST_CASE("ptx: exp2 within two units in the last place") {
    Device device;
    std::vector<float> exponents;
    for (float x = -130.0f; x < 20.0f; x += 0.37f) exponents.push_back(x);
    exponents.push_back(-INFINITY);
    auto from = device.arena.allocate<float>("test/exponents", exponents.size());
    auto to = device.arena.allocate<float>("test/powers", exponents.size());
    from.upload(exponents, device.stream);
    launch(powers_of_two<float>, Launch(1, 32, 0, device.stream), to.data(), from.data(),
           static_cast<int>(exponents.size()));
    std::vector<float> powers = to.download(device.stream);
    for (std::size_t i = 0; i < exponents.size(); i++) {
        double exact = std::exp2(static_cast<double>(exponents[i]));
        CHECK(std::abs(powers[i] - exact) <= (exponents[i] < -126.0f ? 1.2e-38 : 2.4e-7 * exact));
    }
}
