// The stand-in's atomics: each returns the old value, and none is lost between threads of the pool. Loads and stores
// with cache hints; the intrinsics of math_functions.h.
#include <doctest/doctest.h>

#include <bit>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <vector>

#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/kernels/launch.cuh"

namespace {

// Runs the kernel over data that begins as `initial` and returns it. Without the check of orders: what an atomic
// returns may depend on the order of threads.
template <class T, class... Parameters>
std::vector<T> run(void (*kernel)(T*, Parameters...), dim3 grid, dim3 block, const std::vector<T>& initial,
                   std::type_identity_t<Parameters>... arguments) {
    host::TestDevice device(host::parse_checks("memory,poison"));
    cudaStream_t stream = device.stream();
    T* data = device.allocate<T>(initial.size());
    cudaMemcpyAsync(data, initial.data(), initial.size() * sizeof(T), cudaMemcpyHostToDevice, stream);
    launch(kernel, Launch{grid, block, 0, stream}, data, arguments...);
    std::vector<T> result(initial.size());
    cudaMemcpyAsync(result.data(), data, result.size() * sizeof(T), cudaMemcpyDeviceToHost, stream);
    cudaError_t status = cudaStreamSynchronize(stream);
    INFO(device->fault_message());
    REQUIRE(status == cudaSuccess);
    return result;
}

// data: the old values, then the places.
template <class T>
__global__ void every_atomic(T* data) {
    T* at = data + 9;
    data[0] = atomicAdd(&at[0], T(3));
    data[1] = atomicSub(&at[1], T(3));
    data[2] = atomicExch(&at[2], T(3));
    data[3] = atomicMax(&at[3], T(3));
    data[4] = atomicMin(&at[4], T(3));
    data[5] = atomicAnd(&at[5], T(0x3c));
    data[6] = atomicOr(&at[6], T(0x3c));
    data[7] = atomicXor(&at[7], T(0x3c));
    data[8] = atomicCAS(&at[8], T(10), T(3));
}

template <class T>
void check_every_atomic() {
    for (T start : {T(10), T(2), T(0x55), std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest()}) {
        std::vector<T> result = run(every_atomic<T>, 1, 1, std::vector<T>(18, start));
        using Unsigned = std::make_unsigned_t<T>;
        const Unsigned u = static_cast<Unsigned>(start);
        for (int i = 0; i < 9; i++) REQUIRE(result[i] == start);
        const T* at = result.data() + 9;
        REQUIRE(at[0] == static_cast<T>(u + 3));
        REQUIRE(at[1] == static_cast<T>(u - 3));
        REQUIRE(at[2] == 3);
        REQUIRE(at[3] == std::max(start, T(3)));
        REQUIRE(at[4] == std::min(start, T(3)));
        REQUIRE(at[5] == static_cast<T>(u & 0x3c));
        REQUIRE(at[6] == static_cast<T>(u | 0x3c));
        REQUIRE(at[7] == static_cast<T>(u ^ 0x3c));
        REQUIRE(at[8] == (start == 10 ? T(3) : start));
    }
}

template <class T>
__global__ void floating_atomics(T* data) {
    data[0] = atomicAdd(&data[2], T(0.5));
    data[1] = atomicExch(&data[3], T(-7));
}

__global__ void wrapping_atomics(unsigned* data) {
    data[4] = atomicInc(&data[0], 5), data[5] = atomicInc(&data[1], 5);
    data[6] = atomicDec(&data[2], 5), data[7] = atomicDec(&data[3], 5);
}

// Many blocks on all threads of the pool at the same few places.
__global__ void contended(int* data) {
    atomicAdd(&data[0], 1);
    atomicSub(&data[1], 2);
    atomicMax(&data[2], static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
    atomicMin(&data[3], -static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
    atomicXor(&data[4], 1 << (threadIdx.x % 31));
    atomicOr(&data[5], 1 << (blockIdx.x % 31));
    atomicAnd(&data[6], ~(1 << (threadIdx.x % 31)));
    atomicInc(reinterpret_cast<unsigned*>(&data[7]), 1000000);
    int seen = data[8];
    for (int now; (now = atomicCAS(&data[8], seen, seen + 1)) != seen;) seen = now;
    atomicAdd(reinterpret_cast<float*>(&data[9]), 1.0f);
}

// Everyone draws a number; numbers are distinct.
__global__ void tickets(int* data) { data[1 + atomicAdd(&data[0], 1)] += 1; }

__global__ void cached(int4* data) {
    data[4] = __ldg(&data[0]), data[5] = __ldca(&data[1]), data[6] = __ldcg(&data[2]), data[7] = __ldcs(&data[3]);
    int4 v = __ldlu(&data[0]);
    v.w = __ldcv(&data[1].w);
    __stwb(&data[8], v), __stcg(&data[9], v), __stcs(&data[10], v), __stwt(&data[11], v);
}

}   // namespace

TEST_CASE("exec: every atomic returns the old value and leaves the new one") {
    check_every_atomic<int>();
    check_every_atomic<unsigned>();
    check_every_atomic<unsigned long long>();
    check_every_atomic<long long>();
    std::vector<float> f = run(floating_atomics<float>, 1, 1, {0, 0, 1.25f, 4});
    CHECK(f == std::vector<float>{1.25f, 4, 1.75f, -7});
    std::vector<double> d = run(floating_atomics<double>, 1, 1, {0, 0, 1.25, 4});
    CHECK(d == std::vector<double>{1.25, 4, 1.75, -7});
    // up to the limit and round to 0; from 0, or from above the limit, to the limit
    std::vector<unsigned> wrapped = run(wrapping_atomics, 1, 1, {4, 5, 0, 9, 0, 0, 0, 0});
    CHECK(wrapped == std::vector<unsigned>{5, 0, 5, 5, 4, 5, 0, 9});
}

TEST_CASE("exec: no atomic is lost between blocks on several threads") {
    const int blocks = 310, threads = 93, all = blocks * threads;
    std::vector<int> result = run(contended, blocks, threads, {0, 0, 0, 0, 0, 0, -1, 0, 0, 0});
    CHECK(result[0] == all);
    CHECK(result[1] == -2 * all);
    CHECK(result[2] == all - 1);
    CHECK(result[3] == 1 - all);
    CHECK(result[4] == 0);   // each bit 3 * 310 times
    CHECK(result[5] == 0x7fffffff);
    CHECK(result[6] == INT_MIN);
    CHECK(result[7] == all);
    CHECK(result[8] == all);
    CHECK(std::bit_cast<float>(result[9]) == static_cast<float>(all));
    std::vector<int> drawn = run(tickets, 40, 64, std::vector<int>(1 + 40 * 64, 0));
    for (int i = 1; i <= 40 * 64; i++) REQUIRE(drawn[i] == 1);
}

TEST_CASE("exec: loads and stores with cache hints move what they are told to") {
    std::vector<int4> data(12);
    for (int i = 0; i < 4; i++) data[i] = {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3};
    std::vector<int4> result = run(cached, 1, 1, data);
    auto same = [](int4 a, int4 b) { return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w; };
    for (int i = 0; i < 4; i++) {
        CHECK(same(result[4 + i], data[i]));
        CHECK(same(result[8 + i], int4{0, 1, 2, 7}));
    }
}

TEST_CASE("exec_math: integer intrinsics") {
    for (unsigned x : {0u, 1u, 2u, 0x80000000u, 0xffffffffu, 0x00f01200u, 0x12345678u}) {
        CAPTURE(x);
        int ones = 0, leading = 32, first = 0;
        unsigned reversed = 0;
        for (int i = 0; i < 32; i++) {
            if (!(x >> i & 1u)) continue;
            ones++, leading = 31 - i, reversed |= 1u << (31 - i);
            if (!first) first = i + 1;
        }
        CHECK(__popc(x) == ones);
        CHECK(__clz(static_cast<int>(x)) == leading);
        CHECK(__ffs(static_cast<int>(x)) == first);
        CHECK(__brev(x) == reversed);
        CHECK(__popcll(static_cast<unsigned long long>(x) << 32 | x) == 2 * ones);
        CHECK(__clzll(x) == 32 + leading);
        CHECK(__ffsll(static_cast<long long>(x) << 20) == (first ? first + 20 : 0));
        for (unsigned y : {0u, 3u, 0x87654321u, 0xffffffffu}) {
            CHECK(__umulhi(x, y) == static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32));
            for (unsigned shift : {0u, 1u, 31u, 33u}) {
                const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
                CHECK(__funnelshift_l(x, y, shift) == static_cast<unsigned>(both << (shift % 32) >> 32));
                CHECK(__funnelshift_r(x, y, shift) == static_cast<unsigned>(both >> (shift % 32)));
            }
        }
    }
    CHECK(__mulhi(-5, 3) == -1);
    CHECK(__mulhi(INT_MIN, INT_MIN) == 1 << 30);
    CHECK(__umul64hi(~0ull, ~0ull) == ~0ull - 1);
    CHECK(__byte_perm(0x33221100u, 0x77665544u, 0x7531u) == 0x77553311u);
    CHECK(__byte_perm(0x00008000u, 0u, 0x0909u) == 0x00ff00ffu);
    CHECK(min(-1, 2u) == 2u);   // as in CUDA, the signed one is converted
    CHECK(max(-1, 2u) == 0xffffffffu);
    CHECK(min(NAN, 3.0f) == 3.0f);
    CHECK(max(2.0, NAN) == 2.0);
}

TEST_CASE("exec_math: conversions saturate and round as their names say") {
    CHECK(__float2int_rz(-1.9f) == -1);
    CHECK(__float2int_rn(2.5f) == 2);
    CHECK(__float2int_rn(3.5f) == 4);
    CHECK(__float2int_rd(-1.1f) == -2);
    CHECK(__float2int_ru(1.1f) == 2);
    for (auto convert : {__float2int_rz, __float2int_rn, __float2int_rd, __float2int_ru}) {
        CHECK(convert(3e9f) == INT_MAX);
        CHECK(convert(-3e9f) == INT_MIN);
        CHECK(convert(NAN) == 0);
    }
    CHECK(__float2uint_rz(-1.0f) == 0u);
    CHECK(__float2uint_rn(5e9f) == UINT_MAX);
    CHECK(__uint2float_rn(0xffffffffu) == 4294967296.0f);
    CHECK(__float_as_uint(-0.0f) == 0x80000000u);
    CHECK(__int_as_float(0x3f800000) == 1.0f);
    CHECK(__longlong_as_double(__double_as_longlong(-2.5)) == -2.5);
    CHECK(__saturatef(NAN) == 0.0f);
    CHECK(__saturatef(-2.0f) == 0.0f);
    CHECK(__saturatef(2.0f) == 1.0f);
    CHECK(__saturatef(0.25f) == 0.25f);
}

TEST_CASE("exec_math: the fast exponential is within two units in the last place, and ends where it says") {
    double worst = 0;
    for (float x = -87.0f; x < 88.0f; x += 0.00371f) {
        const double exact = std::exp(static_cast<double>(x));
        worst = std::max(worst, std::fabs(__expf(x) - exact) / (exact * 0x1p-23));
    }
    CHECK(worst <= 2.0);
    CHECK(__expf(-87.5f) == 0.0f);
    CHECK(__expf(-INFINITY) == 0.0f);
    CHECK(std::isinf(__expf(88.5f)));
    CHECK(std::isnan(__expf(NAN)));
}
