// Runs one CUDA block on one CPU thread: its threads as lazily started fibers, its barriers and its warp collectives.
//
// A fiber runs thread after thread in a plain loop until one has to wait; only then does the next thread get a stack of
// its own. A kernel that never waits therefore never switches. Threads are started and resumed in a fixed order
// (ascending unless asked otherwise), so a run is reproducible.
//
// Stricter than a GPU, on purpose, because there the same mistakes hang or are undefined:
// - every thread of a block reaches every __syncthreads, and all of them the same one (file and line);
// - lanes that meet in a warp collective name the same mask at the same line, themselves included, and read only from
//   lanes that take part. Lanes that have left the kernel may be named in a mask, but not read from. Lanes of one warp
//   may wait in different collectives (independent thread scheduling), unless two of them wait for each other.
// A kernel that breaks these rules, or leaves no thread able to run, ends the block with a BlockFault; the process
// never aborts.
//
// A thread that waits for memory to change must do so through atomics, fences, __ldcv or __nanosleep: they let other
// threads of the block run now and then. Blocks start in the order of their numbers; one that waits for a later block
// waits until the limit of processor time makes that a fault.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "llmc/cuda_on_cpu/exec/fiber.h"
#include "llmc/cuda_on_cpu/exec/vector_types.h"

namespace host {

constexpr unsigned warp_lanes = 32;
constexpr unsigned most_block_threads = 1024;
constexpr unsigned most_block_warps = most_block_threads / warp_lanes;
constexpr unsigned barrier_count = 16;   // as many as PTX's bar.sync has; 0 is __syncthreads

// Place in the source where a barrier or collective was called.
struct Site {
    const char* file;
    int line;
};
bool operator==(const Site& a, const Site& b);
#define HOST_SITE const char *site_file = __builtin_FILE(), int site_line = __builtin_LINE()

// For tests of which instructions a kernel needs: every thread calls it before each barrier of the block or instruction
// of ptx/; the call is made only if it returns true. Empty: all calls are made. Several threads may call it at once.
inline std::function<bool(const char* instruction, const Site& site)> call_watcher;
#define UNLESS_LEFT_OUT if (!host::call_watcher || host::call_watcher(__func__, {site_file, site_line}))

// Function that the last arriving lane runs for all `participants` (a mask) of the collective.
struct Warp;
using WarpFinish = void (*)(Warp& warp, std::uint32_t participants);
// Function that a block's last arriving thread runs; all threads get its result.
using BlockFinish = std::uint64_t (*)(const Warp* warps, unsigned warp_count);

struct Warp {
    std::uint32_t ready;                 // lanes that can run
    std::uint32_t alive;                 // lanes still in the kernel
    std::uint32_t arrived;               // lanes waiting in a collective
    bool apart;                          // the arrived lanes may be of several collectives
    std::uint32_t converging;            // lanes waiting in __activemask
    std::uint32_t members[warp_lanes];   // mask that an arrived lane named
    WarpFinish finish[warp_lanes];
    Site site[warp_lanes];
    // Values that a lane brings and gets. A lane's slots are its own again when its collective returns.
    std::uint64_t in[warp_lanes];
    std::uint64_t out[warp_lanes];
    std::uint8_t source[warp_lanes];   // shuffles: the lane to read from
};

enum class FaultKind {
    none,
    illegal_address,
    misaligned_address,
    stack_overflow,
    illegal_instruction,
    barrier,
    deadlock,
    warp,
    trap
};

struct BlockFault {
    FaultKind kind = FaultKind::none;
    unsigned thread = 0;             // linear index in the block
    const void* address = nullptr;   // address of the access, if the kind has one
    bool write = false;
    std::string text;   // description; complete for all kinds but those found by a signal
};

std::string trap_text(const char* file, int line);

enum class ThreadOrder { ascending, descending, shuffled };

// Part of the work that knows the kernel: calls it once per thread while `next_thread` returns true.
struct BlockTask {
    void (*run)(void* context);
    void* context;
};

class Block {
public:
    Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    // Returns the block that this thread is running; null outside of kernels.
    static Block* current();
    // Returns this thread's block object, made at its first use.
    static Block& of_this_thread();

    // Runs one block. blockDim, gridDim and blockIdx are set by the caller. Returns false if it ended with fault().
    bool run(const BlockTask& task, dim3 dimensions, ThreadOrder order, std::uint64_t seed);
    const BlockFault& fault() const { return fault_; }

    // Called by BlockTask::run after each thread. Returns true if another thread shall run on this stack.
    bool next_thread() {
        if (plain_ && current_ + 1 < threads_) {
            set_current(current_ + 1);
            return true;
        }
        return next_thread_elsewhere();
    }

    unsigned thread() const { return current_; }
    unsigned lane() const { return current_ % warp_lanes; }
    Warp& warp() { return warps_[current_ / warp_lanes]; }
    unsigned threads() const { return threads_; }
    std::uint64_t serial() const { return serial_; }   // differs for every block this thread runs

    // Waits until `expected` threads have arrived at barrier `id`; returns the number of true predicates among them.
    std::uint64_t barrier(unsigned id, unsigned expected, bool predicate, bool wait, Site site,
                          BlockFinish finish = nullptr);

    // Waits for all threads of the block, each with its own value in warp().in[lane()]; the last one runs `finish`, and
    // every thread gets its result. The block must consist of whole warps.
    std::uint64_t meet(Site site, BlockFinish finish);

    // Waits for the lanes of `mask`; the last of them runs `finish` before any returns.
    void rendezvous(std::uint32_t mask, Site site, WarpFinish finish) {
        if (plain_) leave_plain_loop();
        Warp& here = warp();
        unsigned me = lane();
        std::uint32_t bit = 1u << me;
        here.members[me] = mask;
        here.site[me] = site;
        here.finish[me] = finish;
        if (!(mask & bit)) fail_mask(mask);
        std::uint32_t together = here.arrived;   // lanes in this collective
        if (together && (here.apart || !same_collective(here, me, static_cast<unsigned>(__builtin_ctz(together))))) {
            together = find_together(here, me);
        }
        together |= bit;
        std::uint32_t participants = mask & here.alive;
        if (together == participants) {
            finish(here, participants);
            leave_collective(here, participants);
        } else {
            here.arrived |= bit;
            here.ready &= ~bit;
            suspend();
        }
    }

    std::uint32_t active_mask(Site site);

    // Lets other threads run until ready(context) is true: for models of instructions that wait on memory.
    void wait_until(bool (*ready)(void*), void* context, const char* what, Site site);

    // Notes that the running thread has done something that a spinning thread does. Every so often other threads get a
    // turn; if nothing else happens in the block for a while, the wait becomes a fault. `urgent`: gives a turn now.
    void polled(bool urgent = false) {
        if (poller_ != current_) poller_ = current_, polls_ = 0;
        if (++polls_ >= polls_per_turn || urgent) yield_poll();
    }

    // Ends the block with a fault, of the running thread unless another is given.
    [[noreturn]] void fail(FaultKind kind, std::string text) { fail(kind, current_, std::move(text)); }
    [[noreturn]] void fail(FaultKind kind, unsigned thread, std::string text);

    // Watches bytes behind the dynamic shared memory that must keep `canary`; checked whenever a thread stops (0 bytes:
    // none).
    void watch_slack(const char* slack, unsigned bytes) { slack_ = slack, slack_bytes_ = bytes; }
    static constexpr unsigned char canary = 0xa5;

    // Data for the signal handler (kernel_fault.cpp), which may only touch plain data.
    struct Signal {
        int number = 0;
        const void* address = nullptr;
        bool address_known = false;
        bool write = false;
    };
    void abandon_from_signal(const Signal& signal, void** stack_pointer, void** argument0, void** argument1, void** pc);
    const FiberStacks& stacks() const { return stacks_; }

    static uint3 position(std::uint64_t number, dim3 dimensions) {
        return {static_cast<unsigned>(number % dimensions.x),
                static_cast<unsigned>(number / dimensions.x % dimensions.y),
                static_cast<unsigned>(number / dimensions.x / dimensions.y)};
    }
    std::string thread_name(unsigned thread) const;

private:
    struct Barrier {
        unsigned arrived, expected, votes, first;
        std::uint64_t result;
        BlockFinish finish;   // null: the result is the number of votes
        Site site;
        std::uint32_t waiting[most_block_warps];
    };
    static constexpr unsigned nobody = ~0u;
    static constexpr unsigned polls_per_turn = 1024;   // atomics outside spin loops rarely cost a switch

    static bool same_collective(const Warp& warp, unsigned a, unsigned b) {
        return warp.members[a] == warp.members[b] && warp.finish[a] == warp.finish[b] &&
               warp.site[a].line == warp.site[b].line &&
               (warp.site[a].file == warp.site[b].file || warp.site[a] == warp.site[b]);
    }
    void something_happened() { failed_polls_ = 0, spinning_ = false; }
    void leave_collective(Warp& warp, std::uint32_t participants) {
        warp.arrived &= ~participants;
        warp.ready |= participants;
        if (warp.arrived == 0) warp.apart = false;
        something_happened();
    }
    std::uint32_t find_together(Warp& warp, unsigned lane);
    void set_current(unsigned thread);
    void leave_plain_loop();
    bool next_thread_elsewhere();
    void thread_left();
    unsigned pick();
    unsigned choose(std::uint32_t candidates, unsigned after);
    void suspend();
    bool let_others_run();
    bool spun_too_long() const;
    static double spin_limit();
    void yield_poll();
    void switch_to(unsigned thread);
    void leave_fiber_for(void* stack_pointer, StackBounds stack);
    [[noreturn]] void leave_for_main();
    void release(Barrier& barrier);
    void release_converged(Warp& warp);
    void finish_after_exit(Warp& warp);
    void check_slack();
    unsigned first_left() const;
    void describe_signal();
    std::string describe_waits() const;
    [[noreturn]] void fail_deadlock();
    [[noreturn]] void fail_mask(std::uint32_t mask);
    [[noreturn]] void fail_collective(unsigned lane, unsigned other);
    [[noreturn]] void fail_barrier_left(const Barrier& barrier, unsigned waiting, unsigned left);
    static void fiber_main();

    unsigned current_ = 0;
    unsigned threads_ = 0;
    bool plain_ = true;     // no thread has waited yet: those before current_ are done, those after have not begun
    bool one_row_ = true;   // blockDim.y and .z are 1
    unsigned alive_ = 0;
    unsigned failed_polls_ = 0;
    unsigned poller_ = nobody;   // last polling thread, and its polls since others had a turn
    unsigned polls_ = 0;
    bool spinning_ = false;       // threads have polled since spinning_since_, and nothing else has happened
    double spinning_since_ = 0;   // in this thread's processor time
    std::uint32_t warps_ready_ = 0;
    unsigned warp_count_ = 0;
    ThreadOrder order_ = ThreadOrder::ascending;
    std::uint64_t random_ = 0;
    std::uint64_t serial_ = 0;
    dim3 dimensions_;
    BlockTask task_{};
    BlockFault fault_;
    Signal signal_;
    const char* slack_ = nullptr;
    unsigned slack_bytes_ = 0;

    int first_stack_ = 0;   // stack that the plain loop runs on
    void* main_stack_pointer_ = nullptr;
    void* stack_pointer_[most_block_threads];   // stack pointer of a suspended thread; null: not begun
    std::uint16_t stack_of_[most_block_threads];
    Warp warps_[most_block_warps];
    Barrier barriers_[barrier_count];
    uint3 positions_[most_block_threads];   // threadIdx by linear index, for dimensions_
    LentStacks lent_stacks_{most_block_threads};
    FiberStacks& stacks_ = *lent_stacks_;
    StackBounds main_stack_;
    void* discarded_ = nullptr;              // context of an ending fiber
    alignas(64) char landing_stack_[4096];   // stack of a signal handler's switch to main
#ifdef HOST_ADDRESS_SANITIZER
    void* fake_stack_[most_block_threads];
    void* main_fake_stack_ = nullptr;
#endif
};

}   // namespace host

// ---- the built-in variables. Constant to a thread, which lets compilers keep them in registers across stores and
// barriers; the scheduler changes them between threads through the storage below.
extern const __thread uint3 threadIdx __asm__("host_thread_index");
extern const __thread uint3 blockIdx __asm__("host_block_index");
extern const __thread dim3 blockDim __asm__("host_block_dimensions");
extern const __thread dim3 gridDim __asm__("host_grid_dimensions");
constexpr int warpSize = 32;

namespace host {

extern __thread uint3 thread_index_storage __asm__("host_thread_index");
extern __thread uint3 block_index_storage __asm__("host_block_index");
extern __thread dim3 block_dimensions_storage __asm__("host_block_dimensions");
extern __thread dim3 grid_dimensions_storage __asm__("host_grid_dimensions");

inline void Block::set_current(unsigned thread) {
    current_ = thread;
    if (one_row_) {
        thread_index_storage.x = thread;
    } else {
        thread_index_storage = positions_[thread];
    }
}

// Function for models of asynchronous instructions, called as each thread of a kernel ends; it may end the block with a
// fault (Block::fail). Set when such an instruction is first met, for the calling thread of the pool and for good, so
// the function must find out itself whether it concerns the running block.
extern __thread void (*at_thread_end)();   // null: nothing to do; not called for threads that never waited

}   // namespace host
