#include "llmc/cuda_on_cpu/memory/fault.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "llmc/base/error.h"
#include "llmc/cuda_on_cpu/memory/memory.h"

namespace host {
namespace {

constexpr std::size_t handler_stack_bytes = 128u << 10;
constexpr int most_handlers = 8;

std::atomic<FaultHandler> handlers[most_handlers];
std::atomic<int> handler_count = 0;

// Place where a fault of this thread resumes, or null; and the fault's message.
thread_local sigjmp_buf* resume_at = nullptr;
thread_local std::string resume_message;

Fault fault_of(int signal, const siginfo_t* info, void* context) {
    Fault fault{info->si_addr, info->si_code > 0 && info->si_code != SI_KERNEL, false, signal, context};
#ifdef __x86_64__
    fault.write = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2;
#endif
    return fault;
}

void on_signal(int signal, siginfo_t* info, void* context) {
    const Fault fault = fault_of(signal, info, context);
    for (int i = 0; i < handler_count.load(); i++)
        if (handlers[i].load()(fault)) return;
    if (resume_at) {
        resume_message = describe(fault);
        siglongjmp(*resume_at, 1);
    }
    const std::string message = "fault: " + describe(fault) + "\n";
    [[maybe_unused]] ssize_t written = write(STDERR_FILENO, message.data(), message.size());
    ::signal(signal, SIG_DFL);   // returning repeats the access, which now ends the process
}

void install_handler() {
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    for (int signal : {SIGSEGV, SIGBUS}) sigaction(signal, &action, nullptr);
}

// Alternate stack of one thread, freed when the thread ends.
struct HandlerStack {
    HandlerStack() {
        stack_t present{};
        sigaltstack(nullptr, &present);
        if (!(present.ss_flags & SS_DISABLE) && present.ss_size >= handler_stack_bytes) return;
        memory = mmap(nullptr, handler_stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return;
        stack_t stack{};
        stack.ss_sp = memory;
        stack.ss_size = handler_stack_bytes;
        sigaltstack(&stack, nullptr);
    }
    ~HandlerStack() {
        if (memory == MAP_FAILED) return;
        stack_t off{};
        off.ss_flags = SS_DISABLE;
        sigaltstack(&off, nullptr);
        munmap(memory, handler_stack_bytes);
    }
    HandlerStack(const HandlerStack&) = delete;
    HandlerStack& operator=(const HandlerStack&) = delete;
    void* memory = MAP_FAILED;
};

}   // namespace

void add_fault_handler(FaultHandler handler) {
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    const int count = handler_count.load();
    for (int i = 0; i < count; i++)
        if (handlers[i].load() == handler) return;
    if (count == most_handlers) throw std::length_error("too many fault handlers");
    handlers[count] = handler;
    handler_count = count + 1;
}

void prepare_thread_for_faults() {
    static std::once_flag once;
    std::call_once(once, install_handler);
    static thread_local HandlerStack stack;
    (void)stack;
}

// A function of its own, because variables of a function that calls setjmp are not safe after the jump.
[[gnu::noinline]] static void take_message(std::string* message) { message->swap(resume_message); }

bool run_guarded(const std::function<bool()>& step, bool* finished, std::string* message) {
    sigjmp_buf here;
    sigjmp_buf* const outer = resume_at;
    if (sigsetjmp(here, 0) != 0) {
        resume_at = outer;
        take_message(message);
        return false;
    }
    resume_at = &here;
    try {
        *finished = step();
    } catch (...) {
        resume_at = outer;
        throw;
    }
    resume_at = outer;
    return true;
}

std::string host_fault_of(const std::function<void()>& body) {
    prepare_thread_for_faults();
    bool finished = false;
    std::string message;
    run_guarded([&] { return body(), true; }, &finished, &message);
    return message;
}

std::string describe(const Fault& fault) {
    const char* access = fault.write ? "write to " : "read of ";
    if (!fault.address_known) return text(access, "an address that cannot exist");
    std::string where = describe_address(fault.address);
    const auto address = reinterpret_cast<std::uintptr_t>(fault.address);
    if (is_device_memory(fault.address)) where += "; the host may not touch device memory, only copy it";
    if (where.empty()) where = address < 4096 ? "a null pointer" : "neither device memory nor pinned host memory";
    return text(access, fault.address, ", ", where);
}

}   // namespace host
