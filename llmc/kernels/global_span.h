// Which elements of a global tensor the consecutive elements of a local piece are.
//
// A rank holds a contiguous range of a tensor, or equal pieces of each of its rows (a cut by columns). Whatever must not
// depend on the layout (initial weights, stochastic rounding) is keyed by the global element, found here.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

struct GlobalSpan {
    std::int64_t first = 0;    // global element of local element 0
    std::int64_t length = 0;   // elements per contiguous piece; 0: the whole range is one piece
    std::int64_t stride = 0;   // global elements from the start of one piece to the start of the next

    __host__ __device__ std::int64_t element(std::int64_t local) const {
        if (length == 0) return first + local;
        return first + local / length * stride + local % length;
    }
};
