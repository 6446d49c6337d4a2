#include "llmc/cuda_on_cpu/exec/fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

#include "llmc/cuda_on_cpu/memory/guard_pages.h"

#if defined(__x86_64__)
// %rdi: where to save the stack pointer; %rsi: the stack pointer to continue with. The return address of a suspended
// fiber lies above its six saved registers.
asm(R"(
.text
.globl host_fiber_switch
.type host_fiber_switch, @function
.p2align 4
host_fiber_switch:
    leaq -48(%rsp), %rsp
    movq %r15, (%rsp)
    movq %r14, 8(%rsp)
    movq %r13, 16(%rsp)
    movq %r12, 24(%rsp)
    movq %rbx, 32(%rsp)
    movq %rbp, 40(%rsp)
    movq %rsp, (%rdi)
    movq (%rsi), %r15
    movq 8(%rsi), %r14
    movq 16(%rsi), %r13
    movq 24(%rsi), %r12
    movq 32(%rsi), %rbx
    movq 40(%rsi), %rbp
    movq 48(%rsi), %rax
    leaq 56(%rsi), %rsp
    jmp *%rax
.size host_fiber_switch, .-host_fiber_switch
)");
static constexpr int saved_words = 6;
#else
#error "llmc/cuda_on_cpu/exec/fiber.cpp: write host_fiber_switch for this processor (only x86-64 is there)"
#endif

namespace host {

StackBounds thread_stack() {
    pthread_attr_t attributes;
    void* bottom = nullptr;
    std::size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &bottom, &bytes);
        pthread_attr_destroy(&attributes);
    }
    return {static_cast<char*>(bottom), bytes};
}

FiberStacks::FiberStacks(int most) : most_(most) {
    // Reserves addresses only: a stack takes memory once it is used.
    void* memory = mmap(nullptr, span * most, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<char*>(memory);
    free_.reserve(most);
}

FiberStacks::~FiberStacks() {
#ifdef HOST_ADDRESS_SANITIZER
    __asan_unpoison_memory_region(memory_, span * most_);
#endif
    munmap(memory_, span * most_);
}

void FiberStacks::make_one() {
    char* guard = memory_ + span * made_;
    // If the kernel allows no further mappings, the guard is missing, and an overflow of that stack is not named.
    if (!install_guard_pages(guard, guard_bytes)) mprotect(guard, guard_bytes, PROT_NONE);
    free_.push_back(made_++);
}

void FiberStacks::reset() {
    free_.clear();
    for (int index = made_ - 1; index >= 0; index--) free_.push_back(index);
#ifdef HOST_ADDRESS_SANITIZER
    // Frames that were abandoned in the middle left their red zones behind.
    for (int index = 0; index < made_; index++) __asan_unpoison_memory_region(bounds(index).bottom, stack_bytes);
#endif
}

void* FiberStacks::start(int index, void (*entry)()) const {
    StackBounds stack = bounds(index);
#ifdef HOST_ADDRESS_SANITIZER
    // The thread that had this stack before left from the middle of its kernel's caller, whose red zones are still
    // there.
    __asan_unpoison_memory_region(stack.bottom, stack.bytes);
#endif
    std::size_t stagger = 64 * (static_cast<std::size_t>(index) * 5 % 48);
    void** top = reinterpret_cast<void**>(stack.bottom + stack.bytes - stagger);
    *--top = nullptr;   // `entry` has no return address; the stack is aligned as after a call
    *--top = reinterpret_cast<void*>(entry);
    for (int word = 0; word < saved_words; word++) *--top = nullptr;
    return top;
}

namespace {

struct Spare {
    std::mutex mutex;
    std::vector<std::unique_ptr<FiberStacks>> stacks;
};
Spare& spare() {
    static Spare* spare = new Spare;   // never destroyed: threads may end after statics
    return *spare;
}

}   // namespace

LentStacks::LentStacks(int most) {
    {
        std::lock_guard lock(spare().mutex);
        auto& stacks = spare().stacks;
        auto fits = std::find_if(stacks.begin(), stacks.end(), [&](const auto& s) { return s->most() == most; });
        if (fits != stacks.end()) {
            stacks_ = std::move(*fits);
            stacks.erase(fits);
        }
    }
    if (stacks_)
        stacks_->reset();
    else
        stacks_ = std::make_unique<FiberStacks>(most);
}

LentStacks::~LentStacks() {
    std::lock_guard lock(spare().mutex);
    spare().stacks.push_back(std::move(stacks_));
}

bool FiberStacks::in_guard(const void* address) const {
    const char* position = static_cast<const char*>(address);
    if (position < memory_ || position >= memory_ + span * most_) return false;
    return static_cast<std::size_t>(position - memory_) % span < guard_bytes;
}

}   // namespace host
