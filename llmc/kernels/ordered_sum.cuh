// Sums a list of floats or doubles in a fixed order: the second stage of every two-stage sum. Every thread of a block
// of kOrderedSumThreads must call it; thread 0 gets the sum, in double.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

constexpr int kOrderedSumThreads = 256;

// Every thread of a block of kOrderedSumThreads must call it; thread 0 gets the sum, in double.
template <class Real>
__device__ __forceinline__ double ordered_sum(const Real* values, std::int64_t n) {
    __shared__ double of_thread[kOrderedSumThreads];
    double sum = 0;
    for (std::int64_t i = threadIdx.x; i < n; i += kOrderedSumThreads) sum += static_cast<double>(values[i]);
    of_thread[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int t = 1; t < kOrderedSumThreads; t++) sum += of_thread[t];
    }
    return sum;
}
