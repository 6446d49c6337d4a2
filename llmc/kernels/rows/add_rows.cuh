// Sums rows in a fixed order, with as many loads under way as a GPU needs.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "llmc/kernels/vec.cuh"

// Adds elements column .. column+7 of row(i) for i = first, first + step, ... before `end` to `sum`, in this order.
// With packets `in_flight` loads are under way together, and half as many at a time where fewer rows are left.
template <int in_flight, class Row, class AnyExtent>
__device__ __forceinline__ void add_rows(Vec8<float>& sum, int first, int end, int step, Row row, std::int64_t column,
                                         AnyExtent extent) {
    constexpr int together = std::is_same_v<AnyExtent, PacketExtent> ? in_flight : 1;
    int i = first;
#pragma unroll 1
    for (; i + (together - 1) * step < end; i += together * step) {
#pragma unroll
        for (int u = 0; u < together; u++) {
            const Vec8<float> x = to_floats(load8(row(i + u * step), column, extent));
#pragma unroll
            for (int k = 0; k < 8; k++) sum[k] += x[k];
        }
    }
    if constexpr (together > 1) add_rows<together / 2>(sum, i, end, step, row, column, extent);
}
