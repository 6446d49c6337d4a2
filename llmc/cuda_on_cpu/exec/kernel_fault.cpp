// Handles faults of kernels: makes the message, and returns from the middle of a kernel to Block::run.
#include <signal.h>
#include <ucontext.h>

#include <cstdio>
#include <cstring>
#include <mutex>

#include "llmc/base/error.h"
#include "llmc/cuda_on_cpu/checks/missing_barriers.h"
#include "llmc/cuda_on_cpu/exec/block.h"
#include "llmc/cuda_on_cpu/exec/kernel_fault.h"
#include "llmc/cuda_on_cpu/memory/fault.h"

namespace host {

std::string hex(std::uint64_t value) {
    char digits[20];
    std::snprintf(digits, sizeof digits, "0x%llx", static_cast<unsigned long long>(value));
    return digits;
}

std::string trap_text(const char* file, int line) { return text("__trap at ", file, ":", line); }

std::string Block::thread_name(unsigned thread) const {
    uint3 at = position(thread, dimensions_);
    return text("(", at.x, ",", at.y, ",", at.z, ")");
}

unsigned Block::first_left() const {
    for (unsigned thread = 0; thread < threads_; thread++) {
        if (!(warps_[thread / warp_lanes].alive >> (thread % warp_lanes) & 1u)) return thread;
    }
    return nobody;
}

void Block::fail(FaultKind kind, unsigned thread, std::string message) {
    fault_.kind = kind;
    fault_.thread = thread;
    fault_.address = nullptr;
    std::string().swap(fault_.text);   // else `message` would get its memory and leak: the fiber ends here
    fault_.text = std::move(message);
    leave_for_main();
}

void Block::fail_barrier_left(const Barrier& barrier, unsigned waiting, unsigned left) {
    (void)barrier;
    fail(FaultKind::barrier, waiting,
         text("divergent barrier: this thread waits at a __syncthreads that thread ", thread_name(left),
              " never reached, having left the kernel"));
}

void Block::fail_mask(std::uint32_t mask) {
    Site site = warp().site[lane()];
    fail(FaultKind::warp, text("warp collective at ", site.file, ":", site.line, ": mask ", hex(mask),
                               " does not name the calling lane ", lane()));
}

void Block::fail_collective(unsigned lane, unsigned other) {
    const Warp& here = warp();
    Site site = here.site[lane], there = here.site[other];
    fail(FaultKind::warp, text("divergent warp collective: lane ", lane, " is at ", site.file, ":", site.line,
                               " with mask ", hex(here.members[lane]), ", but lane ", other, " waits at ", there.file,
                               ":", there.line, " with mask ", hex(here.members[other])));
}

// Returns one line per kind of wait, naming the first thread of each.
std::string Block::describe_waits() const {
    std::string waits;
    for (unsigned id = 0; id < barrier_count; id++) {
        const Barrier& barrier = barriers_[id];
        if (!barrier.arrived) continue;
        waits += text("; ", barrier.arrived, " of ", barrier.expected, " threads, ", thread_name(barrier.first),
                      " first, are at ", id == 0 ? std::string("the __syncthreads") : text("barrier ", id), " of ",
                      barrier.site.file, ":", barrier.site.line);
    }
    for (unsigned w = 0; w < warp_count_; w++) {
        const Warp& warp = warps_[w];
        if (!warp.arrived) continue;
        unsigned lane = static_cast<unsigned>(__builtin_ctz(warp.arrived));
        waits +=
            text("; warp ", w, ": lanes ", hex(warp.arrived), " wait at the warp collective of ", warp.site[lane].file,
                 ":", warp.site[lane].line, " for lanes ", hex(warp.members[lane] & warp.alive & ~warp.arrived));
    }
    return waits;
}

void Block::fail_deadlock() {
    unsigned thread = current_;
    if (barriers_[0].arrived) thread = barriers_[0].first;
    for (unsigned w = warp_count_; w-- > 0;) {
        if (warps_[w].arrived) thread = w * warp_lanes + static_cast<unsigned>(__builtin_ctz(warps_[w].arrived));
    }
    fail(FaultKind::deadlock, thread, "deadlock: no thread of the block can go on" + describe_waits());
}

void Block::check_slack() {
    for (unsigned byte = 0; byte < slack_bytes_; byte++) {
        if (static_cast<unsigned char>(slack_[byte]) == canary) continue;
        fail(FaultKind::illegal_address, text("wrote past the end of the dynamic shared memory, byte ", byte,
                                              " behind the bytes it was launched with"));
    }
}

// ---- what the last lane of a collective does

void finish_shuffle(Warp& warp, std::uint32_t participants) {
    for (std::uint32_t rest = participants; rest; rest &= rest - 1) {
        unsigned lane = static_cast<unsigned>(__builtin_ctz(rest)), source = warp.source[lane];
        if (!(participants >> source & 1u)) fail_shuffle(warp, participants, lane);
        warp.out[lane] = warp.in[source];
    }
}

void finish_ballot(Warp& warp, std::uint32_t participants) {
    std::uint64_t votes = 0;
    for (std::uint32_t rest = participants; rest; rest &= rest - 1) {
        unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
        votes |= warp.in[lane] << lane;
    }
    for (std::uint32_t rest = participants; rest; rest &= rest - 1) warp.out[__builtin_ctz(rest)] = votes;
}

void fail_shuffle(const Warp& warp, std::uint32_t participants, unsigned lane) {
    Block& block = *Block::current();
    unsigned thread = block.thread() / warp_lanes * warp_lanes + lane;
    block.fail(FaultKind::warp, thread,
               text("shuffle at ", warp.site[lane].file, ":", warp.site[lane].line, ": lane ", lane,
                    " reads from lane ", static_cast<unsigned>(warp.source[lane]), ", which does not take part (lanes ",
                    hex(participants), " do)"));
}

void fail_partial_warp() {
    Block& block = *Block::current();
    Site site = block.warp().site[block.lane()];
    block.fail(FaultKind::warp,
               text("warp-wide operation at ", site.file, ":", site.line, ": it needs all 32 lanes, but of ",
                    "this warp only ", hex(block.warp().alive), " are in the kernel"));
}

// ---- signals

namespace {

struct sigaction previous_actions[NSIG];

// Handles a fault of the kernel that runs on this thread; returns false if none runs.
bool take_fault_of_kernel(const Fault& fault) {
    Block* block = Block::current();
    if (!block) return false;
    if (fault.write && fault.address_known && log_write(fault.address)) return true;   // the write repeats
    auto* registers = static_cast<ucontext_t*>(fault.context)->uc_mcontext.gregs;
    block->abandon_from_signal(
        {fault.signal, fault.address, fault.address_known, fault.write}, reinterpret_cast<void**>(&registers[REG_RSP]),
        reinterpret_cast<void**>(&registers[REG_RDI]), reinterpret_cast<void**>(&registers[REG_RSI]),
        reinterpret_cast<void**>(&registers[REG_RIP]));
    return true;
}

void on_arithmetic_signal(int number, siginfo_t* info, void* context) {
    if (take_fault_of_kernel({info->si_addr, true, false, number, context})) return;
    const struct sigaction& previous = previous_actions[number];
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(number, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(number);
    } else {
        signal(number, SIG_DFL);   // returning repeats the instruction, which then ends the process
    }
}

void install_handlers() {
    add_fault_handler(take_fault_of_kernel);   // SIGSEGV and SIGBUS
    for (int number : {SIGFPE, SIGILL}) {
        struct sigaction action = {};
        action.sa_sigaction = on_arithmetic_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigemptyset(&action.sa_mask);
        sigaction(number, &action, &previous_actions[number]);
    }
}

}   // namespace

void prepare_thread_for_kernels() {
    static std::once_flag once;
    std::call_once(once, install_handlers);
    prepare_thread_for_faults();
}

// Changes the interrupted context so that it switches to Block::run when the handler returns.
void Block::abandon_from_signal(const Signal& signal, void** stack_pointer, void** argument0, void** argument1,
                                void** pc) {
    signal_ = signal;
    fault_.thread = current_;
#ifdef HOST_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(nullptr, main_stack_.bottom, main_stack_.bytes);
#endif
    // The fiber's own stack may be full, so the switch uses another stack.
    *stack_pointer = landing_stack_ + sizeof landing_stack_ - 64;
    *argument0 = &discarded_;
    *argument1 = main_stack_pointer_;
    *pc = reinterpret_cast<void*>(host_fiber_switch);
}

void Block::describe_signal() {
    fault_.address = signal_.address_known ? signal_.address : nullptr;
    fault_.write = signal_.write;
    if (signal_.number == SIGFPE) {
        fault_.kind = FaultKind::illegal_instruction;
        fault_.text = "integer division by zero (or of the lowest number by -1)";
    } else if (signal_.number == SIGILL) {
        fault_.kind = FaultKind::illegal_instruction;
        fault_.text = "illegal instruction";
    } else if (signal_.number == SIGBUS || !signal_.address_known) {
        fault_.kind = FaultKind::misaligned_address;
        fault_.text = "misaligned access, or one to an address that cannot exist";
    } else if (stacks_.in_guard(signal_.address)) {
        fault_.kind = FaultKind::stack_overflow;
        fault_.text =
            text("stack overflow: a thread has ", FiberStacks::stack_bytes >> 10, " KiB of local memory here");
    } else {
        fault_.kind = FaultKind::illegal_address;   // run_grid adds the text: it knows the shared memory
        fault_.text.clear();
    }
}

}   // namespace host
