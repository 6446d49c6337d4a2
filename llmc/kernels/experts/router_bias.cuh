// Updates the biases with which a sigmoid router chooses (DeepSeek-AI, "DeepSeek-V3", 2024): b += rate sign(mean - n),
// where n is the number of tokens that an expert got in a step, and mean is that of its layer. Signs are exact: they
// compare whole numbers.
#pragma once

#include <cstdint>

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/global_norm.cuh"
#include "llmc/kernels/launch.cuh"

constexpr float kRouterBiasRate = 1e-3f;

// Updates bias from counts, both (layers, E). Does nothing if norm->skip; `norm` may be null.
inline void update_router_bias(float* bias, const std::int32_t* counts, const GradNorm* norm, int layers, int E,
                               cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    update_router_bias_kernel(float* bias, const std::int32_t* counts, const GradNorm* norm, int elements, int E) {
    const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
    if (i >= elements || (norm && norm->skip)) return;
    std::int64_t all = 0;
    for (int e = 0; e < E; e++) all += counts[i / E * E + e];
    const std::int64_t tokens = static_cast<std::int64_t>(counts[i]) * E;
    bias[i] += tokens < all ? kRouterBiasRate : tokens > all ? -kRouterBiasRate : 0.0f;
}

inline void update_router_bias(float* bias, const std::int32_t* counts, const GradNorm* norm, int layers, int E,
                               cudaStream_t stream) {
    constexpr int threads = 128;
    const int elements = layers * E;
    const auto bytes = 4 * static_cast<std::size_t>(elements);
    Launch where{dim3(blocks_for(elements, threads)), dim3(threads), 0, stream};
    where.reads(counts, bytes).reads(bias, bytes).writes(bias, bytes);
    if (norm) where.reads(norm, sizeof *norm);
    launch(update_router_bias_kernel<threads>, where, bias, counts, norm, elements, E);
}
