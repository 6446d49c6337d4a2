// Counter-based random numbers: a pure function of (key, counter), so any element of any tensor can be drawn alone, on
// any rank, in any order, with the same result. Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011).
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

struct Random4 { std::uint32_t x, y, z, w; };

// Mixes 64 bits well (the finaliser of splitmix64); makes keys from seeds and names.
__host__ __device__ inline std::uint64_t mix64(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

__host__ __device__ inline Random4 philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high = 0) {
    std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    Random4 c{static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
              static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
    for (int round = 0; round < 10; round++) {
        std::uint64_t p0 = 0xD2511F53ull * c.x, p1 = 0xCD9E8D57ull * c.z;
        c = {static_cast<std::uint32_t>(p1 >> 32) ^ c.y ^ k0, static_cast<std::uint32_t>(p1),
             static_cast<std::uint32_t>(p0 >> 32) ^ c.w ^ k1, static_cast<std::uint32_t>(p0)};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

// In (0, 1]: never zero, so its logarithm is finite.
__host__ __device__ inline float uniform(std::uint32_t bits) {
    return (static_cast<float>(bits >> 8) + 1.0f) * (1.0f / 16777216.0f);
}

// Standard normal number of one element: Box-Muller on the first two words of its own counter.
__host__ __device__ inline float normal(std::uint64_t key, std::uint64_t element) {
    Random4 r = philox(key, element);
    float radius = sqrtf(-2.0f * logf(uniform(r.x)));
    return radius * cosf(6.283185307179586f * uniform(r.y));
}
