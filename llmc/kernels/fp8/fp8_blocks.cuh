// Rounds the operands of a matmul to fp8 in blocks, and writes them as the numbers that fp8 and its scales stand for:
// the recipe of DeepSeek-V3 (2412.19437, section 3.3) with scales that are powers of two (e4m3.cuh).
//
// A matmul of these copies in bf16 is the model of one in fp8: its products are exact in both, and it differs only in
// the width and order of sums.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/fp8/e4m3.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/reduce.cuh"
#include "llmc/kernels/vec.cuh"

constexpr int kFp8Block = 128;   // elements along a row that share a scale

// Rounds `in` (rows, cols), activations or gradients, to `out`: each 128 elements of a row have a scale, the last ones
// perhaps fewer. Elements that are not finite become NaN, and the others' scale is chosen without them.
template <class Real>
void round_rows_to_fp8(Real* out, const Real* in, int rows, int cols, cudaStream_t stream);

// Rounds `in` (matrices, rows, cols), weights, to `out`: each 128 x 128 elements of a matrix have a scale.
template <class Real>
void round_tiles_to_fp8(Real* out, const Real* in, int matrices, int rows, int cols, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

// Rows of 128 elements that blockDim.x threads round with one scale: as many as `rows` has from `first_row` on, at most
// `tall`. Every thread of the block must call it; largest_of(x) returns the largest x of those that share the rows.
template <class Real, class AnyExtent, class Largest>
__device__ __forceinline__ void round_fp8_block(Real* out, const Real* in, std::int64_t first_row, int tall,
                                                std::int64_t rows, std::int64_t first_col, AnyExtent extent,
                                                Largest largest_of) {
    const int pieces = static_cast<int>(min(static_cast<std::int64_t>(tall), max(rows - first_row, std::int64_t{0}))) *
                       (kFp8Block / 8);
    auto for_pieces = [&](auto&& work) {
        for (int i = static_cast<int>(threadIdx.x); i < pieces; i += static_cast<int>(blockDim.x)) {
            const std::int64_t row = (first_row + i / (kFp8Block / 8)) * extent.count;
            const std::int64_t col = first_col + i % (kFp8Block / 8) * 8;
            if (col < extent.count) work(row, col);
        }
    };
    float largest = 0;
    for_pieces([&](std::int64_t row, std::int64_t col) {
        Vec8<float> x = to_floats(load8(in + row, col, extent));
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = fabsf(x[k]) <= FLT_MAX ? fabsf(x[k]) : 0.0f;
        largest = larger(largest, max8(x));
    });
    const int exponent = fp8_scale_exponent(largest_of(largest));
    const float scale = power_of_two(exponent), inverse = power_of_two(-exponent);
    for_pieces([&](std::int64_t row, std::int64_t col) {
        Vec8<float> x = to_floats(load8(in + row, col, extent));
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = round_to_e4m3(x[k] * inverse) * scale;
        store8(out + row, col, extent, round_to<Real>(x));
    });
}

constexpr int kFp8Threads = 256;

// Each row of a thread block's threads has a block of 1 x 128; on a GPU sixteen threads, half a warp.
template <class Real, class AnyExtent>
__global__ void __launch_bounds__(kFp8Threads)
    fp8_rows_kernel(Real* out, const Real* in, std::int64_t rows, std::int64_t blocks, AnyExtent extent) {
    const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
    round_fp8_block(out, in, block / blocks, 1, rows, block % blocks * kFp8Block, extent, [](float x) {
        for (int distance = static_cast<int>(blockDim.x / 2); distance > 0; distance /= 2) {
            x = larger(x, __shfl_xor_sync(0xffffffffu, x, distance));
        }
        return x;
    });
}

template <class Real>
void round_rows_to_fp8(Real* out, const Real* in, int rows, int cols, cudaStream_t stream) {
    if (rows == 0) return;
    const std::int64_t of_row = ceil_div(cols, kFp8Block), blocks = rows * of_row;
    const unsigned tall = kFp8Threads / (kFp8Block / 8);
    const std::size_t bytes = static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols) * sizeof(Real);
    Launch where{dim3(blocks_for(blocks, tall)), dim3(loop_threads(kFp8Block / 8), tall), 0, stream};
    where.reads(in, bytes).writes(out, bytes);
    with_extent_type(row_extent(cols, out, in), [&](auto extent) {
        launch(fp8_rows_kernel<Real, decltype(extent)>, where, out, in, std::int64_t{rows}, of_row, extent);
    });
}

template <class Real, class AnyExtent>
__global__ void __launch_bounds__(kFp8Threads)
    fp8_tiles_kernel(Real* out, const Real* in, std::int64_t rows, AnyExtent extent) {
    const std::int64_t matrix = blockIdx.z * rows * extent.count;
    round_fp8_block(out + matrix, in + matrix, static_cast<std::int64_t>(blockIdx.y) * kFp8Block, kFp8Block, rows,
                    static_cast<std::int64_t>(blockIdx.x) * kFp8Block, extent, [](float x) { return block_max(x); });
}

template <class Real>
void round_tiles_to_fp8(Real* out, const Real* in, int matrices, int rows, int cols, cudaStream_t stream) {
    const auto count = [](int n) { return static_cast<std::size_t>(n); };
    const std::size_t bytes = count(matrices) * count(rows) * count(cols) * sizeof(Real);
    if (bytes == 0) return;
    const auto tiles = [](int n) { return static_cast<unsigned>(ceil_div(n, kFp8Block)); };
    const dim3 grid(tiles(cols), tiles(rows), static_cast<unsigned>(matrices));
    Launch where{grid, dim3(loop_threads(kFp8Threads)), 0, stream};
    where.reads(in, bytes).writes(out, bytes);
    with_extent_type(row_extent(cols, out, in), [&](auto extent) {
        launch(fp8_tiles_kernel<Real, decltype(extent)>, where, out, in, std::int64_t{rows}, extent);
    });
}
