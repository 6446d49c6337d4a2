// Computes the gradient of a bias: the sum of the rows of dout, in two stages so that it is both parallel and
// deterministic.
//
//     stage 1   partial(splits, N) = sums over blocks of neighbouring rows, each added in row order
//     stage 2   dbias(N)           = sum of the partials in block order (+ what dbias held before)
// Every sum is fp32. Its order depends on M, and on N and the scratch where the scratch is short for the partials: not
// on the device, nor on which block ran first.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "llmc/base/dtype.h"

struct BiasGradientShape {
    int M, N;
    std::int64_t stride;   // elements between the starts of two rows of dout, at least N
};

// Number of blocks of rows that are summed apart: enough to keep a GPU busy, but no more than the scratch has room for;
// 0 if it has no room for one, which needs 4 N bytes.
struct BiasGradientSplits {
    int count, rows;   // rows: per block; the last may have fewer
};
BiasGradientSplits bias_gradient_splits(int M, int N, std::size_t scratch_bytes);

// Computes dbias(N) from dout(M,N). scratch(scratch_bytes): at least 4 N, 16-byte aligned. With `accumulate`, adds to
// dbias. (T, G) is one of (float, float), (bf16, float), (bf16, bf16).
template <class T, class G>
void bias_gradient(G* dbias, float* scratch, std::size_t scratch_bytes, const T* dout, const BiasGradientShape& shape,
                   bool accumulate, cudaStream_t stream);

// Bias gradients of a later micro-batch, up to four, computed apart and waiting to be added to their sums; no bias
// appears twice.
struct BiasSums {
    static constexpr int most = 4;
    float* to[most];
    const float* from[most];
    int channels[most];
    int count = 0;
};

// Adds to[i] += from[i], each (channels[i]), in one launch.
void add_bias_sums(const BiasSums& sums, cudaStream_t stream);
