// Models of the instructions in llmc/kernels/ptx/ptx_hopper.cuh, for machines without a GPU, as ptx.h has those of
// ptx.cuh.
//
// Copies and products run as late as a GPU may: when a thread waits for them, after all others that can run have come
// as far as they can. Until then the target of a copy and the sums of a product are NaN, and writes of other threads
// there are a fault. Copies and products see a separate copy of shared memory (the asynchronous proxy's), which
// ordinary stores reach only by fence_proxy_async.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llmc/cuda_on_cpu/exec/grid.h"
#include "llmc/cuda_on_cpu/ptx/ptx.h"
#include "llmc/cuda_on_cpu/ptx/tensor_map.h"

namespace ptx_model {

[[noreturn]] inline void fault(std::string what) {
    host::Block::current()->fail(host::FaultKind::trap, std::move(what));
}

// Returns the offset in dynamic shared memory, where swizzles repeat every 1,024 bytes.
inline std::uint32_t shared_offset(std::uintptr_t address) {
    const std::uintptr_t offset = address - reinterpret_cast<std::uintptr_t>(host::dynamic_shared_memory);
    if (offset >= host::dynamic_shared_bytes)
        fault("an operand of an asynchronous instruction is not in dynamic shared memory");
    return static_cast<std::uint32_t>(offset);
}
inline unsigned char* shared_bytes_at(std::uint32_t offset) {
    return reinterpret_cast<unsigned char*>(host::dynamic_shared_memory) + offset;
}
inline std::uint32_t swizzled(std::uint32_t offset) { return offset ^ (offset >> 7 & 7) << 4; }

// ---------------------------------------------------------------------------------------------------------------------
// What a block and its threads have under way

struct Coordinates {
    int at[4];
};

struct TensorLoad {
    std::uint32_t target;
    TensorMap map;   // a copy: the thread that issued it may have ended
    std::uintptr_t barrier;
    Coordinates from;
};

struct Wgmma {
    float* d;
    const std::uint32_t* a_registers;   // null: in shared memory at `a`
    std::uint64_t a, b;
    int n;
    bool accumulate, a_transposed, b_transposed;
};

// Sums of the pending products into one array of registers.
struct Sums {
    float* registers;
    std::size_t products;
    std::vector<float> values;
};

struct ThreadState {
    std::vector<Wgmma> products;
    std::vector<std::size_t> batches;   // for each committed batch, the products up to its end
    std::vector<Sums> sums;
    std::size_t performed = 0;   // products of this thread's warp so far
    bool fenced = false;
    std::vector<std::uintptr_t> unfenced_barriers;
    struct Store {
        TensorMap map;
        std::uint32_t source;
        Coordinates to;
        std::vector<unsigned char> when_issued;   // source at issue: it may be read at any time from then on
    };
    std::vector<Store> stores;
    std::size_t committed_stores = 0;
};

// Operands of one product that the four warps of a group passed: all must pass the same.
struct Operands {
    std::uint64_t a, b, sum;
    unsigned warps;
};

struct BlockState {
    std::uint64_t serial = 0;
    std::vector<unsigned char> seen =
        std::vector<unsigned char>(host::most_shared_bytes);   // shared memory as the asynchronous proxy sees it
    std::vector<TensorLoad> loads;
    std::vector<ThreadState> threads = std::vector<ThreadState>(host::most_block_threads);
    std::vector<Operands> operands[host::most_block_threads / 128];   // operands of each group's products
    unsigned ended = 0;
};

inline BlockState& block_state();

// Faults if a thread ends with pending copies or products. Called when a thread ends.
inline void require_nothing_under_way() {
    require_no_copies();
    BlockState& block = block_state();
    ThreadState& thread = block.threads[host::thread_in_block()];
    if (!thread.products.empty())
        fault("the thread ends while its products are under way (a wgmma_wait<0> is missing)");
    if (!thread.stores.empty()) fault("the thread ends while its stores are under way (a tma_store_wait is missing)");
    if (++block.ended == host::Block::current()->threads() && !block.loads.empty()) {
        fault("the block ends while a copy into its memory is under way (an mbarrier_wait is missing)");
    }
}

// Returns the state of the running block; state left by a block that ended with a fault is dropped.
inline BlockState& block_state() {
    static thread_local std::unique_ptr<BlockState> state;
    if (!state) state = std::make_unique<BlockState>();
    if (state->serial != host::block_serial()) {
        std::vector<unsigned char> seen = std::move(state->seen);
        *state = BlockState{};
        state->seen = std::move(seen);
        std::memset(state->seen.data(), under_way, state->seen.size());
        state->serial = host::block_serial();
        host::at_thread_end = require_nothing_under_way;
        host::wait_until([] { return true; }, "nothing");   // makes threads call at_thread_end
    }
    return *state;
}
inline ThreadState& thread_state() { return block_state().threads[host::thread_in_block()]; }

// ---------------------------------------------------------------------------------------------------------------------
// mbarrier

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

// ---------------------------------------------------------------------------------------------------------------------
// Copies of tiles

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

// ---------------------------------------------------------------------------------------------------------------------
// wgmma

// For tests of the order in which groups of warps compute: group of each batch, in the order of commits.
inline std::vector<int>* commit_log = nullptr;

inline void wgmma_fence() { thread_state().fenced = true; }

inline void wgmma_commit() {
    ThreadState& thread = thread_state();
    thread.batches.push_back(thread.products.size());
    thread.fenced = false;   // the registers may be touched from here on
    const unsigned index = host::thread_in_block();
    if (commit_log != nullptr && index % 128 == 0) commit_log->push_back(static_cast<int>(index / 128));
}

inline void wgmma(const Wgmma& product) {
    ThreadState& thread = thread_state();
    if (!thread.fenced) fault("a product without a wgmma_fence before its batch");
    const std::size_t count = static_cast<std::size_t>(product.n) / 2;
    Sums* mine = nullptr;
    for (Sums& sums : thread.sums)
        if (sums.registers == product.d) mine = &sums;
    if (mine == nullptr) {
        thread.sums.push_back({product.d, 0, std::vector<float>(product.d, product.d + count)});
        mine = &thread.sums.back();
        std::memset(product.d, under_way, count * sizeof(float));
    }
    mine->products++;
    thread.products.push_back(product);
}

inline float widened_bf16(const unsigned char* bytes) {
    std::uint16_t bits;
    std::memcpy(&bits, bytes, 2);
    return __uint_as_float(std::uint32_t{bits} << 16);
}

// Returns element (row, k) of an operand in shared memory, row counting its M or N.
inline const unsigned char* operand_element(const BlockState& block, std::uint64_t operand, bool transposed, int row,
                                            int k) {
    const auto field = [&](int bit) { return static_cast<std::uint32_t>(operand >> bit & 0x3fff) << 4; };
    const std::uint32_t first = field(0), panel = field(16), eight_rows = field(32);
    const auto i = static_cast<std::uint32_t>(transposed ? k : row),
               j = static_cast<std::uint32_t>(transposed ? row : k);
    const std::uint32_t offset = swizzled(first + j / 64 * panel + i / 8 * eight_rows + i % 8 * 128 + j % 64 * 2);
    if (offset + 2 > host::dynamic_shared_bytes) fault("an operand of a product lies outside of shared memory");
    return &block.seen[offset];
}
// Checks an operand. `count`: its M or N.
inline void require_operand(std::uint64_t operand, bool transposed, int count) {
    if (operand >> 62 != 1) fault("an operand of a product is not swizzled in 128 bytes");
    const std::uint32_t start = static_cast<std::uint32_t>(operand << 4) & 0x3ff;
    if (start & 0x380) fault("an operand of a product does not begin in the first of eight rows");
    const int row = transposed ? 2 * std::min(count, 64) : 32;   // bytes
    if (static_cast<int>(start) + row > 128) fault("rows of a product's operand end beyond the 128 bytes of a panel's");
}

inline constexpr int most_columns = 256;   // N of a product

// Computes one product of one warp: sums (16, n) of rows 16 `quarter` .. of the group. Returns a number that identifies
// its operands.
inline std::uint64_t multiply(const BlockState& block, const Wgmma& product, float (*sums)[most_columns],
                              const float (*left)[16], int quarter) {
    static thread_local float rows[64][16], right[16][most_columns];
    std::uint64_t sum = 0;
    auto count_in = [&](const unsigned char* bytes) {
        std::uint16_t bits;
        std::memcpy(&bits, bytes, 2);
        sum = (sum ^ bits) * 0x100000001b3ull;
    };
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < product.n; n++) {
            const unsigned char* element = operand_element(block, product.b, product.b_transposed, n, k);
            right[k][n] = widened_bf16(element);
            count_in(element);
        }
    if (product.a_registers == nullptr) {
        for (int m = 0; m < 64; m++)
            for (int k = 0; k < 16; k++) {
                const unsigned char* element = operand_element(block, product.a, product.a_transposed, m, k);
                rows[m][k] = widened_bf16(element);
                count_in(element);
            }
        left = rows + 16 * quarter;
    }
    for (int m = 0; m < 16; m++) {
        float* row = sums[m];
        for (int k = 0; k < 16; k++) {
            const float factor = left[m][k];
            for (int n = 0; n < product.n; n++) row[n] += factor * right[k][n];
        }
    }
    return sum;
}

inline void require_sums_untouched(const Sums& sums) {
    for (std::size_t i = 0; i < sums.values.size(); i++) {
        if (std::bit_cast<std::uint32_t>(sums.registers[i]) == ~0u) continue;
        fault("sums of a product were written while it was under way (a wgmma_wait is missing)");
    }
}

struct WarpWait {
    ThreadState* thread;
    std::size_t count;
};

inline void require_same(const Wgmma& a, const Wgmma& b) {
    if (a.a == b.a && a.b == b.b && a.n == b.n && a.accumulate == b.accumulate) return;
    fault("lanes of a warp disagree about a product's operands");
}

// Performs the next product of a warp, for all its lanes.
inline void perform_one(WarpWait* const* lanes, std::size_t index) {
    BlockState& block = block_state();
    const unsigned warp = host::thread_in_block() / 32, group = warp / 4, quarter = warp % 4;
    const Wgmma& product = lanes[0]->thread->products[index];
    static thread_local float sums[16][most_columns], left[16][16];
    std::vector<float>* values[32];
    for (int lane = 0; lane < 32; lane++) {
        ThreadState& thread = *lanes[lane]->thread;
        const Wgmma& part = thread.products[index];
        require_same(part, product);
        for (Sums& of : thread.sums)
            if (of.registers == part.d) values[lane] = &of.values;
        const int g = lane / 4, t = lane % 4 * 2;
        for (int i = 0; i < product.n / 2; i++)
            sums[g + i / 2 % 2 * 8][i / 4 * 8 + t + i % 2] =
                product.accumulate ? (*values[lane])[static_cast<std::size_t>(i)] : 0.0f;
        if (product.a_registers == nullptr) continue;
        for (int e = 0; e < 4; e++) {
            left[g + e % 2 * 8][t + e / 2 * 8] = low_of(part.a_registers[e]);
            left[g + e % 2 * 8][t + e / 2 * 8 + 1] = high_of(part.a_registers[e]);
        }
    }
    if (product.a_registers == nullptr) require_operand(product.a, product.a_transposed, 64);
    require_operand(product.b, product.b_transposed, product.n);
    const std::uint64_t sum = multiply(block, product, sums, left, static_cast<int>(quarter));
    std::vector<Operands>& known = block.operands[group];
    const std::size_t number = lanes[0]->thread->performed;
    if (known.size() <= number) known.resize(number + 1, {0, 0, 0, 0});
    Operands& found = known[number];
    if (found.warps == 0) found = {product.a, product.b, sum, 0};
    if (found.a != product.a || found.b != product.b) fault("the warps of a group disagree about a product's operands");
    if (found.sum != sum)
        fault("operands of a product were overwritten while it was under way in another warp of the group");
    found.warps++;
    const bool wrong = damage == (product.a_registers == nullptr ? Damage::wgmma : Damage::wgmma_registers);
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4 * 2;
        for (int i = 0; i < product.n / 2; i++)
            (*values[lane])[static_cast<std::size_t>(i)] =
                wrong ? 0.0f : sums[g + i / 2 % 2 * 8][i / 4 * 8 + t + i % 2];
        lanes[lane]->thread->performed++;
    }
}

// For tests: number of a warp that runs after all others when products end.
inline int slow_warp = -1;

inline void wgmma_wait(int pending) {
    for (int turns = static_cast<int>(host::thread_in_block() / 32) == slow_warp ? 16 : 1; turns > 0; turns--)
        let_others_run();
    ThreadState& thread = thread_state();
    const std::ptrdiff_t ended = static_cast<std::ptrdiff_t>(thread.batches.size()) - pending;
    const std::size_t count = ended <= 0 ? 0 : thread.batches[static_cast<std::size_t>(ended) - 1];
    WarpWait wait{&thread, count};
    host::warp_collective(wait, [](WarpWait* const* lanes) {
        for (int lane = 1; lane < 32; lane++)
            if (lanes[lane]->count != lanes[0]->count) fault("lanes of a warp wait for different products");
        for (std::size_t i = 0; i < lanes[0]->count; i++) perform_one(lanes, i);
    });
    for (std::size_t i = 0; i < count; i++)
        for (std::size_t s = 0; s < thread.sums.size(); s++) {
            Sums& sums = thread.sums[s];
            if (sums.registers != thread.products[i].d || --sums.products > 0) continue;
            require_sums_untouched(sums);
            std::memcpy(sums.registers, sums.values.data(), sums.values.size() * sizeof(float));
            thread.sums.erase(thread.sums.begin() + static_cast<std::ptrdiff_t>(s));
            break;
        }
    if (count == 0) return;
    thread.products.erase(thread.products.begin(), thread.products.begin() + static_cast<std::ptrdiff_t>(count));
    thread.batches.erase(thread.batches.begin(), thread.batches.begin() + ended);
    for (std::size_t& end : thread.batches) end -= count;
}

}   // namespace ptx_model

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
