// Gradient of a bias: the sum of the rows of dout, in two stages so that it is both parallel and deterministic.
//
//     stage 1   partial(splits, N) = sums over blocks of neighbouring rows, each added in row order
//     stage 2   dbias(N)           = sum of the partials in block order (+ what dbias held before)
// Every sum is fp32 and its order depends on M alone: not on the device, nor on which block ran first.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "llmc/base/dtype.h"

struct BiasGradientShape {
    int M, N;
    std::int64_t stride;   // elements between the starts of two rows of dout, at least N
};

// Bytes of scratch that bias_gradient needs.
std::size_t bias_gradient_scratch_bytes(int M, int N);

// dbias(N), scratch (at least the bytes above, 16-byte aligned), dout(M,N). With `accumulate`, adds to dbias.
// (T, G) is one of (float, float), (bf16, float), (bf16, bf16).
template <class T, class G>
void bias_gradient(G* dbias, float* scratch, const T* dout, const BiasGradientShape& shape, bool accumulate,
                   cudaStream_t stream);
