// Starts the matmuls of activations for sm_90a (matmul_hopper.cuh).
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <string>

#include "llmc/base/dtype.h"

// Last step of a matmul, on each sum x (bias included) before it is rounded to bf16.
enum class HopperMatmulEnd : std::uint8_t {
    plain,        // out = x
    add,          // out = x + beside
    gelu,         // beside = x, out = gelu(beside)
    gelu_slope,   // out = x gelu'(beside)
};

// One matmul: out (tokens, channels) = end(in (tokens, depth) weight + bias). All in bf16, row-major, rows so many
// elements apart as the strides say; `beside` has the layout of `out`. `bias` may be null, and is if `transposed`.
struct HopperMatmul {
    HopperMatmulEnd end;
    bool transposed;   // weight is (depth, channels), as for the gradient of an input; else (channels, depth)
    int tokens, channels, depth;
    bf16* out;
    std::int64_t out_stride;
    const bf16* in;
    std::int64_t in_stride;
    const bf16* weight;
    std::int64_t weight_stride;
    const bf16* bias;
    bf16* beside;
};

// Widths of tiles, in channels, that there are kernels for.
inline constexpr std::array<int, 2> hopper_matmul_widths = {192, 128};

// Returns true if there is a kernel for it and TMA can copy its rows, which must lie at multiples of 16 bytes. So must
// all addresses, which this does not look at: own_problem (matmul_plan.h) does.
bool hopper_matmul_takes(const HopperMatmul& problem);

// Puts the matmul into the stream, on so many blocks at most (one for each multiprocessor). `width`: of
// hopper_matmul_widths.
void launch_hopper_matmul(const HopperMatmul& problem, int width, int blocks, cudaStream_t stream);
