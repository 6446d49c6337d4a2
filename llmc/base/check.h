// Checks on what the program itself believes, and on the calls it makes to CUDA.
//
//   ENSURE(condition, "what is wrong: ", value)   an invariant of the program; failing is a bug (exit code 70)
//   CUDA_CHECK(cudaMalloc(&pointer, bytes))      a CUDA call; failing names the call, the place and the error
//
// Data is never checked with these: a file or flag that is wrong throws an Error of its own kind with a hint.
#pragma once

#include <cuda_runtime.h>

#include "llmc/base/error.h"

#define ENSURE(condition, ...)                                                                 \
    do {                                                                                       \
        if (!(condition)) invariant_failed(#condition, __FILE__, __LINE__, text(__VA_ARGS__)); \
    } while (0)

[[noreturn]] void cuda_failed(cudaError_t status, const char* call, const char* file, int line);

inline void cuda_check(cudaError_t status, const char* call, const char* file, int line) {
    if (status != cudaSuccess) cuda_failed(status, call, file, line);
}

#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)
