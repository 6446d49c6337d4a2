// Checks on what the program itself believes, and on the calls it makes to CUDA.
//
//   ENSURE(condition, "what is wrong: ", value)   an invariant of the program; failing is a bug (exit code 70)
//   CUDA_CHECK(cudaMalloc(&pointer, bytes))      a CUDA call; failing names the call, the place and the error
//
// Data is never checked with these: a file or flag that is wrong throws an Error of its own kind with a hint.
#pragma once

#include <cuda_runtime.h>

#include "llmc/base/error.h"

[[noreturn]] inline void invariant_failed(const char* condition, const char* file, int line, const std::string& message) {
    throw Error(ErrorKind::bug, text(file, ":", line, ": ", message, " (", condition, " does not hold)"),
                "This is a bug in the program, please report it with the command that shows it.");
}

#define ENSURE(condition, ...)                                                      \
    do {                                                                            \
        if (!(condition)) invariant_failed(#condition, __FILE__, __LINE__, text(__VA_ARGS__)); \
    } while (0)

inline void cuda_check(cudaError_t status, const char* call, const char* file, int line) {
    if (status == cudaSuccess) return;
    bool no_device = status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver;
    std::string message = text(file, ":", line, ": ", call, " failed: ", cudaGetErrorName(status), ": ",
                               cudaGetErrorString(status));
    if (no_device) {
        throw Error(ErrorKind::no_device, message,
                    "This build needs an NVIDIA GPU and its driver; `make DEVICE=cpu` builds for machines without one.");
    }
    if (status == cudaErrorMemoryAllocation) {
        throw Error(ErrorKind::no_device, message,
                    "The device has too little free memory: lower --micro-batch or --seq-len, or use --recompute.");
    }
    throw Error(ErrorKind::bug, message);
}

#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)
