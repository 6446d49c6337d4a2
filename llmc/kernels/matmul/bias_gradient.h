// Gradient of a bias: the sum of the rows of dout, in two stages so that it is both parallel and deterministic.
//
//     stage 1   partial(splits, N) = sums over blocks of neighbouring rows, each added in row order
//     stage 2   dbias(N)           = sum of the partials in block order (+ what dbias held before)
// Every sum is fp32 and its order depends on M, and where scratch is short for so many partials on N and the scratch
// too: not on the device, nor on which block ran first.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "llmc/base/dtype.h"

struct BiasGradientShape {
    int M, N;
    std::int64_t stride;   // elements between the starts of two rows of dout, at least N
};

// How many blocks of rows are summed apart: as many as keep a GPU busy, but no more than have room in the scratch; 0
// where not even one has, which needs 4 N bytes.
struct BiasGradientSplits {
    int count, rows;   // rows of each, but the last may have fewer
};
BiasGradientSplits bias_gradient_splits(int M, int N, std::size_t scratch_bytes);

// dbias(N), scratch(scratch_bytes, at least 4 N; 16-byte aligned), dout(M,N). With `accumulate`, adds to dbias.
// (T, G) is one of (float, float), (bf16, float), (bf16, bf16).
template <class T, class G>
void bias_gradient(G* dbias, float* scratch, std::size_t scratch_bytes, const T* dout, const BiasGradientShape& shape,
                   bool accumulate, cudaStream_t stream);

// Gradients of up to four biases of a later micro-batch, made apart, that are to be added to what is there already; no
// bias twice.
struct BiasSums {
    static constexpr int most = 4;
    float* to[most];
    const float* from[most];
    int channels[most];
    int count = 0;
};

// to[i] += from[i], each (channels[i]), in one launch.
void add_bias_sums(const BiasSums& sums, cudaStream_t stream);
