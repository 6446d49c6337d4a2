// Rounds numbers to blocks of 256 that travel in their place: whole numbers of 8 bits with a scale in fp32, or bf16.
//
// What rounding leaves out is told, so that a sender can add it to what it sends next (error feedback: Seide et al.,
// "1-bit stochastic gradient descent", 2014).
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>

#include "llmc/base/dtype.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/optim/shard_blocks.h"
#include "llmc/kernels/rows/reduce.cuh"

constexpr int kRoundingThreads = 256;

struct Int8Block {
    float scale;   // infinite if a value is not finite: then the block's elements are not
    std::int8_t values[kRoundedBlock];
    __device__ float at(int i) const { return static_cast<float>(values[i]) * scale; }
};

struct Bf16Block {
    bf16 values[kRoundedBlock];
    __device__ float at(int i) const { return static_cast<float>(values[i]); }
};

// Words of 32 bits, as which a block travels.
template <class Block>
constexpr std::size_t words_of_block() {
    static_assert(sizeof(Block) % sizeof(std::int32_t) == 0);
    return sizeof(Block) / sizeof(std::int32_t);
}

// Rounds value(i) of a block's elements to `out`, and calls left(i, rest), whose rest is not finite where value(i) or,
// in 8 bits, another of the block is not.
template <class Value, class Left>
__device__ void round_block(Int8Block& out, Value&& value, Left&& left) {
    float most = 0;
    for (int i = static_cast<int>(threadIdx.x); i < kRoundedBlock; i += static_cast<int>(blockDim.x)) {
        const float x = fabsf(value(i));
        most = fmaxf(most, x <= FLT_MAX ? x : INFINITY);   // NaN too
    }
    const float scale = block_max(most) / 127.0f;
    const float inverse = scale > 0 && scale <= FLT_MAX ? 1.0f / scale : 0.0f;
    if (threadIdx.x == 0) out.scale = scale;
    for (int i = static_cast<int>(threadIdx.x); i < kRoundedBlock; i += static_cast<int>(blockDim.x)) {
        const float x = value(i);
        const float whole =
            inverse > 0 && inverse <= FLT_MAX ? fminf(fmaxf(rintf(x * inverse), -127.0f), 127.0f) : 0.0f;
        out.values[i] = static_cast<std::int8_t>(whole);
        left(i, fmaf(-whole, scale, x));
    }
}

template <class Value, class Left>
__device__ void round_block(Bf16Block& out, Value&& value, Left&& left) {
    for (int i = static_cast<int>(threadIdx.x); i < kRoundedBlock; i += static_cast<int>(blockDim.x)) {
        const float x = value(i);
        out.values[i] = static_cast<bf16>(x);
        left(i, x - out.at(i));
    }
}
