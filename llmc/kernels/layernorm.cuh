// Layer normalisation of rows (Ba, Kiros, Hinton, "Layer normalization", 2016): out = (in - mean) * rstd * weight + bias
// with rstd = 1 / sqrt(variance + 1e-5), and its backward pass. All arithmetic is fp32.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "llmc/base/dtype.h"

constexpr float kLayerNormEpsilon = 1e-5f;

template <class Real>
struct LayerNormForward {
    Real* out;            // (rows, C)
    float* mean;          // (rows), or null when backward will not follow
    float* rstd;          // (rows), or null likewise
    const Real* in;       // (rows, C)
    const Real* weight;   // (C)
    const Real* bias;     // (C)
    int rows, C;
};

template <class Real>
void layernorm_forward(const LayerNormForward<Real>& args, cudaStream_t stream);

template <class Real, class Grad>
struct LayerNormBackward {
    Real* din;            // (rows, C) gradient of `in`: added to, or overwritten
    Grad* dweight;        // (C)
    Grad* dbias;          // (C)
    float* scratch;       // layernorm_backward_scratch(rows, C) floats
    const Real* dout;     // (rows, C)
    const Real* in;       // (rows, C), as given to forward
    const Real* weight;   // (C)
    const float* mean;    // (rows)
    const float* rstd;    // (rows)
    int rows, C;
    bool accumulate_input;        // din += (the gradient of the residual stream) instead of din =
    bool accumulate_parameters;   // dweight, dbias += instead of = (later micro-batches)
};

// Floats of scratch that backward needs: partial sums of dweight and dbias, so that they are summed in a fixed order.
std::size_t layernorm_backward_scratch(int rows, int C);

template <class Real, class Grad>
void layernorm_backward(const LayerNormBackward<Real, Grad>& args, cudaStream_t stream);
