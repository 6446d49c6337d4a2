#include "llmc/cuda_on_cpu/exec/grid.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include "llmc/base/error.h"
#include "llmc/cuda_on_cpu/checks/checks.h"
#include "llmc/cuda_on_cpu/checks/missing_barriers.h"
#include "llmc/cuda_on_cpu/exec/kernel_fault.h"
#include "llmc/cuda_on_cpu/exec/symbols.h"
#include "llmc/cuda_on_cpu/exec/thread_pool.h"
#include "llmc/cuda_on_cpu/memory/memory.h"

namespace host {

__thread char* dynamic_shared_memory = nullptr;
__thread std::size_t dynamic_shared_bytes = 0;

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t shared_region_bytes = (most_shared_bytes + page - 1) / page * page;
constexpr std::int64_t few_threads = 1024;   // waking the pool costs more than running these, each with a few elements
constexpr unsigned char poison = 0xff;       // not a number as float and bf16, -1 as an integer

// Dynamic shared memory of one pool thread. It ends at an inaccessible page; a size that is no multiple of CUDA's
// 16-byte alignment leaves some slack before that page, which is watched instead.
class SharedMemory {
public:
    SharedMemory() {
        void* memory = mmap(nullptr, shared_region_bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        memory_ = static_cast<char*>(memory);
        end_ = memory_ + page + shared_region_bytes;
    }
    ~SharedMemory() { munmap(memory_, shared_region_bytes + 2 * page); }
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    static SharedMemory& of_this_thread() {
        static thread_local std::unique_ptr<SharedMemory> memory;
        if (!memory) memory = std::make_unique<SharedMemory>();
        return *memory;
    }

    // Places memory of `bytes`; with `guard_below` the pages before it are inaccessible as well.
    void place(std::size_t bytes, bool guard_below) {
        bytes_ = bytes;
        slack_ = (16 - bytes % 16) % 16;
        dynamic_shared_memory = end_ - slack_ - bytes;
        dynamic_shared_bytes = bytes;
        std::size_t used = guard_below ? (slack_ + bytes + page - 1) / page * page : shared_region_bytes;
        if (used == accessible_) return;
        accessible_ = used;
        mprotect(memory_ + page, shared_region_bytes - used, PROT_NONE);
        mprotect(end_ - used, used, PROT_READ | PROT_WRITE);
    }
    void fill_poison() { std::memset(begin(), poison, bytes_); }
    void fill_canary() { std::memset(end_ - slack_, Block::canary, slack_); }
    char* begin() const { return end_ - slack_ - bytes_; }
    const char* slack_begin() const { return end_ - slack_; }
    unsigned slack_bytes() const { return static_cast<unsigned>(slack_); }
    bool near(const void* address) const {
        auto* place = static_cast<const char*>(address);
        return place >= memory_ && place < end_ + page;
    }
    std::ptrdiff_t offset(const void* address) const { return static_cast<const char*>(address) - begin(); }

private:
    char* memory_;
    char* end_;
    std::size_t bytes_ = 0;
    std::size_t slack_ = 0;
    std::size_t accessible_ = 0;
};

std::string coordinates(uint3 at) { return text("(", at.x, ",", at.y, ",", at.z, ")"); }

// Describes what an illegal access hit.
std::string describe_access(const BlockFault& fault, const Grid& grid) {
    const SharedMemory& shared = SharedMemory::of_this_thread();
    const char* access = fault.write ? "write to " : "read of ";
    if (shared.near(fault.address)) {
        return text("out of bounds: ", access, "dynamic shared memory at byte ", shared.offset(fault.address),
                    ", but the launch asked for ", grid.shared_bytes, " bytes");
    }
    std::string where = describe_address(fault.address);
    if (where.empty()) {
        where = reinterpret_cast<std::uintptr_t>(fault.address) < page ? "a null pointer"
                                                                       : "memory that is not the device's";
    }
    return text("illegal ", access, hex(reinterpret_cast<std::uintptr_t>(fault.address)), ", ", where);
}

cudaError_t error_of(FaultKind kind) {
    switch (kind) {
        case FaultKind::none: return cudaSuccess;
        case FaultKind::illegal_address: return cudaErrorIllegalAddress;
        case FaultKind::misaligned_address: return cudaErrorMisalignedAddress;
        case FaultKind::stack_overflow: return cudaErrorHardwareStackError;
        case FaultKind::illegal_instruction: return cudaErrorIllegalInstruction;
        case FaultKind::barrier:
        case FaultKind::deadlock:
        case FaultKind::warp:
        case FaultKind::trap: return cudaErrorLaunchFailure;
    }
    return cudaErrorUnknown;
}

// One run over all blocks, shared by the threads that take part.
class GridRun {
public:
    GridRun(const Grid& grid, const RunOrder& order)
        : grid_(grid), order_(order), count_(std::int64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z) {}

    GridFault run() {
        std::int64_t threads = std::int64_t{grid_.threads.x} * grid_.threads.y * grid_.threads.z;
        // A block of one thread loops over all its work (loop_threads), which may be long.
        bool alone = order_.on_one_thread || count_ == 1 || (threads > 1 && count_ * threads <= few_threads);
        std::int64_t pieces = 8 * static_cast<std::int64_t>(thread_count());
        std::int64_t grain = alone ? count_ : std::max<std::int64_t>(1, count_ / pieces);
        auto piece = [](void* self, std::int64_t first, std::int64_t last) {
            static_cast<GridRun*>(self)->run_blocks(first, last);
        };
        parallel_ranges(count_, grain, piece, this);
        return fault_;
    }

private:
    void run_blocks(std::int64_t first, std::int64_t last) {
        prepare_thread_for_kernels();
        Block& block = Block::of_this_thread();
        SharedMemory& shared = SharedMemory::of_this_thread();
        shared.place(grid_.shared_bytes, checks().memory);
        bool fill = checks().poison;
        bool watch = checks().memory && shared.slack_bytes() > 0;
        block.watch_slack(shared.slack_begin(), watch ? shared.slack_bytes() : 0);
        block_dimensions_storage = grid_.threads;
        grid_dimensions_storage = grid_.blocks;
        for (std::int64_t index = first; index < last && !faulted_.load(std::memory_order_relaxed); index++) {
            std::int64_t number = order_.blocks_descending ? count_ - 1 - index : index;
            block_index_storage = Block::position(number, grid_.blocks);
            if (fill) {
                shared.fill_poison();
                fill_static_shared(poison);
            }
            if (watch) shared.fill_canary();
            std::uint64_t seed = order_.seed + static_cast<std::uint64_t>(number);
            if (!block.run(grid_.task, grid_.threads, order_.threads, seed)) record(number, block);
        }
    }

    void record(std::int64_t number, const Block& block) {
        const BlockFault& fault = block.fault();
        std::string what =
            fault.kind == FaultKind::illegal_address && fault.text.empty() ? describe_access(fault, grid_) : fault.text;
        std::lock_guard<std::mutex> lock(mutex_);
        faulted_ = true;
        if (fault_.error != cudaSuccess && faulting_block_ < number) return;
        faulting_block_ = number;
        fault_.error = error_of(fault.kind);
        fault_.message = text(describe_launch(grid_), ", block ", coordinates(block_index_storage), ", thread ",
                              block.thread_name(fault.thread), ": ", what);
    }

    const Grid& grid_;
    RunOrder order_;
    std::int64_t count_;
    std::atomic<bool> faulted_{false};
    std::mutex mutex_;   // guards the members below
    std::int64_t faulting_block_ = 0;
    GridFault fault_;
};

}   // namespace

std::string describe_launch(const Grid& grid) {
    return text("kernel ", grid.kernel, " launched at ", grid.file, ":", grid.line);
}

GridFault run_grid(const Grid& grid, const RunOrder& order) { return GridRun(grid, order).run(); }

GridFault run_grid(const Grid& grid) {
    if (checks().races && is_new_to_order_check(grid)) return run_grid_in_orders(grid);
    return run_grid(grid, {});
}

}   // namespace host
