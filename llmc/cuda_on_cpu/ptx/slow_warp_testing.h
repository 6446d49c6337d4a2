// For tests of kernels for sm_90a: makes a warp come last to all ends of products, while it lives.
#pragma once

#include "llmc/cuda_on_cpu/ptx/ptx_wgmma.h"

namespace host {

struct SlowWarp {
    explicit SlowWarp(int warp) { ptx_model::slow_warp = warp; }
    ~SlowWarp() { ptx_model::slow_warp = -1; }
    SlowWarp(const SlowWarp&) = delete;
};

}   // namespace host
