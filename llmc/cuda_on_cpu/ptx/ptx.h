// Models of the instructions in llmc/kernels/ptx/ptx.cuh, in plain C++, for machines without a GPU. That file describes
// each function.
//
// Warp-wide instructions are a rendezvous (host::warp_collective): each lane brings its operands, the last to arrive
// computes for all 32. Asynchronous copies are kept in a list per thread until a wait delivers them, which is as late
// as a GPU may: all other threads that can run have come as far as they can. A write of theirs to the target of a
// pending copy is a fault. A thread that ends with copies that it has not waited for is a fault, too.
#pragma once

#ifdef __CUDACC__
#error "llmc/cuda_on_cpu/ptx is for builds without a GPU"
#endif

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "llmc/base/error.h"

namespace ptx_model {

// For tests of code that detects faulty hardware: from now on this instruction gives a wrong result.
enum class Damage {
    none,
    ldmatrix,
    ldmatrix_transposed,
    mma,
    pack,
    copy_16,
    copy_4,
    add_release,
    load_acquire,
    exp2,
    tma_load,
    tma_store,
    wgmma,
    wgmma_registers
};
inline Damage damage = Damage::none;

inline std::uint32_t bits_of(float value) {
    __nv_bfloat16 rounded = __float2bfloat16_rn(value);
    std::uint16_t bits;
    std::memcpy(&bits, &rounded, 2);
    return bits;
}

inline std::uint32_t pack(float low, float high) {
    if (damage == Damage::pack) std::swap(low, high);
    return bits_of(low) | bits_of(high) << 16;
}

// Return the bf16 in the low or high half of a register.
inline float low_of(std::uint32_t pair) { return __uint_as_float(pair << 16); }
inline float high_of(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

struct MatrixLoad {
    std::uint32_t* values;
    const unsigned char* row;
    bool transposed;
};

inline void ldmatrix(std::uint32_t (&values)[4], std::uintptr_t row, bool transposed) {
    MatrixLoad load{values, reinterpret_cast<const unsigned char*>(row), transposed};
    host::warp_collective(load, [](MatrixLoad* const* lanes) {
        for (int lane = 0; lane < 32; lane++) {
            for (int matrix = 0; matrix < 4; matrix++) {
                std::uint16_t pair[2];
                for (int k = 0; k < 2; k++) {
                    int i = lane / 4, j = lane % 4 * 2 + k;
                    if (lanes[lane]->transposed) std::swap(i, j);
                    if (damage == (lanes[lane]->transposed ? Damage::ldmatrix_transposed : Damage::ldmatrix)) j ^= 1;
                    std::memcpy(&pair[k], lanes[8 * matrix + i]->row + 2 * j, 2);
                }
                std::memcpy(&lanes[lane]->values[matrix], pair, 4);
            }
        }
    });
}

struct MatrixProduct {
    float* c;
    const std::uint32_t* a;
    std::uint32_t b0, b1;
};

inline void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    MatrixProduct product{c, a, b0, b1};
    host::warp_collective(product, [](MatrixProduct* const* lanes) {
        if (damage == Damage::mma) return;
        float left[16][16], right[16][8], sum[16][8];
        for (int lane = 0; lane < 32; lane++) {
            const MatrixProduct& part = *lanes[lane];
            int g = lane / 4, t = lane % 4 * 2;
            for (int e = 0; e < 4; e++) {
                int row = g + e % 2 * 8, column = t + e / 2 * 8;
                left[row][column] = low_of(part.a[e]);
                left[row][column + 1] = high_of(part.a[e]);
                sum[g + e / 2 * 8][t + e % 2] = part.c[e];
            }
            right[t][g] = low_of(part.b0);
            right[t + 1][g] = high_of(part.b0);
            right[t + 8][g] = low_of(part.b1);
            right[t + 9][g] = high_of(part.b1);
        }
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 16; k++)
                for (int j = 0; j < 8; j++) sum[i][j] += left[i][k] * right[k][j];
        for (int lane = 0; lane < 32; lane++)
            for (int e = 0; e < 4; e++) lanes[lane]->c[e] = sum[lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2];
    });
}

// Copies that a thread has issued: `groups` counts, for each committed group, the copies up to its end.
struct AsyncCopies {
    struct Copy {
        unsigned char* target;
        const void* source;
        int bytes;
        bool valid;
    };
    std::vector<Copy> copies;
    std::vector<std::size_t> groups;
    std::uint64_t block = 0;   // block whose thread issued them
};

// Returns the copies of the calling thread of the running block; those left by a block that ended with a fault are
// dropped.
inline AsyncCopies& my_copies() {
    static thread_local std::vector<AsyncCopies> of_thread(1024);
    AsyncCopies& mine = of_thread[host::thread_in_block()];
    if (mine.block != host::block_serial()) {
        mine.copies.clear();
        mine.groups.clear();
        mine.block = host::block_serial();
    }
    return mine;
}

constexpr unsigned char under_way = 0xff;   // byte of a target until its copy is delivered: NaN in fp32 and bf16

inline void let_others_run() {
    bool had_a_turn = false;
    host::wait_until([&] { return std::exchange(had_a_turn, true); }, "its turn");
}

// Faults if a thread ends with pending copies. Called when a thread ends.
inline void require_no_copies() {
    const std::size_t left = my_copies().copies.size();
    if (left == 0) return;
    std::string message = text("the thread ends with ", left,
                               " asynchronous copies that it has not waited for: they may "
                               "arrive in memory that is in use again (a cp_async_wait<0> is missing)");
    host::Block::current()->fail(host::FaultKind::trap, std::move(message));
}

inline void async_copy(std::uintptr_t address, const void* source, int bytes, bool valid) {
    auto* target = reinterpret_cast<unsigned char*>(address);
    if (my_copies().copies.empty()) {
        host::at_thread_end = require_no_copies;
        host::wait_until([] { return true; }, "nothing");   // makes threads call at_thread_end
    }
    std::memset(target, under_way, static_cast<std::size_t>(bytes));
    my_copies().copies.push_back({target, source, bytes, valid});
}

inline void commit_copies() {
    AsyncCopies& mine = my_copies();
    mine.groups.push_back(mine.copies.size());
}

inline void require_untouched(const unsigned char* target, int bytes) {
    for (int i = 0; i < bytes; i++) {
        if (target[i] == under_way) continue;
        host::Block::current()->fail(host::FaultKind::trap,
                                     "shared memory was written while an asynchronous copy into it was under way (a "
                                     "cp_async_wait, or the barrier after it, is missing)");
    }
}

inline void wait_copies(int pending) {
    let_others_run();
    AsyncCopies& mine = my_copies();
    std::ptrdiff_t finished = static_cast<std::ptrdiff_t>(mine.groups.size()) - pending;
    if (finished <= 0) return;
    std::size_t count = mine.groups[static_cast<std::size_t>(finished) - 1];
    for (std::size_t i = 0; i < count; i++) {
        const AsyncCopies::Copy& copy = mine.copies[i];
        require_untouched(copy.target, copy.bytes);
        if (copy.valid != (damage == (copy.bytes == 16 ? Damage::copy_16 : Damage::copy_4))) {
            std::memcpy(copy.target, copy.source, static_cast<std::size_t>(copy.bytes));
        } else {
            std::memset(copy.target, 0, static_cast<std::size_t>(copy.bytes));
        }
    }
    mine.copies.erase(mine.copies.begin(), mine.copies.begin() + static_cast<std::ptrdiff_t>(count));
    mine.groups.erase(mine.groups.begin(), mine.groups.begin() + finished);
    for (std::size_t& end : mine.groups) end -= count;
}

// Both functions let other threads of the block run now and then.
inline void add_release(int* count, int value) {
    host::Block::current()->polled();
    __atomic_fetch_add(count, damage == Damage::add_release ? 2 * value : value, __ATOMIC_RELEASE);
}
inline int load_acquire(const int* count) {
    host::Block::current()->polled();
    return __atomic_load_n(count, __ATOMIC_ACQUIRE) + (damage == Damage::load_acquire ? 1 : 0);
}

inline float exp2_flushed(float x) {
    float result = std::exp2(damage == Damage::exp2 ? x * 1.0001f : x);
    return result < FLT_MIN ? 0.0f : result;   // NaN stays NaN
}

}   // namespace ptx_model

using SharedAddress = std::uintptr_t;
inline SharedAddress shared_address(void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

inline void ldmatrix_x4(std::uint32_t (&values)[4], SharedAddress row, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::ldmatrix(values, row, false);
}
inline void ldmatrix_x4_transposed(std::uint32_t (&values)[4], SharedAddress row, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::ldmatrix(values, row, true);
}
inline void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::mma_m16n8k16(c, a, b0, b1);
}
inline std::uint32_t pack_bf16(float low, float high) { return ptx_model::pack(low, high); }

inline void cp_async_16(SharedAddress target, const void* source, bool valid, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::async_copy(target, source, 16, valid);
}
inline void cp_async_4(SharedAddress target, const void* source, bool valid, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::async_copy(target, source, 4, valid);
}
inline void cp_async_commit(HOST_SITE) { UNLESS_LEFT_OUT ptx_model::commit_copies(); }
template <int PENDING>
void cp_async_wait(HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::wait_copies(PENDING);
}
inline void prefetch_to_l2(const void*) {}

inline void add_release(int* count, int value, HOST_SITE) { UNLESS_LEFT_OUT ptx_model::add_release(count, value); }
inline int load_acquire(const int* count) { return ptx_model::load_acquire(count); }
inline void wait_acquire(const int* count, int value, HOST_SITE) {
    UNLESS_LEFT_OUT while (ptx_model::load_acquire(count) != value) {}
}

constexpr bool exp2_is_an_instruction = false;
inline float exp2_approximate(float x) { return ptx_model::exp2_flushed(x); }
