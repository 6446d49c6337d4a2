// State of the models of ptx_hopper.h: copies and products that a block and its threads have under way, and the
// asynchronous proxy's copy of shared memory.
#pragma once

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

}   // namespace ptx_model
