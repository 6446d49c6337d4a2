// Models of the instructions in llmc/kernels/ptx/ptx_hopper.cuh, for machines without a GPU, as ptx.h has those of
// ptx.cuh.
//
// Copies and products run as late as a GPU may: when a thread waits for them, after all others that can run have come
// as far as they can. Until then the target of a copy and the sums of a product are NaN, and writes of other threads
// there are a fault. Copies and products see a separate copy of shared memory (the asynchronous proxy's), which
// ordinary stores reach only by fence_proxy_async.
#pragma once

#include <cstdint>

#include "llmc/cuda_on_cpu/ptx/ptx_copies.h"
#include "llmc/cuda_on_cpu/ptx/ptx_wgmma.h"

inline void mbarrier_init(SharedAddress barrier, int arrivals, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::mbarrier_init(barrier, arrivals);
}
inline void mbarrier_init_fence(HOST_SITE) { UNLESS_LEFT_OUT ptx_model::mbarrier_init_fence(); }
inline void mbarrier_arrive(SharedAddress barrier, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::mbarrier_arrive(barrier, 0);
}
inline void mbarrier_arrive_expect(SharedAddress barrier, int bytes, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::mbarrier_arrive(barrier, bytes);
}
inline void mbarrier_wait(SharedAddress barrier, int parity, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::mbarrier_wait(barrier, parity);
}
inline void named_barrier_sync(int barrier, int threads, HOST_SITE) {
    UNLESS_LEFT_OUT host::Block::current()->barrier(static_cast<unsigned>(barrier), static_cast<unsigned>(threads),
                                                    false, true, {site_file, site_line});
}
inline void named_barrier_arrive(int barrier, int threads, HOST_SITE) {
    UNLESS_LEFT_OUT host::Block::current()->barrier(static_cast<unsigned>(barrier), static_cast<unsigned>(threads),
                                                    false, false, {site_file, site_line});
}

inline void tma_load(SharedAddress target, const CUtensorMap& map, SharedAddress barrier, int c0, int c1, int c2,
                     int c3, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::tma_load(target, ptx_model::tensor_map(map), barrier, {c0, c1, c2, c3});
}
inline void tma_store(const CUtensorMap& map, SharedAddress source, int c0, int c1, int c2, int c3, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::tma_store(ptx_model::tensor_map(map), source, {c0, c1, c2, c3});
}
inline void tma_store_commit(HOST_SITE) { UNLESS_LEFT_OUT ptx_model::tma_store_commit(); }
inline void tma_store_wait(HOST_SITE) { UNLESS_LEFT_OUT ptx_model::tma_store_wait(); }
inline void fence_proxy_async(SharedAddress first, int bytes, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::fence_proxy_async(first, bytes);
}

// Overloads for one to three arrays of registers, as kernels have them: a defaulted argument cannot come after a pack.
template <class A>
void wgmma_fence(A&, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::wgmma_fence();
}
template <class A, class B>
void wgmma_fence(A&, B&, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::wgmma_fence();
}
inline void wgmma_commit(HOST_SITE) { UNLESS_LEFT_OUT ptx_model::wgmma_commit(); }
template <int PENDING>
void wgmma_wait(HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::wgmma_wait(PENDING);
}
template <int PENDING, class A>
void wgmma_wait(A&, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::wgmma_wait(PENDING);
}
template <int PENDING, class A, class B>
void wgmma_wait(A&, B&, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::wgmma_wait(PENDING);
}
template <int PENDING, class A, class B, class C>
void wgmma_wait(A&, B&, C&, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::wgmma_wait(PENDING);
}
inline void computed_before_wait(std::uint32_t, SharedAddress) {}

inline std::uint32_t shared_offset(SharedAddress address) { return ptx_model::shared_offset(address); }
template <bool A_TRANSPOSED = false, bool B_TRANSPOSED = false, int HALF_N>
void wgmma(float (&d)[HALF_N], std::uint64_t a, std::uint64_t b, bool accumulate, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::wgmma({d, nullptr, a, b, 2 * HALF_N, accumulate, A_TRANSPOSED, B_TRANSPOSED});
}
template <bool B_TRANSPOSED = false, int HALF_N>
void wgmma(float (&d)[HALF_N], const std::uint32_t (&a)[4], std::uint64_t b, bool accumulate, HOST_SITE) {
    UNLESS_LEFT_OUT ptx_model::wgmma({d, a, 0, b, 2 * HALF_N, accumulate, false, B_TRANSPOSED});
}

template <int REGISTERS>
void registers_fewer() {}
template <int REGISTERS>
void registers_more() {}
