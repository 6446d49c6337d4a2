// Computes SwiGLU (Shazeer, "GLU variants improve transformer", 2020): out = silu(gate) * up with silu(x) = x / (1 +
// e^-x), of rows that have F gates and then F ups, and its backward pass. All arithmetic is fp32, rounded once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/exp.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/embedding.cuh"
#include "llmc/kernels/vec.cuh"

// Computes out (rows, F) from in (rows, 2F); F a multiple of 8.
template <class Real>
void swiglu_forward(Real* out, const Real* in, int rows, int F, cudaStream_t stream);

// Computes din (rows, 2F) from dout (rows, F) and `in` as given to forward.
template <class Real>
void swiglu_backward(Real* din, const Real* dout, const Real* in, int rows, int F, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    swiglu_forward_kernel(Real* out, const Real* in, int rows, int F) {
    const RowAndColumn at = thread_row_and_column(F, blockIdx.x);
    if (at.row >= rows) return;
    const Real* const gates = in + static_cast<std::int64_t>(at.row) * 2 * F + at.column;
    Vec8<float> gate = to_floats(load_packets<8>(gates));
    const Vec8<float> up = to_floats(load_packets<8>(gates + F));
#pragma unroll
    for (int k = 0; k < 8; k++) gate[k] *= sigmoid_for<Real>(gate[k]) * up[k];
    store_packets(out + static_cast<std::int64_t>(at.row) * F + at.column, round_to<Real>(gate));
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    swiglu_backward_kernel(Real* din, const Real* dout, const Real* in, int rows, int F) {
    const RowAndColumn at = thread_row_and_column(F, blockIdx.x);
    if (at.row >= rows) return;
    const std::int64_t gates = static_cast<std::int64_t>(at.row) * 2 * F + at.column;
    const Vec8<float> gate = to_floats(load_packets<8>(in + gates)), up = to_floats(load_packets<8>(in + gates + F));
    const Vec8<float> d = to_floats(load_packets<8>(dout + static_cast<std::int64_t>(at.row) * F + at.column));
    Vec8<float> dgate, dup;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float s = sigmoid_for<Real>(gate[k]);
        dup[k] = d[k] * gate[k] * s;
        dgate[k] = d[k] * up[k] * s * fmaf(gate[k], 1.0f - s, 1.0f);
    }
    store_packets(din + gates, round_to<Real>(dgate));
    store_packets(din + gates + F, round_to<Real>(dup));
}

template <class Real>
void swiglu_forward(Real* out, const Real* in, int rows, int F, cudaStream_t stream) {
    ENSURE(F % 8 == 0, "SwiGLU of width ", F);
    if (rows == 0) return;
    const std::size_t bytes = sizeof(Real) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(F);
    Launch where = elementwise_launch(padded_elements(rows, F), stream);
    where.reads(in, 2 * bytes).writes(out, bytes);
    launch(swiglu_forward_kernel<Real>, where, out, in, rows, F);
}

template <class Real>
void swiglu_backward(Real* din, const Real* dout, const Real* in, int rows, int F, cudaStream_t stream) {
    ENSURE(F % 8 == 0, "SwiGLU of width ", F);
    if (rows == 0) return;
    const std::size_t bytes = sizeof(Real) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(F);
    Launch where = elementwise_launch(padded_elements(rows, F), stream);
    where.reads(dout, bytes).reads(in, 2 * bytes).writes(din, 2 * bytes);
    launch(swiglu_backward_kernel<Real>, where, din, dout, in, rows, F);
}
