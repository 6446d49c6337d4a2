// Fibers: stacks a thread can switch between. The threads of a CUDA block run on them on a CPU.
//
// A switch saves the callee-saved registers and ends in `jmp` (4-7 ns; ending in `ret` costs the branch predictor
// 20 ns, ucontext 150 ns). A fiber never moves to another thread, so thread-local variables keep their addresses.
// Each stack ends in inaccessible pages. Stack tops are staggered, else a thousand stacks fight for the same sets of
// the cache. AddressSanitizer is told about every switch.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define HOST_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HOST_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef HOST_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define HOST_NO_ADDRESS_SANITIZER __attribute__((no_sanitize_address))
#else
#define HOST_NO_ADDRESS_SANITIZER
#endif

// Saves the running context's stack pointer in *save and continues the one whose stack pointer was saved as `to`.
extern "C" void host_fiber_switch(void** save, void* to);

namespace host {

struct StackBounds {
    char* bottom = nullptr;
    std::size_t bytes = 0;
    bool contains(const void* address) const { return address >= bottom && address < bottom + bytes; }
};

// Returns the bounds of the calling thread's own stack.
StackBounds thread_stack();

// Stacks of one thread's fibers, made as they are first needed and kept.
class FiberStacks {
public:
    explicit FiberStacks(int most);
    ~FiberStacks();
    FiberStacks(const FiberStacks&) = delete;
    FiberStacks& operator=(const FiberStacks&) = delete;

    // Returns a free stack. There must be one: at most `most` are ever taken at once.
    int take() {
        if (free_.empty()) make_one();
        int index = free_.back();
        free_.pop_back();
        return index;
    }
    void give_back(int index) { free_.push_back(index); }

    // Frees all stacks, whatever was running on them.
    void reset();

    StackBounds bounds(int index) const { return {memory_ + span * index + guard_bytes, stack_bytes}; }

    // Returns the stack pointer from which host_fiber_switch starts `entry` on stack `index`. `entry` must not return.
    void* start(int index, void (*entry)()) const;

    int most() const { return most_; }

    // Returns true if the address lies in the guard page of one of the stacks: a stack overflow.
    bool in_guard(const void* address) const;

#ifdef HOST_ADDRESS_SANITIZER
    static constexpr std::size_t stack_bytes = 256 << 10;   // instrumented frames are larger
#else
    static constexpr std::size_t stack_bytes = 64 << 10;
#endif
    static constexpr std::size_t guard_bytes = 64 << 10;   // so wide that a large frame does not step over it
    static constexpr std::size_t span = stack_bytes + guard_bytes;

private:
    void make_one();

    char* memory_;
    int most_;
    int made_ = 0;
    std::vector<int> free_;
};

// Stacks of the calling thread. When the thread ends, the next new thread gets them: tests make many short-lived
// threads, and the pages and guards of a thousand stacks take longer than many kernels.
class LentStacks {
public:
    explicit LentStacks(int most);
    ~LentStacks();
    LentStacks(const LentStacks&) = delete;
    LentStacks& operator=(const LentStacks&) = delete;
    FiberStacks& operator*() const { return *stacks_; }

private:
    std::unique_ptr<FiberStacks> stacks_;
};

}   // namespace host
