// GELU with the tanh approximation (Hendrycks and Gimpel, 2016), as GPT-2 uses it:
//   gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/base/dtype.h"

// out[i] = gelu(in[i]) for n elements; `out` may be `in`.
template <class Real>
void gelu_forward(Real* out, const Real* in, std::int64_t n, cudaStream_t stream);

// din[i] = dout[i] * gelu'(in[i]) for n elements; `din` may be `dout`.
template <class Real>
void gelu_backward(Real* din, const Real* dout, const Real* in, std::int64_t n, cudaStream_t stream);
