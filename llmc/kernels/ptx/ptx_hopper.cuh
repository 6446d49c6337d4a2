// Wraps instructions that only sm_90a has, as ptx.cuh does for others: barriers in shared memory (mbarrier), copies of
// tiles (TMA), products by groups of four warps (wgmma). All of them are asynchronous, and the models are as late as a
// GPU may be:
//   - a copy spoils its target when issued and is delivered when a thread waits for it in vain;
//   - a product spoils its sums when issued and reads its operands only at the wait that ends it;
//   - what ordinary stores wrote is not seen by copies and products without fence_proxy_async.
// So a missing wait, fence or arrival gives NaN, a fault that names the mistake, or a deadlock. Other architectures
// compile these functions but must not instantiate them: see hopper_instructions.
//
// Operands of copies and products lie in dynamic shared memory (DYNAMIC_SHARED), in panels: rows of 64 bf16 (128
// bytes), 16-byte pieces swizzled as a TensorMap's boxes are, each panel at a multiple of 1,024 bytes.
//
// Source: PTX ISA 9.0, "mbarrier", "cp.async.bulk.tensor", "Asynchronous Warpgroup Level Matrix
// Instructions".
#pragma once

#include "llmc/kernels/ptx/ptx.cuh"
#include "llmc/kernels/ptx/ptx_tensor_map.cuh"

// True if the code compiled here may use these instructions.
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool hopper_instructions = true;
#else
inline constexpr bool hopper_instructions = false;
#endif

#ifndef __CUDACC__
#include "llmc/cuda_on_cpu/ptx/ptx_hopper.h"
#else

// ---------------------------------------------------------------------------------------------------------------------
// mbarrier: 8 bytes of shared memory. A phase ends when the expected number of threads have arrived and the bytes that
// they announced have been copied; the next phase begins at once. Phases are known by their parity: the first is 0.

__device__ __forceinline__ void mbarrier_init(SharedAddress barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Must come between a thread's mbarrier_init and the copies that use the barriers. Other threads need a barrier of the
// block, too.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(SharedAddress barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and lets the phase end only after `bytes` more have been copied.
__device__ __forceinline__ void mbarrier_arrive_expect(SharedAddress barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits for the end of the phase of this parity: returns at once if the current phase has the other one. After 20
// million tries, each of which waits a while, it traps: a mistake is an error, not a hang. (All in one asm: a loop in
// C++ makes attention's registers spill.)
__device__ __forceinline__ void mbarrier_wait(SharedAddress barrier, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        ".reg .u32 tries;\n"
        "mov.u32 tries, 0;\n"
        "MBARRIER_AGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra MBARRIER_OVER;\n"
        "add.u32 tries, tries, 1;\n"
        "setp.lt.u32 p, tries, 20000000;\n"
        "@p bra MBARRIER_AGAIN;\n"
        "trap;\n"
        "MBARRIER_OVER:\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Barriers of some warps of a block, numbered 1 to 15: `threads` threads, in whole warps, sync or arrive.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---------------------------------------------------------------------------------------------------------------------
// Copies of a box of a tensor. Coordinates are those of the box's first element, the innermost dimension first, and may
// lie outside the tensor.

// Copies a box into shared memory; all its bytes, also those outside the tensor, count for `barrier`. One thread calls
// it.
__device__ __forceinline__ void tma_load(SharedAddress target, const TensorMap& map, SharedAddress barrier, int c0,
                                         int c1, int c2, int c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(target),
        "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

// Copies a box from shared memory to the tensor; the calling thread commits and waits. No coordinate is negative: an
// H200 ends the kernel with an illegal instruction then (loads may begin there, and stores may end outside).
__device__ __forceinline__ void tma_store(const TensorMap& map, SharedAddress source, int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until the sources of all the thread's committed stores have been read. A thread must call it before it ends,
// too.
__device__ __forceinline__ void tma_store_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Makes the calling thread's stores to `bytes` of shared memory from `first` on visible to copies and products that
// come after a barrier. (Only the model uses the range.)
__device__ __forceinline__ void fence_proxy_async(SharedAddress, int) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---------------------------------------------------------------------------------------------------------------------
// wgmma: d (64, N) = a (64, 16) b (16, N), or d += a b, by the 128 threads of an aligned group of four warps, which all
// call it. bf16 in, fp32 sums. With g = lane / 4 and t = lane % 4 * 2, a lane of warp w of the group holds
//     d[4 j + e] = element (16 w + g + e / 2 * 8, 8 j + t + e % 2)
// and an `a` in registers has the layout of mma_m16n8k16 for rows 16 w to 16 w + 15. Order: wgmma_fence after the
// registers were last touched and before each batch; the batch's products; wgmma_commit; wgmma_wait before its sums are
// touched or its operands overwritten, in registers or in shared memory. Rounding: products are exact; the model adds
// them one by one in fp32, the hardware in groups, truncated.

// Keeps compilers from moving code that computes or uses these registers across this place.
__device__ __forceinline__ void pin_registers(float& value) { asm volatile("" : "+f"(value)::"memory"); }
__device__ __forceinline__ void pin_registers(std::uint32_t& value) { asm volatile("" : "+r"(value)::"memory"); }
template <class T, std::size_t N>
__device__ __forceinline__ void pin_registers(T (&values)[N]) {
#pragma unroll
    for (std::size_t i = 0; i < N; i++) pin_registers(values[i]);
}

// Starts a batch. `registers`: the batch's sums and operands in registers.
template <class... Registers>
__device__ __forceinline__ void wgmma_fence(Registers&... registers) {
    (pin_registers(registers), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING committed batches, the latest ones, are still running. `registers`: the sums and operands
// in registers of the batches that have ended.
template <int PENDING, class... Registers>
__device__ __forceinline__ void wgmma_wait(Registers&... registers) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    (pin_registers(registers), ...);
}

// Makes `value` be computed here, not after the following wgmma_wait. ptxas moves waits up past all code that they do
// not depend on, so work meant to run beside a product would come after it. A store keeps the order; this one happens
// only if the sign bit of `value` is set. Pass a value whose sign bit is never set, and an unused word.
__device__ __forceinline__ void computed_before_wait(std::uint32_t value, SharedAddress unused) {
    asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %0, 0;\n@p st.volatile.shared.u32 [%1], %0;\n}" ::"r"(value),
                 "r"(unused)
                 : "memory");
}

// Returns an address as descriptors count it: bytes from the start of the block's shared memory.
__device__ __forceinline__ std::uint32_t shared_offset(SharedAddress address) { return address; }

#define WGMMA_D8(d, i)                                                                                          \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define WGMMA_D16(d, i) WGMMA_D8(d, i), WGMMA_D8(d, i + 8)
#define WGMMA_D32(d, i) WGMMA_D16(d, i), WGMMA_D16(d, i + 16)
#define WGMMA_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_32                                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_64                                                                                        \
    WGMMA_32                                                                                            \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
    "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_96                                                                                             \
    WGMMA_64                                                                                                 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
    "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

// Multiplies two operands in shared memory; overwrites d if not `accumulate`.
template <bool A_TRANSPOSED = false, bool B_TRANSPOSED = false, int HALF_N>
__device__ __forceinline__ void wgmma(float (&d)[HALF_N], std::uint64_t a, std::uint64_t b, bool accumulate) {
    static_assert(HALF_N == 16 || HALF_N == 32 || HALF_N == 64 || HALF_N == 96, "N is 32, 64, 128 or 192");
    if constexpr (HALF_N == 16) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" WGMMA_16 "}, %16, %17, p, 1, 1, %19, %20;\n}"
            : WGMMA_D16(d, 0)
            : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));
    } else if constexpr (HALF_N == 32) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_32 "}, %32, %33, p, 1, 1, %35, %36;\n}"
            : WGMMA_D32(d, 0)
            : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));
    } else if constexpr (HALF_N == 64) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_64 "}, %64, %65, p, 1, 1, %67, %68;\n}"
            : WGMMA_D32(d, 0), WGMMA_D32(d, 32)
            : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));
    } else {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" WGMMA_96 "}, %96, %97, p, 1, 1, %99, %100;\n}"
            : WGMMA_D32(d, 0), WGMMA_D32(d, 32), WGMMA_D32(d, 64)
            : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));
    }
}

// Multiplies with `a` in registers.
template <bool B_TRANSPOSED = false, int HALF_N>
__device__ __forceinline__ void wgmma(float (&d)[HALF_N], const std::uint32_t (&a)[4], std::uint64_t b,
                                      bool accumulate) {
    static_assert(HALF_N == 32 || HALF_N == 64, "N is 64 or 128");
    if constexpr (HALF_N == 32) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_32
            "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
            : WGMMA_D32(d, 0)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)), "n"(B_TRANSPOSED));
    } else {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_64
            "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
            : WGMMA_D32(d, 0), WGMMA_D32(d, 32)
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)), "n"(B_TRANSPOSED));
    }
}

// Gives registers of the calling warp group back (registers_fewer), or waits for more (registers_more). All its warps
// call it.
template <int REGISTERS>
__device__ __forceinline__ void registers_fewer() {
    static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256);
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void registers_more() {
    static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256);
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#endif   // __CUDACC__

// Returns the descriptor of an operand in shared memory, from its first element on. Rows of panels are its M or N,
// columns the 16 of its K; a transposed operand is the other way round, and its next panel begins after 64 of its M or
// N, `panel_bytes` further. The next 16 columns of K are 32 bytes further (after 64 columns in the next panel);
// transposed, 16 rows (2,048 bytes). The operand begins `bytes` after `first`: compilers derive operands that differ
// only in `bytes` from one another by one addition.
__device__ __forceinline__ std::uint64_t wgmma_operand(SharedAddress first, int panel_bytes = 0, int bytes = 0) {
    const std::uint32_t address = shared_offset(first);
    constexpr std::uint64_t eight_rows = 1024 / 16, swizzled = 1;   // from 8 rows to the next; pieces in 128 bytes
    const std::uint32_t low = ((address & 0x3ffff) >> 4 | static_cast<std::uint32_t>(panel_bytes >> 4) << 16) +
                              static_cast<std::uint32_t>(bytes >> 4);   // 14 bits; no address exceeds them
    return low | eight_rows << 32 | swizzled << 62;
}
