// Launch shape of element-wise kernels: a thread handles eight consecutive elements, a block 2,048.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/base/check.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/vec.cuh"

constexpr int kElementwiseThreads = 256;
constexpr int kElementwiseBlock = kElementwiseThreads * 8;

// Returns the number of blocks that cover n elements, `per_block` each.
inline unsigned blocks_for(std::int64_t n, std::int64_t per_block) {
    std::int64_t blocks = (n + per_block - 1) / per_block;
    ENSURE(n >= 0 && blocks <= 0x7fffffff, n, " elements are more than one launch can cover");
    return static_cast<unsigned>(blocks);
}

// Records the caller's file and line, so that a fault names the operation and not this line.
inline Launch elementwise_launch(std::int64_t n, cudaStream_t stream, const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
    return {dim3(blocks_for(n, kElementwiseBlock)), dim3(kElementwiseThreads), 0, stream, file, line};
}

// Returns the first of this thread's eight elements.
__device__ __forceinline__ std::int64_t thread_first_element() {
    return (static_cast<std::int64_t>(blockIdx.x) * kElementwiseThreads + threadIdx.x) * 8;
}
