// Filling and converting device memory: constants, normal random weights, casts.
//
// Random weights are a function of (seed, tensor, global element), never of how tensors are laid out over ranks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/base/dtype.h"
#include "llmc/base/rng.h"
#include "llmc/kernels/global_span.h"

// out[i] = value for n elements.
template <class Real>
void fill(Real* out, std::int64_t n, float value, cudaStream_t stream);

// The key of a tensor's random numbers.
inline std::uint64_t random_key(std::uint64_t seed, std::uint64_t tensor_key) { return mix64(mix64(seed) ^ tensor_key); }

// out[i] = deviation * normal(key, span.element(i)) for n elements, rounded to Real.
template <class Real>
void fill_normal(Real* out, std::int64_t n, float deviation, std::uint64_t key, GlobalSpan span, cudaStream_t stream);

// out[i] = in[i], rounded to nearest, for n elements. To and From are float or bf16.
template <class To, class From>
void cast(To* out, const From* in, std::int64_t n, cudaStream_t stream);
