// Stand-in for CUDA's <nvtx3/nvToolsExt.h>: ranges for a profiler that is not there.
#pragma once

#ifdef __CUDACC__
#error "llmc/cuda_on_cpu/include holds the CPU stand-ins of CUDA's headers: take it off nvcc's include path"
#endif

inline int nvtxRangePushA(const char*) { return 0; }
inline int nvtxRangePop() { return 0; }
