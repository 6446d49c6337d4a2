// Rounds numbers to blocks of 256 that travel in their place: whole numbers of 8 bits or four levels of 2 bits, with a
// scale in fp32, or bf16.
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

// Four levels an element, -1.5, -0.5, 0.5 and 1.5 times the scale, four elements a byte, the first in the lowest bits.
struct Int2Block {
    float scale;   // not finite if a value is not
    std::uint8_t values[kRoundedBlock / 4];
    __device__ float at(int i) const { return (static_cast<float>(values[i / 4] >> i % 4 * 2 & 3) - 1.5f) * scale; }
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

// Rounds the first `count` elements; the others are 0.
template <class Value, class Left>
__device__ void round_block(Int8Block& out, int count, Value&& value, Left&& left) {
    round_block(
        out, [&](int i) { return i < count ? value(i) : 0.0f; },
        [&](int i, float rest) {
            if (i < count) left(i, rest);
        });
}

// Rounds the first `count` elements; the others mean nothing. The outer levels are for elements further from 0
// than 1.25 times the mean of all: for normal numbers that is within 1% of the uniform four levels of the least squared
// error (Max, "Quantizing for minimum distortion", 1960). The scale is then the one of the least squared error for
// levels so chosen, so what is left out is shorter than what was given, whatever the values.
template <class Value, class Left>
__device__ void round_block(Int2Block& out, int count, Value&& value, Left&& left) {
    const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    float sum = 0;
    for (int i = thread; i < count; i += threads) sum += fabsf(value(i)) / kRoundedBlock;   // cannot overflow
    const float bound = count > 0 ? 1.25f * kRoundedBlock / static_cast<float>(count) * block_sum(sum) : 0.0f;
    float along = 0, squares = 0;   // the values times their levels, and these squared
    for (int i = thread; i < count; i += threads) {
        const float x = fabsf(value(i)), level = x > bound ? 1.5f : 0.5f;
        along += level * x / kRoundedBlock, squares += level * level / kRoundedBlock;
    }
    along = block_sum(along), squares = block_sum(squares);
    const float scale = count > 0 ? along / squares : 0.0f;
    if (thread == 0) out.scale = scale;
    for (int at = thread; at < kRoundedBlock / 4; at += threads) {
        int four = 0;
        for (int i = 4 * at; i < 4 * at + 4 && i < count; i++) {
            const float x = value(i);
            const int level = x < 0 ? (x < -bound ? 0 : 1) : (x > bound ? 3 : 2);
            four |= level << i % 4 * 2;
            left(i, fmaf(1.5f - static_cast<float>(level), scale, x));
        }
        out.values[at] = static_cast<std::uint8_t>(four);
    }
}
