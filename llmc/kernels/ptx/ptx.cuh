// Wraps instructions that C++ does not offer, each in one small device function. Nothing else in the program contains
// assembly.
//
// Without a GPU (DEVICE=cpu), llmc/cuda_on_cpu/ptx has the same functions as models in plain C++. Kernels built from
// these functions run unchanged, lane by lane, and compute what the hardware computes, up to the rounding stated at
// each. The models are stricter than hardware:
//   - what a warp does together must be reached by all 32 lanes, else the launch fails with a deadlock;
//   - an asynchronous copy spoils its destination when issued and delivers as late as its wait allows, reading the
//     source only then: a missing wait, or a barrier missing before a buffer is filled again, gives NaN.
//
// Source: PTX ISA 9.0, sections "Warp-level matrix instructions" (fragment layouts), "cp.async", "Memory Consistency
// Model".
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#ifndef __CUDACC__
#include "llmc/cuda_on_cpu/ptx/ptx.h"
#else

// Address in shared memory, in bytes: 32 bits on a GPU, where pointers would cost registers.
using SharedAddress = std::uint32_t;

__device__ __forceinline__ SharedAddress shared_address(void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---------------------------------------------------------------------------------------------------------------------
// Matrices of 16-bit elements

// Loads four 8x8 matrices. Lane 8 m + r gives the address of row r (16 bytes, aligned) of matrix m; lane l receives in
// values[m] the elements (l / 4, l % 4 * 2) and (l / 4, l % 4 * 2 + 1) of matrix m, the first in the low half.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&values)[4], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(row)
                 : "memory");
}

// Loads four 8x8 matrices, each transposed: lane l receives the elements (l % 4 * 2, l / 4) and (l % 4 * 2 + 1, l / 4).
__device__ __forceinline__ void ldmatrix_x4_transposed(std::uint32_t (&values)[4], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(row)
                 : "memory");
}

// Computes c += a b with a (16, 16), b (16, 8) in bf16 and c (16, 8) in fp32. With g = lane / 4 and t = lane % 4 * 2,
// low half first, a lane holds
//     a[0]: (g, t), (g, t + 1)    a[1]: (g + 8, t), ...    a[2]: (g, t + 8), ...    a[3]: (g + 8, t + 8), ...
//     b0: (t, g), (t + 1, g)      b1: (t + 8, g), (t + 9, g)
//     c[0], c[1]: (g, t), (g, t + 1)                       c[2], c[3]: (g + 8, t), (g + 8, t + 1)
// Rounding: products are exact; the model adds them to c one by one in fp32, the hardware in groups, truncated.
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rounds two floats to bf16 (to nearest, ties to even) and packs them, `low` in the low half. Bit-exact in the model.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
    std::uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// ---------------------------------------------------------------------------------------------------------------------
// Asynchronous copies from global to shared memory: issue copies, commit them as a group, wait for groups. All three
// concern the calling thread's own copies; other threads see them after the wait and a barrier.

// Copies 16 bytes, bypassing the L1 cache; writes zeros, without reading the source, if not `valid`. Both addresses are
// 16-byte aligned.
__device__ __forceinline__ void cp_async_16(SharedAddress target, const void* source, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(valid ? 16 : 0)
                 : "memory");
}

// Copies 4 bytes; writes zeros if not `valid`.
__device__ __forceinline__ void cp_async_4(SharedAddress target, const void* source, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(valid ? 4 : 0)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of the committed groups, the latest ones, are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Prefetches the 128-byte line of `address` into the L2 cache: a hint, which changes no value.
__device__ __forceinline__ void prefetch_to_l2(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// ---------------------------------------------------------------------------------------------------------------------
// Counters in global memory, by which blocks tell each other what they have written:
//
//     threads of one block             threads of another
//     all write                        one calls wait_acquire
//     barrier                          barrier
//     one calls add_release            all read what was written
//
// Neither side needs a fence. PTX orders two threads by synchronization (a barrier with itself, a release with an
// acquire that reads its count or a count made from it by later additions) and by the program order of each thread, and
// this order ("base causality order") is transitive: a release publishes what its thread knows through a barrier, too.
// Source: PTX ISA 9.0, "Release and Acquire Patterns", "Memory synchronization", "Causality Order"; CUTLASS's
// semaphore.h does the same with a store.
//
// Blocks start in any order, so a block may only wait for blocks that have started. Let blocks draw numbers.

__device__ __forceinline__ void add_release(int* count, int value) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(count), "r"(value) : "memory");
}
__device__ __forceinline__ int load_acquire(const int* count) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(count) : "memory");
    return value;
}
// Waits until a load.acquire of the counter gives `value`. After a hundred million tries it traps: a mistake is an
// error, not a hang. (All in one asm: a loop in C++ makes attention's registers spill.)
__device__ __forceinline__ void wait_acquire(const int* count, int value) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        ".reg .s32 now;\n"
        ".reg .u32 tries;\n"
        "mov.u32 tries, 0;\n"
        "ACQUIRE_AGAIN:\n"
        "ld.acquire.gpu.global.s32 now, [%0];\n"
        "setp.eq.s32 p, now, %1;\n"
        "@p bra ACQUIRE_OVER;\n"
        "add.u32 tries, tries, 1;\n"
        "setp.lt.u32 p, tries, 100000000;\n"
        "@p bra ACQUIRE_AGAIN;\n"
        "trap;\n"
        "ACQUIRE_OVER:\n"
        "}" ::"l"(count),
        "r"(value)
        : "memory");
}

// ---------------------------------------------------------------------------------------------------------------------
// Arithmetic

// True if 2^x is one instruction. If not, loops are faster with a polynomial that compilers vectorise (exp.cuh).
constexpr bool exp2_is_an_instruction = true;

// Returns 2^x within 2 units in the last place; results below 2^-126 are zero. The model rounds as the C library does.
__device__ __forceinline__ float exp2_approximate(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

#endif   // __CUDACC__
