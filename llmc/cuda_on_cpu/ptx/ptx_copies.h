// Models of mbarriers and of the copies of tiles that arrive at them, for ptx_hopper.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "llmc/cuda_on_cpu/ptx/ptx_hopper_state.h"

namespace ptx_model {

struct Barrier {
    std::uint16_t expected, pending;
    std::int32_t bytes : 22;   // expected bytes minus arrived bytes
    std::uint32_t phase : 1, fenced : 1, made : 8;
    static constexpr std::uint32_t is_made = 0x4d;
};
static_assert(sizeof(Barrier) == 8);

inline Barrier& barrier_at(std::uintptr_t address) {
    Barrier& barrier = *reinterpret_cast<Barrier*>(address);
    if (barrier.made != Barrier::is_made) fault("an mbarrier is used before mbarrier_init");
    return barrier;
}
inline void end_phase_if_complete(Barrier& barrier) {
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    barrier.pending = barrier.expected;
    barrier.phase ^= 1u;
}

inline void mbarrier_init(std::uintptr_t address, int arrivals) {
    const auto count = static_cast<std::uint16_t>(arrivals);
    thread_state().unfenced_barriers.push_back(address);
    *reinterpret_cast<Barrier*>(address) = Barrier{count, count, 0, 0, 0, Barrier::is_made};
}
inline void mbarrier_init_fence() {
    std::vector<std::uintptr_t>& unfenced = thread_state().unfenced_barriers;
    for (const std::uintptr_t address : unfenced) barrier_at(address).fenced = 1;
    unfenced.clear();
}
inline void mbarrier_arrive(std::uintptr_t address, int bytes) {
    block_state();
    Barrier& barrier = barrier_at(address);
    if (bytes >= 1 << 20) fault(text("an mbarrier is to wait for ", bytes, " bytes: at most 1,048,575 can be said"));
    if (barrier.pending == 0) fault("more threads arrive at an mbarrier than it was made for");
    barrier.bytes += bytes;
    barrier.pending--;
    end_phase_if_complete(barrier);
}

inline void deliver(const TensorLoad& load);

inline void mbarrier_wait(std::uintptr_t address, int parity) {
    BlockState& block = block_state();
    barrier_at(address);   // made before this thread came here, not only while others have their turn
    let_others_run();
    auto ended = [&] {
        Barrier& barrier = barrier_at(address);
        if (barrier.phase != static_cast<unsigned>(parity)) return true;
        // Loads are removed one by one: a fault in `deliver` abandons this thread's stack and everything on it.
        for (std::size_t i = 0; i < block.loads.size() && barrier.phase == static_cast<unsigned>(parity);) {
            const TensorLoad load = block.loads[i];
            if (load.barrier != address) {
                i++;
                continue;
            }
            block.loads.erase(block.loads.begin() + static_cast<std::ptrdiff_t>(i));
            deliver(load);
        }
        return barrier.phase != static_cast<unsigned>(parity);
    };
    host::wait_until(ended, "an mbarrier");
}

// Calls piece(offset of 16 bytes in the tile, their address in the tensor or null where they lie outside).
template <class Piece>
void for_each_piece(const TensorMap& map, const Coordinates& first, Piece piece) {
    std::uint32_t offset = 0;
    for (std::uint32_t i3 = 0; i3 < map.box[3]; i3++)
        for (std::uint32_t i2 = 0; i2 < map.box[2]; i2++)
            for (std::uint32_t i1 = 0; i1 < map.box[1]; i1++)
                for (std::uint32_t i0 = 0; i0 < map.box[0]; i0 += 8, offset += 16) {
                    const std::uint32_t index[4] = {i0, i1, i2, i3};
                    std::uintptr_t address = reinterpret_cast<std::uintptr_t>(map.data);
                    bool inside = true;
                    for (int d = 0; d < 4; d++) {
                        const std::int64_t at = std::int64_t{first.at[d]} + index[d];
                        inside = inside && at >= 0 && static_cast<std::uint64_t>(at) < map.sizes[d];
                        address += static_cast<std::uintptr_t>(at) * map.strides[d];
                    }
                    piece(offset, inside ? reinterpret_cast<unsigned char*>(address) : nullptr);
                }
}
inline std::uint32_t box_bytes(const TensorMap& map) { return 2 * map.box[0] * map.box[1] * map.box[2] * map.box[3]; }
inline std::uint32_t panel_offset(std::uintptr_t address) {
    const std::uint32_t offset = shared_offset(address);
    if (offset % 1024 != 0) fault("a panel does not begin at a multiple of 1,024 bytes of shared memory");
    return offset;
}

inline void tma_load(std::uintptr_t target, const TensorMap& map, std::uintptr_t barrier, Coordinates from) {
    BlockState& block = block_state();
    if (!barrier_at(barrier).fenced) fault("a copy uses an mbarrier without a mbarrier_init_fence");
    const std::uint32_t offset = panel_offset(target);
    std::memset(shared_bytes_at(offset), under_way, box_bytes(map));
    std::memset(&block.seen[offset], under_way, box_bytes(map));
    block.loads.push_back({offset, map, barrier, from});
}

inline void deliver(const TensorLoad& load) {
    BlockState& block = block_state();
    const int bytes = static_cast<int>(box_bytes(load.map));
    require_untouched(shared_bytes_at(load.target), bytes);
    for_each_piece(load.map, load.from, [&](std::uint32_t offset, const unsigned char* source) {
        const std::uint32_t at = load.target + (damage == Damage::tma_load ? offset : swizzled(offset));
        if (source == nullptr) {
            std::memset(shared_bytes_at(at), 0, 16);
        } else {
            std::memcpy(shared_bytes_at(at), source, 16);
        }
        std::memcpy(&block.seen[at], shared_bytes_at(at), 16);
    });
    Barrier& barrier = barrier_at(load.barrier);
    barrier.bytes -= bytes;
    end_phase_if_complete(barrier);
}

inline void tma_store(const TensorMap& map, std::uintptr_t source, Coordinates to) {
    if (std::ranges::any_of(to.at, [](int c) { return c < 0; })) {
        fault("a copy to global memory begins before the tensor, which is an illegal instruction on an H200");
    }
    const std::uint32_t offset = panel_offset(source);
    const auto first = block_state().seen.begin() + offset;
    if (std::memcmp(&*first, shared_bytes_at(offset), box_bytes(map)) != 0) {
        fault("the source of a copy to global memory was stored without a fence_proxy_async");
    }
    thread_state().stores.push_back({map, offset, to, {first, first + box_bytes(map)}});
}
inline void tma_store_commit() { thread_state().committed_stores = thread_state().stores.size(); }
inline void tma_store_wait() {
    ThreadState& thread = thread_state();
    let_others_run();
    for (std::size_t i = 0; i < thread.committed_stores; i++) {
        const ThreadState::Store& store = thread.stores[i];
        if (std::memcmp(store.when_issued.data(), shared_bytes_at(store.source), store.when_issued.size()) != 0) {
            fault("the source of a copy to global memory was written while it was under way");
        }
        for_each_piece(store.map, store.to, [&](std::uint32_t offset, unsigned char* target) {
            const std::uint32_t at = damage == Damage::tma_store ? offset : swizzled(offset);
            if (target != nullptr) std::memcpy(target, &store.when_issued[at], 16);
        });
    }
    thread.stores.erase(thread.stores.begin(),
                        thread.stores.begin() + static_cast<std::ptrdiff_t>(std::exchange(thread.committed_stores, 0)));
}

inline void fence_proxy_async(std::uintptr_t first, int bytes) {
    BlockState& block = block_state();
    const std::uint32_t offset = shared_offset(first);
    std::memcpy(&block.seen[offset], shared_bytes_at(offset), static_cast<std::size_t>(bytes));
}

}   // namespace ptx_model
