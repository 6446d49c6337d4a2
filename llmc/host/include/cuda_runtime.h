// Stand-in for CUDA's <cuda_runtime.h>: the runtime calls (cuda_runtime_api.h) and what kernels are written with
// (llmc/host/exec.h: __global__, threadIdx, vector types, barriers, shuffles, atomics).
#pragma once

#ifdef __CUDACC__
#error "llmc/host/include holds the CPU stand-ins of CUDA's headers: take it off nvcc's include path"
#endif

#include <cuda_runtime_api.h>

#if __has_include("llmc/host/exec.h")
#include "llmc/host/exec.h"
#else
#define __host__
#define __device__
#endif
