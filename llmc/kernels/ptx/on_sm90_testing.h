// For tests of kernels for sm_90a: tells whether the current device, or its model, has their instructions.
#pragma once

#include <cuda_runtime.h>

#include "llmc/base/check.h"

inline bool on_sm90() {
    int device = 0, major = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major == 9;
}
