// Exchanges values in a group of four lanes, so that each writes 16 adjacent bytes of a product's sums.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Transposes pieces in each group of four lanes: lane l gives its pieces[i] to lane i, which keeps it as pieces[l].
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&pieces)[4]) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool high = (static_cast<int>(threadIdx.x) & bit) != 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            const std::uint32_t other = __shfl_xor_sync(~0u, high ? pieces[i] : pieces[i | bit], bit);
            pieces[i] = high ? other : pieces[i];
            pieces[i | bit] = high ? pieces[i | bit] : other;
        }
    }
}
