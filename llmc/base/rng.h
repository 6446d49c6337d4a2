// Counter-based random numbers: a pure function of (key, counter), so any element of any tensor can be drawn alone, on
// any rank, in any order, with the same result. Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1,
// 2, 3" (SC 2011).
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

struct Random4 {
    std::uint32_t x, y, z, w;
};

// Mixes 64 bits (the finaliser of splitmix64).
__host__ __device__ inline std::uint64_t mix64(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// Hashes a name to 64 bits: FNV-1a (Fowler, Noll and Vo; draft-eastlake-fnv). A tensor's random numbers follow from its
// name, not from its place in a table: adding a tensor to a model does not change the numbers of the others.
constexpr std::uint64_t name_hash(std::string_view name) {
    std::uint64_t hash = 0xcbf29ce484222325ull;
    for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    return hash;
}

// Returns the key of a tensor's random numbers; `tensor` is the hash of its name.
__host__ __device__ inline std::uint64_t random_key(std::uint64_t seed, std::uint64_t tensor) {
    return mix64(mix64(seed) ^ tensor);
}

__host__ __device__ inline Random4 philox(std::uint64_t key, std::uint64_t counter_low,
                                          std::uint64_t counter_high = 0) {
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

// Maps bits to (0, 1]: never zero, so the logarithm is finite.
__host__ __device__ inline float uniform(std::uint32_t bits) {
    return (static_cast<float>(bits >> 8) + 1.0f) * (1.0f / 16777216.0f);
}

// ---------------------------------------------------------------------------------------------------------------------
// Normal numbers, the same bits on every machine: initial weights are made of them. The logarithms and cosines of C
// libraries and GPUs differ in the last bits, so these are our own. They use only operations that IEEE 754 rounds in
// one way, with fmaf wherever a product meets a sum, so that no compiler chooses whether to fuse them (never compile
// them with fast-math options). Polynomials are those of Cephes (Moshier, logf.c and sinf.c).

// Returns ln x of a normal number above zero, within 2 units in the last place.
__host__ __device__ inline float exact_log(float x) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    // x = m 2^e with m in [sqrt(1/2), sqrt(2)): 0x3f3504f3 is sqrt(1/2), subtracted so that the exponent counts from
    // there
    const std::uint32_t shifted = bits - 0x3f3504f3u;
    const float e = static_cast<float>(static_cast<std::int32_t>(shifted) >> 23);
    const float f = std::bit_cast<float>((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    const float square = f * f;
    float p = fmaf(7.0376836292e-2f, f, -1.1514610310e-1f);
    p = fmaf(p, f, 1.1676998740e-1f);
    p = fmaf(p, f, -1.2420140846e-1f);
    p = fmaf(p, f, 1.4249322787e-1f);
    p = fmaf(p, f, -1.6668057665e-1f);
    p = fmaf(p, f, 2.0000714765e-1f);
    p = fmaf(p, f, -2.4999993993e-1f);
    p = fmaf(p, f, 3.3333331174e-1f);
    float rest = fmaf(e, -2.12194440e-4f, p * (f * square));   // ln 2 in two parts, the small one first
    rest = fmaf(-0.5f, square, rest);
    return fmaf(e, 0.693359375f, f + rest);
}

// Returns cos(2 pi turns / 2^24) for turns in [0, 2^24].
__host__ __device__ inline float exact_cos_of_turns(std::uint32_t turns) {
    const std::uint32_t quadrant = (turns + (1u << 21)) >> 22;   // the nearest quarter turn; the remainder is exact
    const float left = static_cast<float>(static_cast<std::int32_t>(turns - (quadrant << 22)));
    const float x = left * 3.7450704e-7f;   // 2 pi / 2^24; within pi / 4
    const float square = x * x;
    float sine = fmaf(-1.9515295891e-4f, square, 8.3321608736e-3f);
    sine = fmaf(sine, square, -1.6666654611e-1f);
    sine = fmaf(sine, square * x, x);
    float cosine = fmaf(2.443315711809948e-5f, square, -1.388731625493765e-3f);
    cosine = fmaf(cosine, square, 4.166664568298827e-2f);
    cosine = fmaf(cosine, square * square, fmaf(-0.5f, square, 1.0f));
    const float value = quadrant % 2 == 0 ? cosine : sine;
    return quadrant % 4 == 1 || quadrant % 4 == 2 ? -value : value;
}

// Returns the standard normal number of one element: Box-Muller on the first two words of its own counter. (Box and
// Muller, "A note on the generation of random normal deviates", 1958.)
__host__ __device__ inline float normal(std::uint64_t key, std::uint64_t element) {
    const Random4 r = philox(key, element);
    const float radius = sqrtf(-2.0f * exact_log(uniform(r.x)));
    return radius * exact_cos_of_turns((r.y >> 8) + 1);
}
