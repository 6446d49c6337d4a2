#include "llmc/cuda_on_cpu/exec/block.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "llmc/base/error.h"
#include "llmc/cuda_on_cpu/checks/checks.h"

__thread uint3 host::thread_index_storage;
__thread uint3 host::block_index_storage;
__thread dim3 host::block_dimensions_storage;
__thread dim3 host::grid_dimensions_storage;
__thread void (*host::at_thread_end)() = nullptr;

namespace host {
namespace {

__thread Block* running_block = nullptr;
__thread std::uint64_t blocks_run = 0;

// Returns the first candidate after position `after` going up (or down), starting over at the other end.
unsigned next_up(std::uint32_t candidates, unsigned after) {
    std::uint32_t above = after >= 31 ? 0 : candidates & (~0u << (after + 1));
    return static_cast<unsigned>(__builtin_ctz(above ? above : candidates));
}
unsigned next_down(std::uint32_t candidates, unsigned after) {
    std::uint32_t below = after >= 32 ? candidates : candidates & ((1u << after) - 1u);
    return 31u - static_cast<unsigned>(__builtin_clz(below ? below : candidates));
}

// Returns the CPU time of the calling thread. Wall time would not do: on a loaded machine it passes while no thread
// runs.
double processor_seconds() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::uint32_t low_bits(unsigned count) { return count >= 32 ? ~0u : (1u << count) - 1u; }

}   // namespace

bool operator==(const Site& a, const Site& b) {
    return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

Block* Block::current() { return running_block; }

Block& Block::of_this_thread() {
    static thread_local std::unique_ptr<Block> block;
    if (!block) block = std::make_unique<Block>();
    return *block;
}

Block::Block() : main_stack_(thread_stack()) {}

// ---- starting and ending a block

bool Block::run(const BlockTask& task, dim3 dimensions, ThreadOrder order, std::uint64_t seed) {
    task_ = task;
    threads_ = dimensions.x * dimensions.y * dimensions.z;
    one_row_ = dimensions.y == 1 && dimensions.z == 1;
    bool same_shape = dimensions.x == dimensions_.x && dimensions.y == dimensions_.y && dimensions.z == dimensions_.z;
    dimensions_ = dimensions;
    if (!one_row_ && !same_shape) {
        for (unsigned thread = 0; thread < threads_; thread++) positions_[thread] = position(thread, dimensions);
    }
    order_ = order;
    random_ = seed * 2 + 1;
    serial_ = ++blocks_run;
    fault_.kind = FaultKind::none;
    signal_.number = 0;
    first_stack_ = stacks_.take();
    plain_ = true;
    current_ = 0;
    if (order != ThreadOrder::ascending || slack_bytes_ > 0) {
        leave_plain_loop();
        current_ = order == ThreadOrder::descending ? threads_ - 1 : 0;
        stack_of_[current_] = static_cast<std::uint16_t>(first_stack_);
    }
    thread_index_storage = position(current_, dimensions);

    running_block = this;
    void* start = stacks_.start(first_stack_, fiber_main);
#ifdef HOST_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&main_fake_stack_, stacks_.bounds(first_stack_).bottom, FiberStacks::stack_bytes);
#endif
    host_fiber_switch(&main_stack_pointer_, start);
#ifdef HOST_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(main_fake_stack_, nullptr, nullptr);
#endif
    running_block = nullptr;
    bool completed = fault_.kind == FaultKind::none && signal_.number == 0;
    if (completed) {
        stacks_.give_back(plain_ ? first_stack_ : stack_of_[current_]);
    } else {
        stacks_.reset();
        if (signal_.number != 0) describe_signal();
    }
    return completed;
}

HOST_NO_ADDRESS_SANITIZER void Block::fiber_main() {
#ifdef HOST_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    Block* block = running_block;
    block->task_.run(block->task_.context);
    __builtin_trap();   // next_thread() leaves a finished fiber
}

// Leaves the plain loop: threads before the current one are done, those after it have not begun.
void Block::leave_plain_loop() {
    plain_ = false;
    something_happened();
    warp_count_ = (threads_ + warp_lanes - 1) / warp_lanes;
    alive_ = threads_ - current_;
    warps_ready_ = 0;
    for (unsigned w = 0; w < warp_count_; w++) {
        unsigned first = w * warp_lanes, lanes = threads_ - first;
        std::uint32_t exist = low_bits(lanes), done = current_ > first ? low_bits(current_ - first) : 0;
        Warp& warp = warps_[w];
        warp.ready = warp.alive = exist & ~done;
        warp.arrived = warp.converging = 0;
        warp.apart = false;
        if (warp.ready) warps_ready_ |= 1u << w;
    }
    std::memset(stack_pointer_, 0, sizeof(void*) * threads_);
    stack_of_[current_] = static_cast<std::uint16_t>(first_stack_);
    for (Barrier& barrier : barriers_) barrier.arrived = 0;
}

// ---- choosing and switching

unsigned Block::choose(std::uint32_t candidates, unsigned after) {
    if (order_ == ThreadOrder::ascending) return next_up(candidates, after);
    if (order_ == ThreadOrder::descending) return next_down(candidates, after);
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    return next_up(candidates, static_cast<unsigned>(random_ >> 59));
}

// Returns the next thread that can run: of this warp if there is one, else of the next warp that has one.
unsigned Block::pick() {
    unsigned w = current_ / warp_lanes;
    Warp& here = warps_[w];
    if (!here.ready && here.converging) release_converged(here);
    if (here.ready) return w * warp_lanes + choose(here.ready, lane());
    warps_ready_ &= ~(1u << w);
    if (!warps_ready_) return nobody;
    w = choose(warps_ready_, w);
    // Begins at the warp's end when it is entered anew.
    return w * warp_lanes + choose(warps_[w].ready, order_ == ThreadOrder::descending ? 32 : 31);
}

// Makes the running thread wait (it is no longer marked ready): runs others until it is ready again.
void Block::suspend() {
    if (slack_bytes_) check_slack();
    unsigned next = pick();
    if (next == nobody) fail_deadlock();
    switch_to(next);
}

void Block::switch_to(unsigned next) {
    unsigned me = current_;
    if (next == me) return;
    void* to = stack_pointer_[next];
    if (!to) {
        int stack = stacks_.take();
        stack_of_[next] = static_cast<std::uint16_t>(stack);
        to = stacks_.start(stack, fiber_main);
        something_happened();
    }
    set_current(next);
#ifdef HOST_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&fake_stack_[me], stacks_.bounds(stack_of_[next]).bottom, FiberStacks::stack_bytes);
#endif
    host_fiber_switch(&stack_pointer_[me], to);
#ifdef HOST_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(fake_stack_[me], nullptr, nullptr);
#endif
}

// Ends the running fiber. No byte of its stack may stay poisoned, because the next fiber uses the stack.
HOST_NO_ADDRESS_SANITIZER void Block::leave_fiber_for(void* stack_pointer, [[maybe_unused]] StackBounds stack) {
#ifdef HOST_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(nullptr, stack.bottom, stack.bytes);
#endif
    host_fiber_switch(&discarded_, stack_pointer);
}

void Block::leave_for_main() {
    leave_fiber_for(main_stack_pointer_, main_stack_);
    __builtin_unreachable();
}

bool Block::next_thread_elsewhere() {
    if (plain_) leave_for_main();   // this was the last thread
    if (at_thread_end) at_thread_end();
    if (slack_bytes_) check_slack();
    unsigned me = current_;
    thread_left();
    unsigned next = pick();
    if (next == nobody) {
        if (alive_ > 0) fail_deadlock();
        leave_for_main();
    }
    if (stack_pointer_[next]) {
        stacks_.give_back(stack_of_[me]);
        set_current(next);
        leave_fiber_for(stack_pointer_[next], stacks_.bounds(stack_of_[next]));
    }
    stack_of_[next] = stack_of_[me];
    set_current(next);
    return true;
}

void Block::thread_left() {
    Warp& here = warp();
    std::uint32_t bit = 1u << lane();
    here.ready &= ~bit;
    here.alive &= ~bit;
    alive_--;
    something_happened();
    if (barriers_[0].arrived) fail_barrier_left(barriers_[0], barriers_[0].first, current_);
    if (here.arrived) finish_after_exit(here);
}

// Completes collectives whose lanes may have waited only for the lane that has just left the kernel.
void Block::finish_after_exit(Warp& here) {
    std::uint32_t waiting = here.arrived;   // waiting lanes not looked at yet
    while (waiting) {
        unsigned first = static_cast<unsigned>(__builtin_ctz(waiting));
        std::uint32_t participants = here.members[first] & here.alive, together = 0;
        for (std::uint32_t rest = here.arrived & participants; rest; rest &= rest - 1) {
            unsigned other = static_cast<unsigned>(__builtin_ctz(rest));
            if (same_collective(here, first, other)) together |= 1u << other;
        }
        waiting &= ~together;   // `first` is one of them
        if (together != participants) continue;
        here.finish[first](here, participants);
        leave_collective(here, participants);
    }
}

// ---- barriers

std::uint64_t Block::barrier(unsigned id, unsigned expected, bool predicate, bool wait, Site site, BlockFinish finish) {
    if (plain_) leave_plain_loop();
    Barrier& barrier = barriers_[id];
    unsigned me = current_;
    if (id == 0 && alive_ < threads_) fail_barrier_left(barrier, me, first_left());
    if (barrier.arrived == 0) {
        barrier.site = site;
        barrier.first = me;
        barrier.expected = expected;
        barrier.votes = 0;
        barrier.finish = finish;
        std::memset(barrier.waiting, 0, sizeof barrier.waiting);
    } else if (id == 0 && (!(barrier.site == site) || barrier.finish != finish)) {
        fail(FaultKind::barrier,
             text("divergent barrier: this thread waits at ", site.file, ":", site.line, ", but thread ",
                  thread_name(barrier.first), " waits at ", barrier.site.file, ":", barrier.site.line));
    } else if (barrier.expected != expected) {
        fail(FaultKind::barrier,
             text("barrier ", id, " at ", site.file, ":", site.line, " is for ", expected, " threads here and for ",
                  barrier.expected, " where thread ", thread_name(barrier.first), " waits"));
    }
    barrier.votes += predicate;
    barrier.arrived++;
    if (wait) barrier.waiting[me / warp_lanes] |= 1u << lane();
    if (barrier.arrived == barrier.expected) {
        release(barrier);
    } else if (wait) {
        warp().ready &= ~(1u << lane());
        suspend();
    }
    return barrier.result;
}

void Block::release(Barrier& barrier) {
    barrier.result = barrier.finish ? barrier.finish(warps_, warp_count_) : barrier.votes;
    barrier.arrived = 0;
    something_happened();
    for (unsigned w = 0; w < warp_count_; w++) {
        warps_[w].ready |= barrier.waiting[w];
        if (warps_[w].ready) warps_ready_ |= 1u << w;
    }
}

std::uint64_t Block::meet(Site site, BlockFinish finish) {
    if (threads_ % warp_lanes != 0) {
        fail(FaultKind::warp, text("block-wide operation at ", site.file, ":", site.line, ": a block of ", threads_,
                                   " threads, which are not whole warps"));
    }
    return barrier(0, threads_, false, true, site, finish);
}

// ---- warps

// Returns the lanes that wait in the collective that `lane` has just reached, if not all arrived lanes do. Other lanes
// may wait elsewhere, for lanes of their own, but not for this lane while it waits for them.
std::uint32_t Block::find_together(Warp& here, unsigned lane) {
    std::uint32_t together = 0;
    here.apart = true;
    for (std::uint32_t rest = here.arrived; rest; rest &= rest - 1) {
        unsigned other = static_cast<unsigned>(__builtin_ctz(rest));
        if (same_collective(here, lane, other)) {
            together |= 1u << other;
        } else if ((here.members[lane] >> other & 1u) && (here.members[other] >> lane & 1u)) {
            fail_collective(lane, other);
        }
    }
    return together;
}

std::uint32_t Block::active_mask(Site site) {
    if (plain_) leave_plain_loop();
    Warp& here = warp();
    unsigned me = lane();
    here.site[me] = site;
    here.converging |= 1u << me;
    here.ready &= ~(1u << me);
    suspend();
    return static_cast<std::uint32_t>(here.out[me]);
}

// Releases the lanes that wait at one __activemask: no lane of the warp can go on otherwise, so they are its result.
void Block::release_converged(Warp& here) {
    unsigned first = static_cast<unsigned>(__builtin_ctz(here.converging));
    std::uint32_t together = 0;
    for (std::uint32_t lanes = here.converging; lanes; lanes &= lanes - 1) {
        unsigned other = static_cast<unsigned>(__builtin_ctz(lanes));
        if (here.site[other] == here.site[first]) together |= 1u << other;
    }
    for (std::uint32_t lanes = together; lanes; lanes &= lanes - 1) here.out[__builtin_ctz(lanes)] = together;
    here.converging &= ~together;
    here.ready |= together;
    something_happened();
}

// ---- waiting on memory

void Block::wait_until(bool (*ready)(void*), void* context, const char* what, Site site) {
    if (plain_) leave_plain_loop();
    while (!ready(context)) {
        // Once every thread that can run has polled in vain and nothing else has happened, nothing ever will. If one of
        // them spins on memory that another block may change, it is given time.
        if (++failed_polls_ > 2 * alive_ && (!spinning_ || spun_too_long())) {
            std::string message = text("deadlock: waits for ", what, " at ", site.file, ":", site.line,
                                       ", which nothing will bring about", describe_waits());
            fail(FaultKind::deadlock, std::move(message));   // moved: a temporary left on this fiber would leak
        }
        let_others_run();
    }
    something_happened();
}

// Gives a fair turn: every other thread that can run comes before this one again. Returns false if there is none.
bool Block::let_others_run() {
    Warp& here = warp();
    std::uint32_t bit = 1u << lane();
    here.ready &= ~bit;
    unsigned w = current_ / warp_lanes, next;
    bool later_in_warp = order_ == ThreadOrder::descending ? here.ready & (bit - 1u) : here.ready & ~(bit | (bit - 1u));
    if (later_in_warp || !(warps_ready_ & ~(1u << w))) {
        next = here.ready ? w * warp_lanes + choose(here.ready, lane()) : current_;
    } else {
        unsigned v = choose(warps_ready_ & ~(1u << w), w);
        next = v * warp_lanes + choose(warps_[v].ready, order_ == ThreadOrder::descending ? 32 : 31);
    }
    here.ready |= bit;
    if (next == current_) return false;
    switch_to(next);
    return true;
}

// Returns at least a fifth of a second: another block, on another thread of the pool, may have to be waited for, and
// cores are shared.
double Block::spin_limit() { return std::max(0.2, checks().no_progress_seconds); }

bool Block::spun_too_long() const { return processor_seconds() - spinning_since_ > spin_limit(); }

void Block::yield_poll() {
    polls_ = 0;
    if (plain_) leave_plain_loop();
    if (!spinning_) spinning_ = true, spinning_since_ = processor_seconds();
    if (spun_too_long()) {
        std::string message =
            text("deadlock: spins on memory, and nothing else has happened in this block for ", spin_limit(),
                 " s (blocks start in the order of their numbers: one "
                 "can wait for an earlier one only)",
                 describe_waits());
        fail(FaultKind::deadlock, std::move(message));
    }
    if (!let_others_run()) sched_yield();   // it may wait for another block, on another core
}

}   // namespace host
