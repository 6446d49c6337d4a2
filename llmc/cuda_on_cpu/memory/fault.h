// Turns SIGSEGV and SIGBUS into messages: who touched which memory, and why that was wrong.
//
// One handler for the process. In order of preference:
//   1. a registered FaultHandler that recognises the address or the stack (kernels: exec's) deals with it;
//   2. a fault inside an operation, on the thread that runs it, becomes the device's sticky error;
//   3. a fault of host code under `host_fault_of` is returned by that;
//   4. otherwise the message goes to stderr, and the process dies of the signal as it would have.
// Handlers run on an alternate stack. The faults are synchronous, made by the program's own instruction, so handlers
// are limited by the code that it may have interrupted, not by the list of async-signal-safe functions.
#pragma once

#include <functional>
#include <string>

namespace host {

struct Fault {
    const void* address;
    bool
        address_known;   // false for addresses no program can have (not canonical), which the processor does not report
    bool write;          // meaningful on x86-64
    int signal;
    void* context;   // ucontext_t*, which a handler may change to resume elsewhere
};

// Handles a fault. Returns true if it has dealt with the fault; execution then resumes from the context. It may also
// leave by a long jump (the signal stays unblocked).
using FaultHandler = bool (*)(const Fault& fault);
void add_fault_handler(FaultHandler handler);

// Gives the calling thread an alternate stack for handlers, and installs the process's handler if this has not
// happened. Every thread that runs operations calls it; repeated calls cost nothing.
void prepare_thread_for_faults();

// Runs `body`; returns the message of the fault that ended it, or "" if none did. Destructors between the fault and
// here do not run: for tests, and simple bodies.
std::string host_fault_of(const std::function<void()>& body);

// Runs one step of an operation as above, but cheaply enough for each; returns false and a message if it faulted.
bool run_guarded(const std::function<bool()>& step, bool* finished, std::string* message);

// Returns, for example, "read of 0x..., 4 bytes past the end of ...".
std::string describe(const Fault& fault);

}   // namespace host
