// Fills and converts device memory: constants, normal random weights, casts.
//
// Random weights are a function of (seed, tensor, global element), never of the layout over ranks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/base/dtype.h"
#include "llmc/base/rng.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/global_span.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/vec.cuh"

// Writes out[i] = value for n elements.
template <class Real>
void fill(Real* out, std::int64_t n, float value, cudaStream_t stream);

// Writes out[i] = deviation * normal(key, span.element(i)) for n elements, rounded to Real. `key`: random_key (rng.h).
template <class Real>
void fill_normal(Real* out, std::int64_t n, float deviation, std::uint64_t key, GlobalSpan span, cudaStream_t stream);

// Writes out[i] = in[i], rounded to nearest, for n elements. To and From are float or bf16.
template <class To, class From>
void cast(To* out, const From* in, std::int64_t n, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads) fill_kernel(Real* out, float value, Extent extent) {
    std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    Vec8<Real> v;
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = static_cast<Real>(value);
    store8(out, i, extent, v);
}

template <class Real>
void fill(Real* out, std::int64_t n, float value, cudaStream_t stream) {
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.writes(out, n * sizeof(Real));
    launch(fill_kernel<Real>, where, out, value, Extent{n, packets_fit(out)});
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    fill_normal_kernel(Real* out, float deviation, std::uint64_t key, GlobalSpan span, Extent extent) {
    std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    Vec8<Real> v;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        v[k] = static_cast<Real>(deviation * normal(key, static_cast<std::uint64_t>(span.element(i + k))));
    }
    store8(out, i, extent, v);
}

template <class Real>
void fill_normal(Real* out, std::int64_t n, float deviation, std::uint64_t key, GlobalSpan span, cudaStream_t stream) {
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.writes(out, n * sizeof(Real));
    launch(fill_normal_kernel<Real>, where, out, deviation, key, span, Extent{n, packets_fit(out)});
}

template <class To, class From>
__global__ void __launch_bounds__(kElementwiseThreads) cast_kernel(To* out, const From* in, Extent extent) {
    std::int64_t i = thread_first_element();
    if (i >= extent.count) return;
    with_known_extent(i, extent,
                      [&](auto known) { store8(out, i, known, round_to<To>(to_floats(load8(in, i, known)))); });
}

template <class To, class From>
void cast(To* out, const From* in, std::int64_t n, cudaStream_t stream) {
    if (n == 0) return;
    Launch where = elementwise_launch(n, stream);
    where.reads(in, n * sizeof(From)).writes(out, n * sizeof(To));
    launch(cast_kernel<To, From>, where, out, in, Extent{n, packets_fit(out, in)});
}
