// Position in a ring of stages of shared memory, which copies fill and products empty; each has its mbarriers.
#pragma once

#include <cuda_runtime.h>

template <int STAGES>
struct HopperRing {
    int stage = 0, parity = 0;
    __device__ __forceinline__ void skip(int steps) {
        const int end = stage + steps;
        stage = end % STAGES;
        parity ^= end / STAGES & 1;
    }
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};
