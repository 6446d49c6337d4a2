// Multiplies a matrix by a vector: out(N) = weight(N,K) in(K) + bias(N), the matmul of a single token.
//
// The time goes into reading the weight, once, so this runs at the speed of memory, where a matmul made for many rows
// would first rearrange its weight. Sums are fp32, in a fixed order.
//
// Must hold: K is a multiple of 8; vector and weight are aligned to 16 bytes.
#pragma once

#include <cuda_runtime.h>

#include "llmc/base/check.h"
#include "llmc/base/dtype.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/reduce.cuh"
#include "llmc/kernels/vec.cuh"

template <class Real>
struct MatrixVector {
    Real* out;            // (N)
    const Real* in;       // (K)
    const Real* weight;   // (N, K)
    const Real* bias;     // (N), or null
    int N, K;
};

template <class Real>
void matrix_vector(const MatrixVector<Real>& args, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

constexpr int kMatvecRows = 16;      // rows per block
constexpr int kMatvecWarps = 8;      // warps per block; each computes every eighth row
constexpr int kMatvecAhead = 2048;   // bytes that a CPU prefetches: its own prefetcher stops at pages

template <class Real>
__device__ __forceinline__ void fetch_ahead([[maybe_unused]] const Real* weight) {
    if constexpr (loop_threads_may_be_one) __builtin_prefetch(weight + kMatvecAhead / sizeof(Real));
}

template <class Real>
__device__ __forceinline__ void add_products(Vec8<float>& sum, const Real* weight, const Real* in) {
    const Vec8<float> w = to_floats(load_packets<8>(weight)), x = to_floats(load_packets<8>(in));
#pragma unroll
    for (int c = 0; c < 8; c++) sum[c] = fmaf(w[c], x[c], sum[c]);
}

// Grid (ceil(N / kMatvecRows)), block (32, kMatvecWarps); on a CPU one thread does a whole block. Four separate sums,
// so that additions need not wait for one another.
template <class Real>
__global__ void __launch_bounds__(32 * kMatvecWarps) matrix_vector_kernel(MatrixVector<Real> a) {
    const int first = static_cast<int>(blockIdx.x) * kMatvecRows, end = min(first + kMatvecRows, a.N);
    const int lane = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x) * 8;
    for (int row = first + static_cast<int>(threadIdx.y); row < end; row += static_cast<int>(blockDim.y)) {
        const Real* const weight = a.weight + std::int64_t{row} * a.K;
        Vec8<float> s0 = {}, s1 = {}, s2 = {}, s3 = {};
        int k = lane * 8;
        for (; k + 3 * step < a.K; k += 4 * step) {
            fetch_ahead(weight + k);
            add_products(s0, weight + k, a.in + k);
            add_products(s1, weight + k + step, a.in + k + step);
            add_products(s2, weight + k + 2 * step, a.in + k + 2 * step);
            add_products(s3, weight + k + 3 * step, a.in + k + 3 * step);
        }
        for (; k < a.K; k += step) add_products(s0, weight + k, a.in + k);
        float sum = (sum8(s0) + sum8(s1)) + (sum8(s2) + sum8(s3));
        if (blockDim.x > 1) sum = warp_sum(sum);
        if (lane == 0) a.out[row] = static_cast<Real>(a.bias ? sum + static_cast<float>(a.bias[row]) : sum);
    }
}

template <class Real>
void matrix_vector(const MatrixVector<Real>& args, cudaStream_t stream) {
    if (args.N == 0) return;
    ENSURE(args.K % 8 == 0 && packets_fit(args.in, args.weight), "a vector of ", args.K, " elements, not in packets");
    const dim3 block(loop_threads(32), loop_threads(kMatvecWarps));
    Launch where(dim3(static_cast<unsigned>(ceil_div(args.N, kMatvecRows))), block, 0, stream);
    where.reads(args.in, sizeof(Real) * args.K).reads(args.weight, sizeof(Real) * args.K * args.N);
    if (args.bias) where.reads(args.bias, sizeof(Real) * args.N);
    where.writes(args.out, sizeof(Real) * args.N);
    launch(matrix_vector_kernel<Real>, where, args);
}
