// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019) over many tensors in one launch.
//
//   m = beta1 m + (1 - beta1) g          g = gradient * norm->scale (clipping, read on the device)
//   v = beta2 v + (1 - beta2) g^2
//   w = w - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay w)
//
// Moments are fp32. The weight w is the fp32 master where there is one, rounded to nearest into the parameter; else the
// parameter itself: exact for fp32, rounded stochastically for bf16 with random bits that are a function of (seed,
// step, tensor, global element), so every layout rounds alike.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/dtype.h"
#include "llmc/base/rng.h"
#include "llmc/kernels/global_norm.cuh"
#include "llmc/kernels/global_span.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/block_table.cuh"
#include "llmc/kernels/vec.cuh"

// One contiguous local range of one parameter tensor; every pointer is to its first element, all have `count` elements.
template <class Real, class Grad>
struct AdamRange {
    Real* parameter;
    float* master;   // or null
    const Grad* gradient;
    float* m;
    float* v;
    std::int64_t count;
    float weight_decay;             // 0 for tensors that do not decay
    std::uint64_t tensor_key = 0;   // hash of its name, for the stochastic rounding
    GlobalSpan span = {};           // which global elements these are, likewise
    std::int64_t first_block = 0;   // filled by make_adam_table
};

struct AdamStep {
    float learning_rate, beta1, beta2, epsilon;
    int step;                         // counts from 1: bias corrections are 1 - beta^step
    std::uint64_t seed = 0;           // of the stochastic rounding
    const GradNorm* norm = nullptr;   // on the device: clip factor and skip flag; null: 1 and never
};

// The tensors to update, on the device; made once, used every step.
template <class Real, class Grad>
struct AdamTable {
    std::vector<AdamRange<Real, Grad>> ranges;
    DeviceBuffer<AdamRange<Real, Grad>> device_ranges;
    std::int64_t blocks = 0;
};

template <class Real, class Grad>
AdamTable<Real, Grad> make_adam_table(Arena& arena, const std::string& name, std::vector<AdamRange<Real, Grad>> ranges,
                                      cudaStream_t stream);

template <class Real, class Grad>
void adamw_update(const AdamTable<Real, Grad>& table, const AdamStep& step, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------
// Stochastic rounding

// The 16 random bits of a global element, of the eight neighbours that share one draw of 128 bits.
__device__ __forceinline__ std::uint32_t rounding_bits(const Random4& draw, int lane) {
    const std::uint32_t word = lane < 2 ? draw.x : lane < 4 ? draw.y : lane < 6 ? draw.z : draw.w;
    return (word >> (lane % 2 * 16)) & 0xffffu;
}
__device__ __forceinline__ Random4 rounding_draw(std::uint64_t key, std::int64_t element, int step) {
    return philox(key, static_cast<std::uint64_t>(element / 8), static_cast<std::uint64_t>(step));
}

// Up with the probability of the fraction that bf16 cuts off, so that the expected result is x.
__device__ __forceinline__ bf16 round_stochastically(float x, std::uint32_t bits) {
    std::uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000u) != 0x7f800000u) u += bits;              // infinities and NaN stay
    return static_cast<bf16>(__uint_as_float(u & 0xffff0000u));   // exact
}

// The local elements i .. i+7 of a range.
__device__ __forceinline__ Vec8<bf16> round_stochastically8(const Vec8<float>& w, std::int64_t i, std::uint64_t key,
                                                            int step, const GlobalSpan& span) {
    Vec8<bf16> result;
    const std::int64_t first = span.element(i);
    if (first % 8 == 0 && span.element(i + 7) == first + 7) {   // nearly always: one draw serves all eight
        const Random4 draw = rounding_draw(key, first, step);
        VECTOR_LOOP
        for (int k = 0; k < 8; k++) result[k] = round_stochastically(w[k], rounding_bits(draw, k));
        return result;
    }
    VECTOR_LOOP
    for (int k = 0; k < 8; k++) {
        const std::int64_t element = span.element(i + k);
        const Random4 draw = rounding_draw(key, element, step);
        result[k] = round_stochastically(w[k], rounding_bits(draw, static_cast<int>(element % 8)));
    }
    return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// The update

constexpr int kAdamThreads = 256;
constexpr int kAdamTurns = 4;   // pieces of eight elements per thread: spreads the cost of finding the range
constexpr std::int64_t kAdamBlock = static_cast<std::int64_t>(kAdamThreads) * 8 * kAdamTurns;

// AdamStep with everything computed that is the same for all elements.
struct AdamFactors {
    float learning_rate, beta1, beta2, epsilon;
    float correction1, correction2;   // 1 / (1 - beta^step)
    int step;
    std::uint64_t seed;
    const GradNorm* norm;
};

// fmaf where two products are added: which of them a compiler would fuse is its own choice, and runs must agree.
__device__ __forceinline__ void adam_element(float& w, float& m, float& v, float g, float weight_decay,
                                             const AdamFactors& f) {
    m = fmaf(f.beta1, m, (1.0f - f.beta1) * g);
    v = fmaf(f.beta2, v, (1.0f - f.beta2) * (g * g));
    const float change = (m * f.correction1) / (sqrtf(v * f.correction2) + f.epsilon);
    w = fmaf(-f.learning_rate, fmaf(weight_decay, w, change), w);
}

template <class Real, class Grad>
__device__ __forceinline__ Vec8<float> load_weights(const AdamRange<Real, Grad>& range, std::int64_t i, Extent extent) {
    if (range.master) return load8(range.master, i, extent);
    return to_floats(load8(range.parameter, i, extent));
}

template <class Real, class Grad>
__device__ __forceinline__ void adam_piece(const AdamRange<Real, Grad>& range, std::int64_t i, Extent extent,
                                           float grad_scale, const AdamFactors& f) {
    // The gradient last: where it is bf16, a GPU waits there for all that was loaded before (see with_known_extent,
    // which would cost so many registers here that fewer threads had loads under way).
    Vec8<float> m = load8(range.m, i, extent), v = load8(range.v, i, extent);
    Vec8<float> w = load_weights(range, i, extent);
    const Vec8<float> gradient = to_floats(load8(range.gradient, i, extent));
    VECTOR_LOOP
    for (int k = 0; k < 8; k++) {
        adam_element(w[k], m[k], v[k], grad_scale * gradient[k], range.weight_decay, f);
    }
    store8(range.m, i, extent, m);
    store8(range.v, i, extent, v);
    if (range.master) store8(range.master, i, extent, w);
    if constexpr (std::is_same_v<Real, bf16>) {
        if (!range.master) {
            const std::uint64_t key = random_key(f.seed, range.tensor_key);
            store8(range.parameter, i, extent, round_stochastically8(w, i, key, f.step, range.span));
            return;
        }
    }
    store8(range.parameter, i, extent, round_to<Real>(w));
}

template <class Real, class Grad>
__global__ void __launch_bounds__(kAdamThreads)
    adamw_kernel(const AdamRange<Real, Grad>* ranges, int count, AdamFactors factors) {
    if (factors.norm && factors.norm->skip) return;
    const float grad_scale = factors.norm ? factors.norm->scale : 1.0f;
    const AdamRange<Real, Grad> range = range_of_block(ranges, count, blockIdx.x);
    const std::uintptr_t addresses =
        reinterpret_cast<std::uintptr_t>(range.parameter) | reinterpret_cast<std::uintptr_t>(range.master) |
        reinterpret_cast<std::uintptr_t>(range.gradient) | reinterpret_cast<std::uintptr_t>(range.m) |
        reinterpret_cast<std::uintptr_t>(range.v);
    const Extent extent{range.count, addresses % 16 == 0};
    const BlockSpan span = span_of_block(range, blockIdx.x, kAdamBlock);
    const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * 8;
    for (std::int64_t i = span.begin + threadIdx.x * 8; i < span.end; i += step)
        adam_piece(range, i, extent, grad_scale, factors);
}

template <class Real, class Grad>
AdamTable<Real, Grad> make_adam_table(Arena& arena, const std::string& name, std::vector<AdamRange<Real, Grad>> ranges,
                                      cudaStream_t stream) {
    AdamTable<Real, Grad> table;
    table.blocks = number_blocks(ranges, kAdamBlock);
    table.ranges = std::move(ranges);
    table.device_ranges = arena.allocate<AdamRange<Real, Grad>>(name + "_ranges", table.ranges.size());
    table.device_ranges.upload(table.ranges, stream);
    return table;
}

template <class Real, class Grad>
void adamw_update(const AdamTable<Real, Grad>& table, const AdamStep& step, cudaStream_t stream) {
    ENSURE(step.step >= 1, "AdamW steps count from 1, not from ", step.step);
    if (table.blocks == 0) return;
    Launch where{dim3(blocks_for(table.blocks, 1)), loop_threads(kAdamThreads), 0, stream};
    where.reads(table.device_ranges.data(), table.device_ranges.bytes());
    if (step.norm) where.reads(step.norm, sizeof(GradNorm));
    for (const AdamRange<Real, Grad>& range : table.ranges) {
        const std::size_t floats = range.count * sizeof(float);
        where.reads(range.gradient, range.count * sizeof(Grad)).writes(range.parameter, range.count * sizeof(Real));
        where.reads(range.m, floats).writes(range.m, floats).reads(range.v, floats).writes(range.v, floats);
        if (range.master)
            where.reads(range.master, floats).writes(range.master, floats);
        else
            where.reads(range.parameter, range.count * sizeof(Real));
    }
    const double correction1 = 1.0 / (1.0 - std::pow(static_cast<double>(step.beta1), step.step));
    const double correction2 = 1.0 / (1.0 - std::pow(static_cast<double>(step.beta2), step.step));
    AdamFactors factors{step.learning_rate,
                        step.beta1,
                        step.beta2,
                        step.epsilon,
                        static_cast<float>(correction1),
                        static_cast<float>(correction2),
                        step.step,
                        step.seed,
                        step.norm};
    launch(adamw_kernel<Real, Grad>, where, table.device_ranges.data(), static_cast<int>(table.ranges.size()), factors);
}
