// Reads the program's own symbol table: finds the name of a kernel from its address, and static __shared__ memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace host {

class Symbols {
public:
    // Returns the symbols of the running program, read at the first call. Empty if it was stripped.
    static const Symbols& of_program();

    // Returns a function's name, demangled and without parameters, e.g. "layernorm_forward<float>"; empty if not known.
    std::string function(const void* address) const;

    // Variable that is static in a function and has a copy per thread; its offset is relative to the same thread's
    // threadIdx. Variables of the stand-in itself, and those with constructors, are left out: the rest is __shared__.
    struct ThreadLocal {
        std::string name;
        std::ptrdiff_t offset;
        std::size_t bytes;
    };
    const std::vector<ThreadLocal>& static_shared() const { return static_shared_; }

private:
    struct Function {
        std::uintptr_t offset;   // from base_
        const char* name;        // mangled, in the mapped file
    };
    Symbols();
    void read(const char* file, std::size_t bytes);

    std::uintptr_t base_ = 0;
    std::vector<Function> functions_;   // ascending
    std::vector<ThreadLocal> static_shared_;
};

// Fills the calling thread's copies of all static __shared__ variables with `byte`. Does nothing in a stripped program.
void fill_static_shared(unsigned char byte);

}   // namespace host
