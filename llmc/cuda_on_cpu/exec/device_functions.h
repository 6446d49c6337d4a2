// Device functions for kernels: barriers, warp collectives, atomics, loads and stores with cache hints, intrinsics.
//
// Included by the stand-in <cuda_runtime.h>; kernels include that. A subset with CUDA's names and meanings: growing it
// means the function and its test (device_functions_test.cu). Execution-space words and vector types are in
// vector_types.h, the scheduler behind all of this in block.h, arithmetic in math_functions.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "llmc/cuda_on_cpu/exec/block.h"
#include "llmc/cuda_on_cpu/exec/math_functions.h"
#include "llmc/cuda_on_cpu/exec/vector_types.h"

// ---- block barriers. All threads of the block must call the same one.

inline void __syncthreads(HOST_SITE) {
    host::Block& block = *host::Block::current();
    UNLESS_LEFT_OUT block.barrier(0, block.threads(), false, true, {site_file, site_line});
}
inline int __syncthreads_count(int predicate, HOST_SITE) {
    host::Block& block = *host::Block::current();
    return static_cast<int>(block.barrier(0, block.threads(), predicate != 0, true, {site_file, site_line}));
}
inline int __syncthreads_or(int predicate, HOST_SITE) {
    return __syncthreads_count(predicate, site_file, site_line) != 0;
}
inline int __syncthreads_and(int predicate, HOST_SITE) {
    return __syncthreads_count(!predicate, site_file, site_line) == 0;
}

// ---- memory fences: the threads of a block take turns on one CPU thread, and blocks meet only through atomics.

inline void __threadfence_block() {
    asm volatile("" ::: "memory");
    host::Block::current()->polled();
}
inline void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    host::Block::current()->polled();
}
inline void __threadfence_system() { __threadfence(); }

// ---- warp collectives

namespace host {

// Makes the lanes of `mask` meet; the last one to arrive calls finish(warp, participants) for all, then each goes on.
// Lanes bring values in warp().in[lane()] before and find results in warp().out[lane()] after.
template <class Finish>
inline void warp_meet(std::uint32_t mask, Site site, Finish) {
    static_assert(std::is_empty_v<Finish>, "the finishing function must not capture: it is another lane that calls it");
    Block::current()->rendezvous(mask, site,
                                 [](Warp& warp, std::uint32_t participants) { Finish()(warp, participants); });
}

// Ends the block: a warp-wide operation was reached by a warp of which some lanes do not exist or have left.
[[noreturn]] void fail_partial_warp();

// Runs models of warp-wide instructions (llmc/cuda_on_cpu/ptx). Every lane of a full warp passes the address of its
// operands, which stay on the lane's own stack; the last lane to arrive calls finish(Operands**) with all 32 and may
// read and write them in place.
template <class Operands, class Finish>
inline void warp_collective(Operands& operands, Finish, HOST_SITE) {
    static_assert(std::is_empty_v<Finish>, "the finishing function must not capture: it is another lane that calls it");
    Block& block = *Block::current();
    Operands* mine = &operands;
    block.warp().in[block.lane()] = reinterpret_cast<std::uint64_t>(mine);
    asm volatile("" ::: "memory");   // the operands are in memory before another lane looks, and read again after
    block.rendezvous(~0u, {site_file, site_line}, [](Warp& warp, std::uint32_t participants) {
        if (participants != ~0u) fail_partial_warp();
        Operands* all[warp_lanes];
        for (unsigned lane = 0; lane < warp_lanes; lane++) all[lane] = reinterpret_cast<Operands*>(warp.in[lane]);
        Finish()(all);
    });
    asm volatile("" ::: "memory");
}

// Return the running thread's index in its block, and a number that differs from block to block, for models that keep
// state per thread.
inline unsigned thread_in_block() { return Block::current()->thread(); }
inline std::uint64_t block_serial() { return Block::current()->serial(); }

// Lets other threads of the block run until ready() is true, for models of instructions that wait on memory (mbarrier).
// A wait that nothing can end is a deadlock fault that names `what`.
template <class Ready>
inline void wait_until(Ready&& ready, const char* what, HOST_SITE) {
    using Function = std::remove_reference_t<Ready>;
    Block::current()->wait_until([](void* context) { return static_cast<bool>((*static_cast<Function*>(context))()); },
                                 &ready, what, {site_file, site_line});
}

template <class T>
inline std::uint64_t to_slot(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "at most 8 bytes travel between lanes");
    std::uint64_t slot = 0;
    std::memcpy(&slot, &value, sizeof(T));
    return slot;
}
template <class T>
inline T from_slot(std::uint64_t slot) {
    T value;
    std::memcpy(&value, &slot, sizeof(T));
    return value;
}

// Finishes a shuffle, for all kinds; `source` is the lane to read from.
void finish_shuffle(Warp& warp, std::uint32_t participants);
template <class T>
inline T shuffle(std::uint32_t mask, T value, unsigned source, Site site) {
    Block& block = *Block::current();
    Warp& warp = block.warp();
    unsigned lane = block.lane();
    warp.in[lane] = to_slot(value);
    warp.source[lane] = static_cast<std::uint8_t>(source);
    block.rendezvous(mask, site, finish_shuffle);
    return from_slot<T>(warp.out[lane]);
}

void finish_ballot(Warp& warp, std::uint32_t participants);
inline std::uint32_t ballot(std::uint32_t mask, bool predicate, Site site) {
    Block& block = *Block::current();
    Warp& warp = block.warp();
    unsigned lane = block.lane();
    warp.in[lane] = predicate;
    block.rendezvous(mask, site, finish_ballot);
    return static_cast<std::uint32_t>(warp.out[lane]);
}

// Reduces integers over the lanes of a mask; op is associative and commutative, so the order does not matter.
template <class T, class Op>
inline T reduce(std::uint32_t mask, T value, Op, Site site) {
    Block& block = *Block::current();
    Warp& warp = block.warp();
    unsigned lane = block.lane();
    warp.in[lane] = to_slot(value);
    block.rendezvous(mask, site, [](Warp& all, std::uint32_t participants) {
        T result = from_slot<T>(all.in[__builtin_ctz(participants)]);
        for (std::uint32_t rest = participants & (participants - 1); rest; rest &= rest - 1) {
            result = Op()(result, from_slot<T>(all.in[__builtin_ctz(rest)]));
        }
        for (std::uint32_t rest = participants; rest; rest &= rest - 1) all.out[__builtin_ctz(rest)] = to_slot(result);
    });
    return from_slot<T>(warp.out[lane]);
}

}   // namespace host

inline void __syncwarp(unsigned mask = 0xffffffffu, HOST_SITE) {
    host::Block::current()->rendezvous(mask, {site_file, site_line}, [](host::Warp&, std::uint32_t) {});
}
inline unsigned __activemask(HOST_SITE) { return host::Block::current()->active_mask({site_file, site_line}); }

// Shuffles: a lane outside its segment of `width` lanes is never read; xor may read a lower segment, as CUDA's does.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source_lane, int width = warpSize, HOST_SITE) {
    unsigned lane = host::Block::current()->lane(), segment = static_cast<unsigned>(width) - 1u;
    return host::shuffle(mask, value, (lane & ~segment) | (static_cast<unsigned>(source_lane) & segment),
                         {site_file, site_line});
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, HOST_SITE) {
    unsigned lane = host::Block::current()->lane(), segment = static_cast<unsigned>(width) - 1u;
    return host::shuffle(mask, value, (lane & segment) >= delta ? lane - delta : lane, {site_file, site_line});
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, HOST_SITE) {
    unsigned lane = host::Block::current()->lane(), segment = static_cast<unsigned>(width) - 1u;
    return host::shuffle(mask, value, delta <= segment - (lane & segment) ? lane + delta : lane,
                         {site_file, site_line});
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize, HOST_SITE) {
    unsigned lane = host::Block::current()->lane(), segment = static_cast<unsigned>(width) - 1u;
    unsigned source = lane ^ static_cast<unsigned>(lane_mask);
    return host::shuffle(mask, value, source <= (lane | segment) ? source : lane, {site_file, site_line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, HOST_SITE) {
    return host::ballot(mask, predicate != 0, {site_file, site_line});
}
inline int __any_sync(unsigned mask, int predicate, HOST_SITE) {
    return host::ballot(mask, predicate != 0, {site_file, site_line}) != 0;
}
inline int __all_sync(unsigned mask, int predicate, HOST_SITE) {
    return host::ballot(mask, predicate == 0, {site_file, site_line}) == 0;
}

#define HOST_WARP_REDUCE(name, type, expression)                                                                     \
    inline type name(unsigned mask, type value, HOST_SITE) {                                                         \
        return host::reduce(mask, value, [](type a, type b) -> type { return expression; }, {site_file, site_line}); \
    }
HOST_WARP_REDUCE(__reduce_add_sync, unsigned, a + b)
HOST_WARP_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
HOST_WARP_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
HOST_WARP_REDUCE(__reduce_min_sync, int, a < b ? a : b)
HOST_WARP_REDUCE(__reduce_max_sync, int, a > b ? a : b)
HOST_WARP_REDUCE(__reduce_and_sync, unsigned, a& b)
HOST_WARP_REDUCE(__reduce_or_sync, unsigned, a | b)
HOST_WARP_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef HOST_WARP_REDUCE
inline int __reduce_add_sync(unsigned mask, int value, HOST_SITE) {
    return static_cast<int>(__reduce_add_sync(mask, static_cast<unsigned>(value), site_file, site_line));
}

// ---- atomics. Relaxed, as CUDA's; each returns the old value. Threads may spin on them (Block::polled).

namespace host {

// Integer type of T's size, which compare-and-swap works on.
template <class T>
using AtomicBits =
    std::conditional_t<sizeof(T) == 2, std::uint16_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;

template <class T, class Update>
inline T atomic_update(T* address, Update update) {
    using Bits = AtomicBits<T>;
    static_assert(sizeof(T) == sizeof(Bits));
    Block::current()->polled();
    Bits* place = reinterpret_cast<Bits*>(address);
    Bits seen = __atomic_load_n(place, __ATOMIC_RELAXED), wanted;
    T old;
    do {
        std::memcpy(&old, &seen, sizeof(T));
        T changed = update(old);
        std::memcpy(&wanted, &changed, sizeof(T));
    } while (!__atomic_compare_exchange_n(place, &seen, wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

}   // namespace host

template <class T>
inline T atomicAdd(T* address, std::type_identity_t<T> value) {
    if constexpr (std::is_integral_v<T>) {
        host::Block::current()->polled();
        return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
    } else {
        return host::atomic_update(address, [value](T old) -> T { return old + value; });
    }
}
template <class T>
inline T atomicSub(T* address, std::type_identity_t<T> value) {
    host::Block::current()->polled();
    return __atomic_fetch_sub(address, value, __ATOMIC_RELAXED);
}
template <class T>
inline T atomicExch(T* address, std::type_identity_t<T> value) {
    return host::atomic_update(address, [value](T) { return value; });
}
template <class T>
inline T atomicMax(T* address, std::type_identity_t<T> value) {
    return host::atomic_update(address, [value](T old) { return old < value ? value : old; });
}
template <class T>
inline T atomicMin(T* address, std::type_identity_t<T> value) {
    return host::atomic_update(address, [value](T old) { return value < old ? value : old; });
}
template <class T>
inline T atomicAnd(T* address, std::type_identity_t<T> value) {
    host::Block::current()->polled();
    return __atomic_fetch_and(address, value, __ATOMIC_RELAXED);
}
template <class T>
inline T atomicOr(T* address, std::type_identity_t<T> value) {
    host::Block::current()->polled();
    return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}
template <class T>
inline T atomicXor(T* address, std::type_identity_t<T> value) {
    host::Block::current()->polled();
    return __atomic_fetch_xor(address, value, __ATOMIC_RELAXED);
}
template <class T>
inline T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    return host::atomic_update(address, [expected, value](T old) { return old == expected ? value : old; });
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
    return host::atomic_update(address, [limit](unsigned old) { return old >= limit ? 0u : old + 1u; });
}
inline unsigned atomicDec(unsigned* address, unsigned limit) {
    return host::atomic_update(address, [limit](unsigned old) { return old == 0 || old > limit ? limit : old - 1u; });
}

// ---- loads and stores with cache hints, which a CPU has no use for

template <class T>
inline T __ldg(const T* address) {
    return *address;
}
template <class T>
inline T __ldca(const T* address) {
    return *address;
}
template <class T>
inline T __ldcg(const T* address) {
    return *address;
}
template <class T>
inline T __ldcs(const T* address) {
    return *address;
}
template <class T>
inline T __ldlu(const T* address) {
    return *address;
}
template <class T>
inline T __ldcv(const T* address) {   // always from memory, for threads that wait for another
    host::Block::current()->polled();
    return *static_cast<const volatile T*>(address);
}
template <class T>
inline void __stwb(T* address, std::type_identity_t<T> value) {
    *address = value;
}
template <class T>
inline void __stcg(T* address, std::type_identity_t<T> value) {
    *address = value;
}
template <class T>
inline void __stcs(T* address, std::type_identity_t<T> value) {
    *address = value;
}
template <class T>
inline void __stwt(T* address, std::type_identity_t<T> value) {
    *address = value;
}

// ---- the rest

[[noreturn]] inline void __trap(HOST_SITE) {
    host::Block::current()->fail(host::FaultKind::trap, host::trap_text(site_file, site_line));
}
inline void __nanosleep(unsigned) { host::Block::current()->polled(true); }
