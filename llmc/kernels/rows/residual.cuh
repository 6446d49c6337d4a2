// Computes the residual stream: out = a + b, alone or fused with the layer normalisation that reads it next.
//
// Backward needs no kernel: both inputs receive the gradient of the sum.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/base/dtype.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/rows/layernorm.cuh"
#include "llmc/kernels/rows/rows.cuh"
#include "llmc/kernels/vec.cuh"

// Computes out[i] = a[i] + b[i] for n elements; `out` may be `a` or `b`.
template <class Real>
void residual_forward(Real* out, const Real* a, const Real* b, std::int64_t n, cudaStream_t stream);

// Computes residual = a + b (rounded to Real), then `out` = layernorm(residual): bit-equal to the two separate calls,
// without reading the sum back from memory. `residual` may be `a` or `b`.
template <class Real>
struct ResidualLayerNormForward {
    Real* residual;       // (rows, C)
    Real* out;            // (rows, C)
    float* mean;          // (rows), or null when backward will not follow
    float* rstd;          // (rows), or null likewise
    const Real* a;        // (rows, C)
    const Real* b;        // (rows, C)
    const Real* weight;   // (C)
    const Real* bias;     // (C), or null: RMSNorm, and `mean` is null
    int rows, C;
    float epsilon = kLayerNormEpsilon;
    bool rounds_before_weight = false;   // RMSNorm rounds before the weight
};

template <class Real>
void residual_layernorm_forward(const ResidualLayerNormForward<Real>& args, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    residual_forward_kernel(Real* out, const Real* a, const Real* b, Extent extent) {
    std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    with_known_extent(i, extent,
                      [&](auto known) { store8(out, i, known, add8(load8(a, i, known), load8(b, i, known))); });
}

template <class Real>
void residual_forward(Real* out, const Real* a, const Real* b, std::int64_t n, cudaStream_t stream) {
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.reads(a, n * sizeof(Real)).reads(b, n * sizeof(Real)).writes(out, n * sizeof(Real));
    launch(residual_forward_kernel<Real>, where, out, a, b, Extent{n, packets_fit(out, a, b)});
}

template <bool kSubtractsMean, class Real, class AnyExtent>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks<AnyExtent>)
    residual_layernorm_forward_kernel(ResidualLayerNormForward<Real> args, AnyExtent extent) {
    RowOfThread<AnyExtent> row(args.rows, extent, first_row());
    KeptRow<Real, AnyExtent> a(args.a), b(args.b), sum(args.residual);
#pragma unroll
    for (int j = 0; j < row.parts(); j++) {   // loads all of it before the first store, which no load can pass
        a.keep(j, row.load(args.a, j));
        b.keep(j, row.load(args.b, j));
    }
#pragma unroll
    for (int j = 0; j < row.parts(); j++) {
        const Vec8<Real> piece = add8(a.piece(row, j), b.piece(row, j));
        row.store(args.residual, j, piece);
        sum.keep(j, piece);
    }
    normalise_row<kSubtractsMean>(row, sum, args.out, args.mean, args.rstd, args.weight, args.bias, args.epsilon,
                                  args.rounds_before_weight);
}

template <class Real>
void residual_layernorm_forward(const ResidualLayerNormForward<Real>& args, cudaStream_t stream) {
    if (args.rows == 0) return;
    std::size_t row_bytes = args.C * sizeof(Real), all_bytes = args.rows * row_bytes;
    Launch where = row_launch(args.rows, args.C, stream);
    where.reads(args.a, all_bytes).reads(args.b, all_bytes);
    where.reads(args.weight, row_bytes);
    if (args.bias) where.reads(args.bias, row_bytes);
    where.writes(args.residual, all_bytes).writes(args.out, all_bytes);
    if (args.mean) where.writes(args.mean, args.rows * sizeof(float));
    if (args.rstd) where.writes(args.rstd, args.rows * sizeof(float));
    with_norm_kind(args.bias != nullptr, [&](auto subtracts_mean) {
        with_row_extent(
            args.C,
            [&](auto extent) {
                launch(residual_layernorm_forward_kernel<decltype(subtracts_mean)::value, Real, decltype(extent)>,
                       where, args, extent);
            },
            args.residual, args.out, args.a, args.b, args.weight, args.bias);
    });
}
