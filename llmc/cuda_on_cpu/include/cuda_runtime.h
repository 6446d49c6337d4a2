// Stand-in for CUDA's <cuda_runtime.h>: the runtime calls (cuda_runtime_api.h) and the language parts for kernels
// (llmc/cuda_on_cpu/exec/device_functions.h: __global__, threadIdx, vector types, barriers, shuffles, atomics).
#pragma once

#ifdef __CUDACC__
#error "llmc/cuda_on_cpu/include holds the CPU stand-ins of CUDA's headers: take it off nvcc's include path"
#endif

#include <cuda_runtime_api.h>

#if __has_include("llmc/cuda_on_cpu/exec/device_functions.h")
#include "llmc/cuda_on_cpu/exec/device_functions.h"
#else
#define __host__
#define __device__
#endif
