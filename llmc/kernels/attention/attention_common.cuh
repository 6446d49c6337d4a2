// Shared parts of all own attention kernels: heads as strided rows, and the row sums `delta` of backward.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "llmc/base/dtype.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/attention/attention_mask.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/vec.cuh"

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;

__device__ inline float4 load_four(const float* source) { return *reinterpret_cast<const float4*>(source); }
__device__ inline float4 load_four(const bf16* source) {
    uint2 bits = *reinterpret_cast<const uint2*>(source);
    auto widened = [](unsigned high_bits) { return __uint_as_float(high_bits); };
    return make_float4(widened(bits.x << 16), widened(bits.x & 0xffff0000u), widened(bits.y << 16),
                       widened(bits.y & 0xffff0000u));
}

// One head of a batch: row t is at data + t * token.
template <class T>
struct HeadRows {
    T* data;
    std::int64_t token;
};
template <class T>
__device__ HeadRows<T> head_rows(const HeadsView<T>& view, int batch, int head) {
    return {view.data + batch * view.batch + head * view.head, view.token};
}

// Returns the head of k and v that a head of q reads.
__device__ inline int key_head(const AttentionShape& shape, int head) {
    return static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(shape.group));
}
template <class T>
__device__ HeadRows<T> key_rows(const HeadsView<T>& view, const AttentionShape& shape, int batch, int head) {
    return head_rows(view, batch, key_head(shape, head));
}

// Computes delta = sum over channels of dout * out, one number per query and head: the part of the softmax's gradient
// that is common to a row of scores (Dao et al. 2022, algorithm 4: dS = P * (dP - delta)). Reads both tensors once; 8
// threads share a row, each with 8 adjacent channels at a time, so that a warp reads whole sectors of four rows.
constexpr int DELTA_THREADS = 256;
constexpr int DELTA_ROWS = DELTA_THREADS / 8;   // rows per block

// Grid (ceil(B * Tq * NH / DELTA_ROWS)). Rows are numbered (b, t, h), the order of `out` in memory.
template <class T, class G>
__global__ void __launch_bounds__(DELTA_THREADS) attention_delta(AttentionBackward<T, G> a) {
    const AttentionShape& shape = a.shape;
    const auto B = static_cast<unsigned>(shape.B), NH = static_cast<unsigned>(shape.NH),
               Tq = static_cast<unsigned>(shape.Tq);
    const unsigned row = blockIdx.x * DELTA_ROWS + threadIdx.x / 8;   // fewer than 2^31: divisions of 64 bits are slow
    const bool inside = row < B * Tq * NH;
    const std::int64_t head = row % NH, token = row / NH % Tq, batch = row / NH / Tq;
    float sum = 0.0f;
    if (inside) {
        const T* dout = a.dout.data + batch * a.dout.batch + token * a.dout.token + head * a.dout.head;
        const T* out = a.out.data + batch * a.out.batch + token * a.out.token + head * a.out.head;
        for (int channel = threadIdx.x % 8 * 8; channel < shape.HS; channel += 64) {
            const Vec8<float> left = to_floats(load_packets<8>(dout + channel)),
                              right = to_floats(load_packets<8>(out + channel));
#pragma unroll
            for (int k = 0; k < 8; k++) sum += left[k] * right[k];
        }
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (inside && threadIdx.x % 8 == 0) a.delta[(batch * NH + head) * Tq + token] = sum;
}
