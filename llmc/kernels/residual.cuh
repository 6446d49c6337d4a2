// The residual stream: out = a + b, alone or fused with the layer normalisation that reads it next.
//
// Backward needs no kernel: both inputs receive the gradient of the sum.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/base/dtype.h"

// out[i] = a[i] + b[i] for n elements; `out` may be `a` or `b`.
template <class Real>
void residual_forward(Real* out, const Real* a, const Real* b, std::int64_t n, cudaStream_t stream);

// residual = a + b (rounded to Real), then `out` = layernorm(residual): bit-equal to the two separate calls, without
// reading the sum back from memory. `residual` may be `a` or `b`.
template <class Real>
struct ResidualLayerNormForward {
    Real* residual;       // (rows, C)
    Real* out;            // (rows, C)
    float* mean;          // (rows), or null when backward will not follow
    float* rstd;          // (rows), or null likewise
    const Real* a;        // (rows, C)
    const Real* b;        // (rows, C)
    const Real* weight;   // (C)
    const Real* bias;     // (C)
    int rows, C;
};

template <class Real>
void residual_layernorm_forward(const ResidualLayerNormForward<Real>& args, cudaStream_t stream);
