// Ends a program on a processor that lacks instructions which the program was compiled for (CPU_ARCH, by default those
// of the machine that built it), before any of them runs: SIGILL would tell nobody why. Exit code 69.
//
// Runs first (constructors of priority 101), and is itself compiled for every x86-64. The linker is told to take it
// (-u require_processor in the Makefile). Other processors, and a CUDA build, whose host code is for every x86-64:
// nothing to do.
#include <unistd.h>

#include <cstddef>

#if defined(__x86_64__)

namespace {

__attribute__((target("arch=x86-64"))) void write_text(const char* text) {
    std::size_t length = 0;
    while (text[length] != 0) length++;
    if (::write(STDERR_FILENO, text, length) < 0) return;   // nowhere to say it
}

}   // namespace

#define NEEDS(FEATURE) \
    if (missing == nullptr && !__builtin_cpu_supports(FEATURE)) missing = FEATURE

extern "C" __attribute__((constructor(101), target("arch=x86-64"))) void require_processor() {
    const char* missing = nullptr;
    __builtin_cpu_init();
#ifdef __AVX__
    NEEDS("avx");
#endif
#ifdef __AVX2__
    NEEDS("avx2");
#endif
#ifdef __FMA__
    NEEDS("fma");
#endif
#ifdef __FMA4__
    NEEDS("fma4");
#endif
#ifdef __BMI2__
    NEEDS("bmi2");
#endif
#ifdef __AVX512F__
    NEEDS("avx512f");
#endif
#ifdef __AVX512BW__
    NEEDS("avx512bw");
#endif
#ifdef __AVX512DQ__
    NEEDS("avx512dq");
#endif
#ifdef __AVX512VL__
    NEEDS("avx512vl");
#endif
#ifdef __AVX512IFMA__
    NEEDS("avx512ifma");
#endif
#ifdef __AVX512VBMI__
    NEEDS("avx512vbmi");
#endif
#ifdef __AVX512VBMI2__
    NEEDS("avx512vbmi2");
#endif
#ifdef __AVX512VNNI__
    NEEDS("avx512vnni");
#endif
#ifdef __AVX512BITALG__
    NEEDS("avx512bitalg");
#endif
#ifdef __AVX512VPOPCNTDQ__
    NEEDS("avx512vpopcntdq");
#endif
    if (missing == nullptr) return;
    write_text("this program was built for a processor with ");
    write_text(missing);
    write_text(
        ", which this one lacks. Build it on this machine, or for every one that has AVX2, FMA and BMI2: "
        "make CPU_ARCH=x86-64-v3. Less than that is not enough.\n");
    ::_exit(69);
}

#else
extern "C" void require_processor() {}
#endif
