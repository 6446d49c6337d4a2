// Every function that kernels have from the stand-in, against what CUDA's documentation says of it: barriers, shuffles,
// votes, warp reductions; blocks of every awkward size and shape; lanes that wait apart.
#include <bit>
#include <cstdint>

#include "llmc/cuda_on_cpu/exec/run_kernel_testing.h"

using namespace run_kernel;

// ---------------------------------------------------------------------------------------------------------------------
// Shuffles

namespace {

enum class Shuffle { direct, up, down, exclusive_or };

template <class T>
__global__ void shuffle_kernel(T* out, Shuffle kind, int argument, int width) {
    const T value = value_of<T>(threadIdx.x);
    T& result = out[threadIdx.x];
    switch (kind) {
        case Shuffle::direct: result = __shfl_sync(full, value, argument, width); break;
        case Shuffle::up: result = __shfl_up_sync(full, value, static_cast<unsigned>(argument), width); break;
        case Shuffle::down: result = __shfl_down_sync(full, value, static_cast<unsigned>(argument), width); break;
        case Shuffle::exclusive_or: result = __shfl_xor_sync(full, value, argument, width); break;
    }
}

// The lane that CUDA's programming guide says is read: segments of `width` lanes; a source outside means one's own
// value (direct: taken modulo the width; xor: an earlier segment may be read, a later one not).
int source_lane(Shuffle kind, int lane, int argument, int width) {
    const int begin = lane / width * width, end = begin + width;
    switch (kind) {
        case Shuffle::direct: return begin + argument % width;
        case Shuffle::up: return lane - argument < begin ? lane : lane - argument;
        case Shuffle::down: return lane + argument >= end ? lane : lane + argument;
        case Shuffle::exclusive_or: return (lane ^ argument) >= end ? lane : lane ^ argument;
    }
    return -1;
}

template <class T>
void check_shuffles(unsigned threads) {
    for (Shuffle kind : {Shuffle::direct, Shuffle::up, Shuffle::down, Shuffle::exclusive_or}) {
        for (int width : {1, 2, 4, 8, 16, 32}) {
            for (int argument : {0, 1, 2, 5, 16, 31}) {
                CAPTURE(static_cast<int>(kind));
                CAPTURE(width);
                CAPTURE(argument);
                std::vector<T> result = run(shuffle_kernel<T>, 1, threads, threads, kind, argument, width);
                for (unsigned i = 0; i < threads; i++) {
                    const int lane = static_cast<int>(i % 32);
                    const unsigned source =
                        i - i % 32 + static_cast<unsigned>(source_lane(kind, lane, argument, width));
                    REQUIRE(result[i] == value_of<T>(source));
                }
            }
        }
    }
}

}   // namespace

TEST_CASE("exec: shuffles of every kind, width and size of value read the lane that CUDA reads") {
    check_shuffles<int>(64);
    check_shuffles<unsigned char>(32);
    check_shuffles<short>(32);
    check_shuffles<float>(96);
    check_shuffles<unsigned long long>(32);
    check_shuffles<double>(32);
}

// ---------------------------------------------------------------------------------------------------------------------
// Votes, masks and warp reductions

namespace {

struct Votes {
    unsigned ballot, any, all, any_none, all_all, active;
};
__global__ void votes_kernel(Votes* out, unsigned pattern) {
    const bool yes = pattern >> (threadIdx.x % 32) & 1u;
    const unsigned mask = __activemask();
    out[threadIdx.x] = {__ballot_sync(mask, yes),
                        static_cast<unsigned>(__any_sync(mask, yes)),
                        static_cast<unsigned>(__all_sync(mask, yes)),
                        static_cast<unsigned>(__any_sync(mask, 0)),
                        static_cast<unsigned>(__all_sync(mask, 7)),
                        mask};
}

struct Reductions {
    unsigned add, low, high, conjunction, disjunction, exclusive;
    int signed_add, signed_low, signed_high;
};
__global__ void reductions_kernel(Reductions* out, unsigned mask) {
    if (!(mask >> threadIdx.x & 1u)) return;
    const unsigned value = value_of<unsigned>(threadIdx.x);
    const int number = static_cast<int>(value);
    out[threadIdx.x] = {__reduce_add_sync(mask, value),          __reduce_min_sync(mask, value),
                        __reduce_max_sync(mask, value),          __reduce_and_sync(mask, value | 0x11u),
                        __reduce_or_sync(mask, value & 0xffffu), __reduce_xor_sync(mask, value),
                        __reduce_add_sync(mask, number),         __reduce_min_sync(mask, number),
                        __reduce_max_sync(mask, number)};
}

}   // namespace

TEST_CASE("exec: ballot, any, all and the active mask, in whole and in partial warps") {
    for (unsigned threads : {1u, 31u, 32u, 33u, 64u}) {
        for (unsigned pattern : {0u, 1u, 0x80000001u, 0x0f0f5a5au, full}) {
            CAPTURE(threads);
            CAPTURE(pattern);
            std::vector<Votes> result = run(votes_kernel, 1, threads, threads, pattern);
            for (unsigned i = 0; i < threads; i++) {
                const unsigned lanes = std::min(32u, threads - i / 32 * 32),
                               exist = lanes == 32 ? full : (1u << lanes) - 1;
                REQUIRE(result[i].active == exist);
                REQUIRE(result[i].ballot == (pattern & exist));
                REQUIRE(result[i].any == ((pattern & exist) != 0));
                REQUIRE(result[i].all == ((pattern & exist) == exist));
                REQUIRE(result[i].any_none == 0);
                REQUIRE(result[i].all_all == 1);
            }
        }
    }
}

TEST_CASE("exec: warp reductions over any lanes") {
    for (unsigned mask : {full, 1u, 0x80000000u, 0x0ff0a5a5u}) {
        CAPTURE(mask);
        std::vector<Reductions> result = run(reductions_kernel, 1, 32, 32, mask);
        Reductions want = {0, full, 0, full, 0, 0, 0, INT32_MAX, INT32_MIN};
        for (unsigned i = 0; i < 32; i++) {
            if (!(mask >> i & 1u)) continue;
            const unsigned value = value_of<unsigned>(i);
            const int number = static_cast<int>(value);
            want.add += value;
            want.low = std::min(want.low, value), want.high = std::max(want.high, value);
            want.conjunction &= value | 0x11u, want.disjunction |= value & 0xffffu, want.exclusive ^= value;
            want.signed_low = std::min(want.signed_low, number), want.signed_high = std::max(want.signed_high, number);
        }
        want.signed_add = static_cast<int>(want.add);
        for (unsigned i = 0; i < 32; i++) {
            const Reductions& got = result[i];
            const bool inside = mask >> i & 1u;
            REQUIRE(got.add == (inside ? want.add : 0));
            if (!inside) continue;
            REQUIRE(got.low == want.low);
            REQUIRE(got.high == want.high);
            REQUIRE(got.conjunction == want.conjunction);
            REQUIRE(got.disjunction == want.disjunction);
            REQUIRE(got.exclusive == want.exclusive);
            REQUIRE(got.signed_add == want.signed_add);
            REQUIRE(got.signed_low == want.signed_low);
            REQUIRE(got.signed_high == want.signed_high);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Lanes of one warp that wait in different collectives (independent thread scheduling)

namespace {

// Part of the warp does something of its own first; whoever arrives early at the shuffle of all waits there.
__global__ void some_before_all(int* out, unsigned some) {
    const unsigned lane = threadIdx.x % 32;
    int value = static_cast<int>(lane);
    if (some >> lane & 1u) value = 100 + static_cast<int>(__reduce_add_sync(some, 1u));
    out[threadIdx.x] = __shfl_xor_sync(full, value, 1);
}

// Does the same with __syncwarp, which hands data in shared memory over within a part of a warp.
__global__ void halves_then_all(int* out) {
    __shared__ int shared[32];
    const unsigned lane = threadIdx.x, half = lane / 16;
    shared[lane] = static_cast<int>(lane) * 3;
    int value = 0;
    if (half == 1) {
        __syncwarp(0xffff0000u);
        value = shared[lane ^ 5];
        __syncwarp(0xffff0000u);
        shared[lane] = value + 1;
    } else {
        shared[lane] = -1;
    }
    __syncwarp();
    out[lane] = shared[31 - lane];
}

// Two parts in collectives of their own at one line, then nested ones, then all.
__global__ void nested(int* out) {
    const unsigned lane = threadIdx.x;
    unsigned sum = 0;
    for (unsigned width = 2; width <= 32; width *= 2) {
        const unsigned first = lane / width * width, mask = (width == 32 ? full : (1u << width) - 1) << first;
        if (width > 2 && lane % width < 2) sum += __reduce_add_sync(3u << first, 1u);
        sum += __reduce_add_sync(mask, lane);
    }
    out[lane] = static_cast<int>(sum);
}

// Lanes of which each waits for the next, through masks that overlap in a circle: a deadlock of three.
__global__ void circle(int* out) {
    const unsigned lane = threadIdx.x;
    if (lane == 0) {
        __syncwarp(0b011);
        __syncwarp(0b101);
    } else if (lane == 1) {
        __syncwarp(0b110);
        __syncwarp(0b011);
    } else if (lane == 2) {
        __syncwarp(0b101);
        __syncwarp(0b110);
    }
    out[lane] = 1;
}

// A lane waits for all while another leaves the kernel after a collective of its own.
__global__ void leaves_after_some(int* out) {
    const unsigned lane = threadIdx.x;
    if (lane >= 30) {
        out[lane] = static_cast<int>(__ballot_sync(0xc0000000u, lane == 31));
        return;
    }
    out[lane] = static_cast<int>(__ballot_sync(full, 1));
}

// Two collectives that both wait for nobody but the lane that leaves.
__global__ void leaves_two_waiting(int* out) {
    const unsigned lane = threadIdx.x;
    if (lane >= 3) return;
    out[lane] = static_cast<int>(lane == 2 ? __ballot_sync(0b1100, 1) : __ballot_sync(0b1011, 1));
}

}   // namespace

TEST_CASE("exec: lanes wait for a whole warp while others are in a collective of fewer lanes") {
    for (unsigned some : {0x1u, 0x80000000u, 0xffu, 0xffff0000u, 0x55555555u, 0xfffffffeu}) {
        CAPTURE(some);
        std::vector<int> result = run(some_before_all, 2, 64, 64, some);
        for (unsigned i = 0; i < 64; i++) {
            const unsigned source = i % 32 ^ 1u;
            REQUIRE(result[i] == (some >> source & 1u ? 100 + std::popcount(some) : static_cast<int>(source)));
        }
    }
    std::vector<int> result = run(halves_then_all, 1, 32, 32);
    for (int i = 0; i < 32; i++) {
        const int source = 31 - i;
        REQUIRE(result[i] == (source >= 16 ? (source ^ 5) * 3 + 1 : -1));
    }
}

TEST_CASE("exec: collectives of parts of a warp nest") {
    std::vector<int> result = run(nested, 1, 32, 32);
    for (unsigned lane = 0; lane < 32; lane++) {
        unsigned sum = 0;
        for (unsigned width = 2; width <= 32; width *= 2) {
            if (width > 2 && lane % width < 2) sum += 2;
            for (unsigned other = lane / width * width; other < (lane / width + 1) * width; other++) sum += other;
        }
        REQUIRE(result[lane] == static_cast<int>(sum));
    }
    result = run(leaves_after_some, 1, 32, 32);
    for (unsigned lane = 0; lane < 32; lane++) {
        REQUIRE(static_cast<unsigned>(result[lane]) == (lane >= 30 ? 0x80000000u : 0x3fffffffu));
    }
}

TEST_CASE("exec: a lane that leaves the kernel ends all collectives that waited for it alone") {
    std::vector<int> result = run(leaves_two_waiting, 1, 32, 32);
    CHECK(result[0] == 0b0011);
    CHECK(result[1] == 0b0011);
    CHECK(result[2] == 0b0100);
}

TEST_CASE("exec: lanes that wait for each other in a circle are a deadlock") {
    const std::string message = fault(circle, 1, 32);
    CAPTURE(message);
    CHECK(host::contains(message, "deadlock: no thread of the block can go on"));
}

// ---------------------------------------------------------------------------------------------------------------------
// Blocks of every size and shape

namespace {

struct Counts {
    int count, any, all, none, sum;
};
// Every barrier with a vote, and a value that has passed through shared memory.
__global__ void barriers_kernel(Counts* out, unsigned every) {
    __shared__ int shared[1024];
    const unsigned thread = linear_thread(), size = block_size();
    shared[thread] = static_cast<int>(thread);
    const bool yes = thread % every == 0;
    const int count = __syncthreads_count(yes), any = __syncthreads_or(yes && thread > 0),
              all = __syncthreads_and(every == 1);
    const int next = shared[(thread + 1) % size];
    __syncthreads();
    shared[size - 1 - thread] = next;
    __syncthreads();
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    out[block * size + thread] = {count, any, all, __syncthreads_or(0), shared[thread]};
}

// Threads beyond the end leave at once; the others still meet in warp collectives (of those that are left).
__global__ void early_return(int* out, unsigned n) {
    if (threadIdx.x >= n) return;
    out[threadIdx.x] = __popc(__ballot_sync(full, 1)) + __popc(__activemask());
}

__global__ void positions_kernel(uint3* out) {
    out[((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * block_size() + linear_thread()] = threadIdx;
}

}   // namespace

TEST_CASE("exec: block barriers and their votes, in blocks of every size and shape") {
    const dim3 shapes[] = {
        1, 2, 31, 32, 33, 63, 255, 1000, 1023, 1024, dim3(1, 1, 64), dim3(3, 5, 7), dim3(32, 32), dim3(1, 1024)};
    for (dim3 shape : shapes) {
        const unsigned size = shape.x * shape.y * shape.z;
        CAPTURE(size);
        for (unsigned every : {1u, 3u, 2000u}) {
            std::vector<Counts> result = run(barriers_kernel, dim3(2, 1, 2), shape, 4 * size, every);
            for (unsigned i = 0; i < 4 * size; i++) {
                const unsigned thread = i % size;
                REQUIRE(result[i].count == static_cast<int>((size + every - 1) / every));
                REQUIRE(result[i].any == (size > every));
                REQUIRE(result[i].all == (every == 1));
                REQUIRE(result[i].none == 0);
                REQUIRE(result[i].sum == static_cast<int>((size - thread) % size));
            }
        }
    }
}

TEST_CASE("exec: threads know their place in blocks of two and three dimensions") {
    for (dim3 shape : {dim3(7), dim3(1, 9), dim3(4, 3, 2), dim3(2, 2, 64), dim3(16, 64)}) {
        const unsigned size = shape.x * shape.y * shape.z;
        std::vector<uint3> result = run(positions_kernel, dim3(2, 3), shape, 6 * size);
        for (unsigned i = 0; i < 6 * size; i++) {
            const unsigned thread = i % size;
            REQUIRE(result[i].x == thread % shape.x);
            REQUIRE(result[i].y == thread / shape.x % shape.y);
            REQUIRE(result[i].z == thread / shape.x / shape.y);
        }
    }
}

TEST_CASE("exec: threads that return early are not waited for in their warp") {
    for (unsigned n : {1u, 5u, 32u, 40u, 64u}) {
        CAPTURE(n);
        std::vector<int> result = run(early_return, 1, 64, 64, n);
        for (unsigned i = 0; i < 64; i++) {
            const unsigned in_warp = i < n ? std::min(32u, n - i / 32 * 32) : 0;
            REQUIRE(result[i] == static_cast<int>(2 * in_warp));
        }
    }
}
