// Checks on what the program itself believes (ENSURE), and on the calls it makes to CUDA.
//
//   CUDA_CHECK(cudaMalloc(&pointer, bytes))      a CUDA call; failing names the call, the place and the error
#pragma once

#include <cuda_runtime.h>

#include "llmc/base/ensure.h"
#include "llmc/base/error.h"
#include "llmc/base/limits/memory_limits.h"

// Advice for a device with too little memory. (--recompute auto goes by the device's whole memory, not by what others
// have left of it.) Names the limit that counts where there is no GPU, and on a GPU a limit of addresses (ulimit -v).
std::string how_to_save_memory();

[[noreturn]] void cuda_failed(cudaError_t status, const char* call, const char* file, int line);

inline void cuda_check(cudaError_t status, const char* call, const char* file, int line) {
    if (status != cudaSuccess) cuda_failed(status, call, file, line);
}

cudaDeviceProp device_properties();   // properties of the device that this thread uses

#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)
