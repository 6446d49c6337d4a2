// Updates weights by an optimizer's rule (rules.cuh), many tensors in one launch.
//
// g = gradient * norm->scale (clipping, read on the device). The weight w is the fp32 master where there is one, whole
// or in halves (master_halves.cuh), rounded half away from zero into the parameter; else the parameter itself: exact
// for fp32, rounded stochastically for bf16. Moments are fp32, or bf16, rounded stochastically. Random bits are a
// function of (seed, step, tensor, which of its values, global element), so every layout rounds alike.
//
// Values that differ from step to step (learning rate, number of the step and factors of these) are read on the device,
// not passed as arguments: the launches of all steps are the same, as a graph needs.
//
// Rules that look at a whole tensor need its norms first: `sum_norms` adds up, in double, the squares of the elements
// of which this rank is the one owner; the caller sums over ranks; the update reads the norms on the device.
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
#include "llmc/kernels/optim/master_halves.cuh"
#include "llmc/kernels/optim/rules.cuh"
#include "llmc/kernels/ordered_sum.cuh"
#include "llmc/kernels/rows/block_table.cuh"
#include "llmc/kernels/rows/reduce.cuh"
#include "llmc/kernels/vec.cuh"

// One contiguous local range of one parameter tensor; every pointer is to its first element, all have `count` elements.
template <class Real>
struct UpdateRange {
    Real* parameter;
    float* master;           // or null
    TypedPointer gradient;   // one type in all ranges of a table
    TypedPointer m, v;       // fp32 or bf16, one type in all ranges of a table; v null if the rule has none
    std::int64_t count;
    float weight_decay;             // 0 for tensors that do not decay
    std::uint64_t tensor_key = 0;   // hash of the tensor's name, for stochastic rounding
    GlobalSpan span = {};           // global elements of the range, for stochastic rounding
    float scale = 1;                // Muon
    int norms = -1;                 // index of the norms that the rule reads; -1: none, and its ratio is 1
    bf16* lower = nullptr;          // lower halves of masters whose upper ones are the parameter; or null
    std::int64_t first_block = 0;   // filled by make_update_table
};

// Values of a step, of all rules: rules.cuh says which reads what.
struct UpdateStep {
    float learning_rate, beta1 = 0, beta2 = 0, epsilon = 0;
    int step;                         // counts from 1
    std::uint64_t seed = 0;           // seed of the stochastic rounding
    const GradNorm* norm = nullptr;   // on the device: clip factor and skip flag; null: 1 and never
    int updates = 0;   // updates of the moments, this one included: bias corrections are 1 - beta^updates; 0: step
    const TensorNorms* norms = nullptr;       // on the device, for rules that read them
    float trust = 1;                          // LARS
    float norm_scale = 1, norm_epsilon = 0;   // Muon: NewtonSchulz
    float blend = 0;                          // streaming local steps
    float average_decay = 0;                  // average of the weights
};

// The tensors to update, on the device; made once, used every step.
template <class Real>
struct UpdateTable {
    std::vector<UpdateRange<Real>> ranges;
    DeviceBuffer<UpdateRange<Real>> device_ranges;
    UpdateStep step{};                     // last set_update_step
    DeviceBuffer<UpdateFactors> factors;   // factors of `step`, one element
    DeviceBuffer<double> partials;         // one sum per block: of the weights, then of the changes
    std::int64_t blocks = 0;
};

// Makes a table on the device. `norms`: for sum_norms, where every range has its own norms.
template <class Real>
UpdateTable<Real> make_update_table(Arena& arena, const std::string& name, std::vector<UpdateRange<Real>> ranges,
                                    cudaStream_t stream, bool norms = false);

// Sets the step of the table's next updates and norms, and copies it to the device: not part of a graph.
template <class Real>
void set_update_step(UpdateTable<Real>& table, const UpdateStep& step, cudaStream_t stream);

template <class Rule, class Real>
void update_weights(const UpdateTable<Real>& table, cudaStream_t stream);

// Writes norms[range.norms] = the sums of squares of each range, of the rule's two vectors; other entries stay.
template <class Rule, class Real>
void sum_norms(TensorNorms* norms, const UpdateTable<Real>& table, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------
// Stochastic rounding

// Returns the 16 random bits of a global element; eight neighbours share one draw of 128 bits.
__device__ __forceinline__ std::uint32_t rounding_bits(const Random4& draw, int lane) {
    const std::uint32_t word = lane < 2 ? draw.x : lane < 4 ? draw.y : lane < 6 ? draw.z : draw.w;
    return (word >> (lane % 2 * 16)) & 0xffffu;
}
__device__ __forceinline__ Random4 rounding_draw(std::uint64_t key, std::int64_t element, int step) {
    return philox(key, static_cast<std::uint64_t>(element / 8), static_cast<std::uint64_t>(step));
}

// Rounds up with the probability of the fraction that bf16 cuts off, so that the expected result is x.
__device__ __forceinline__ bf16 round_stochastically(float x, std::uint32_t bits) {
    std::uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000u) != 0x7f800000u) u += bits;              // infinities and NaN stay
    return static_cast<bf16>(__uint_as_float(u & 0xffff0000u));   // exact
}

// Values of an element that are rounded, each with random bits of its own.
enum class RoundedValue : std::uint8_t { weight, m, v };

// Rounds the local elements i .. i+7 of a range.
__device__ __forceinline__ Vec8<bf16> round_stochastically8(const Vec8<float>& w, std::int64_t i, std::uint64_t key,
                                                            int step, const GlobalSpan& span) {
    Vec8<bf16> result;
    const std::int64_t first = span.element(i);
    if (first % 8 == 0 && span.element(i + 7) == first + 7) {   // nearly always: one draw serves all eight
        const Random4 draw = rounding_draw(key, first, step);
#pragma unroll
        for (int k = 0; k < 8; k++) result[k] = round_stochastically(w[k], rounding_bits(draw, k));
        return result;
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const std::int64_t element = span.element(i + k);
        const Random4 draw = rounding_draw(key, element, step);
        result[k] = round_stochastically(w[k], rounding_bits(draw, static_cast<int>(element % 8)));
    }
    return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// Masters in halves, eight at a time; on a GPU two in a word, as in vec.cuh

__device__ __forceinline__ Vec8<bf16> round_half_away8(const Vec8<float>& x) {
    Vec8<bf16> result;
#ifdef __CUDACC__
    auto two = [&](int k) { return __byte_perm(rounded_bits(x[k]), rounded_bits(x[k + 1]), 0x7632); };
    result.values[0] = make_uint4(two(0), two(2), two(4), two(6));
#else
    for (int k = 0; k < 8; k++) result[k] = round_half_away(x[k]);
#endif
    return result;
}
__device__ __forceinline__ Vec8<bf16> lower_half8(const Vec8<float>& x) {
    Vec8<bf16> result;
#ifdef __CUDACC__
    auto two = [&](int k) { return __byte_perm(__float_as_uint(x[k]), __float_as_uint(x[k + 1]), 0x5410); };
    result.values[0] = make_uint4(two(0), two(2), two(4), two(6));
#else
    for (int k = 0; k < 8; k++) result[k] = lower_half(x[k]);
#endif
    return result;
}
__device__ __forceinline__ Vec8<float> joined8(const Vec8<bf16>& rounded, const Vec8<bf16>& lower) {
    Vec8<float> result;
#ifdef __CUDACC__
    const uint4 upper = rounded.values[0], rest = lower.values[0];
    const unsigned uppers[4] = {upper.x, upper.y, upper.z, upper.w}, rests[4] = {rest.x, rest.y, rest.z, rest.w};
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const unsigned up = k % 2 == 0 ? uppers[k / 2] << 16 : uppers[k / 2] & 0xffff0000u;
        const unsigned low = k % 2 == 0 ? rests[k / 2] << 16 : rests[k / 2];
        result[k] = __uint_as_float(up + static_cast<unsigned>(static_cast<int>(low) >> 16));
    }
#else
    for (int k = 0; k < 8; k++) result[k] = joined(rounded[k], lower[k]);
#endif
    return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// The update

constexpr int kUpdateThreads = 256;
constexpr int kUpdateTurns = 4;   // pieces of eight elements per thread: spreads the cost of finding the range
constexpr std::int64_t kUpdateBlock = static_cast<std::int64_t>(kUpdateThreads) * 8 * kUpdateTurns;

template <class Real>
__device__ __forceinline__ Vec8<float> load_weights(const UpdateRange<Real>& range, std::int64_t i, Extent extent) {
    if (range.master) return load8(range.master, i, extent);
    const Vec8<Real> parameter = load8(range.parameter, i, extent);
    if constexpr (std::is_same_v<Real, bf16>) {
        if (range.lower) return joined8(parameter, load8(range.lower, i, extent));
    }
    return to_floats(parameter);
}

template <class Real>
__device__ __forceinline__ Vec8<bf16> round_stochastically8(const UpdateRange<Real>& range, std::int64_t i,
                                                            RoundedValue which, const Vec8<float>& x,
                                                            const UpdateFactors& f) {
    const std::uint64_t key = random_key(f.seed, range.tensor_key + static_cast<std::uint64_t>(which));
    return round_stochastically8(x, i, key, f.step, range.span);
}

template <class Real>
__device__ __forceinline__ void store_weights(const UpdateRange<Real>& range, std::int64_t i, Extent extent,
                                              const Vec8<float>& w, const UpdateFactors& f) {
    if (range.master) store8(range.master, i, extent, w);
    if constexpr (std::is_same_v<Real, bf16>) {
        if (range.master || range.lower) {
            store8(range.parameter, i, extent, round_half_away8(w));
            if (range.lower) store8(range.lower, i, extent, lower_half8(w));
        } else {
            store8(range.parameter, i, extent, round_stochastically8(range, i, RoundedValue::weight, w, f));
        }
    } else {
        store8(range.parameter, i, extent, w);
    }
}

template <class Moment, class Real>
__device__ __forceinline__ void store_moment(const UpdateRange<Real>& range, std::int64_t i, Extent extent,
                                             RoundedValue which, const Vec8<float>& x, const UpdateFactors& f) {
    auto* const moment = static_cast<Moment*>(which == RoundedValue::m ? range.m.data : range.v.data);
    if constexpr (std::is_same_v<Moment, bf16>) {
        store8(moment, i, extent, round_stochastically8(range, i, which, x, f));
    } else {
        store8(moment, i, extent, x);
    }
}

// Values that a rule reads for eight elements.
struct UpdatePiece {
    Vec8<float> w, m, v, g;
};
template <class Rule, class Grad, class Moment, class Real>
__device__ __forceinline__ UpdatePiece load_piece(const UpdateRange<Real>& range, std::int64_t i, Extent extent,
                                                  float grad_scale) {
    // Loads the gradient last: if it is bf16, a GPU waits there for all earlier loads (see with_known_extent, which
    // would cost so many registers here that fewer threads had loads under way).
    UpdatePiece x = {};
    if constexpr (Rule::reads & reads_m) x.m = to_floats(load8(static_cast<const Moment*>(range.m.data), i, extent));
    if constexpr (Rule::reads & reads_v) x.v = to_floats(load8(static_cast<const Moment*>(range.v.data), i, extent));
    if constexpr (Rule::reads & reads_w) x.w = load_weights(range, i, extent);
    if constexpr (Rule::reads & (reads_g | is_direction)) {
        x.g = to_floats(load8(static_cast<const Grad*>(range.gradient.data), i, extent));
    }
    if constexpr (Rule::reads & reads_g) {
#pragma unroll
        for (int k = 0; k < 8; k++) x.g[k] *= grad_scale;
    }
    return x;
}

template <class Real>
__device__ __forceinline__ Extent extent_of(const UpdateRange<Real>& range) {
    const std::uintptr_t addresses =
        reinterpret_cast<std::uintptr_t>(range.parameter) | reinterpret_cast<std::uintptr_t>(range.master) |
        reinterpret_cast<std::uintptr_t>(range.gradient.data) | reinterpret_cast<std::uintptr_t>(range.m.data) |
        reinterpret_cast<std::uintptr_t>(range.v.data) | reinterpret_cast<std::uintptr_t>(range.lower);
    return {range.count, addresses % 16 == 0};
}

template <class Rule, class Real, class Grad, class Moment>
__global__ void __launch_bounds__(kUpdateThreads)
    update_kernel(const UpdateRange<Real>* ranges, int count, const UpdateFactors* of_step) {
    const UpdateFactors factors = *of_step;
    if (factors.norm && factors.norm->skip) return;
    const float grad_scale = factors.norm ? factors.norm->scale : 1.0f;
    const UpdateRange<Real> range = range_of_block(ranges, count, blockIdx.x);
    float ratio = range.scale;
    if constexpr (Rule::has_ratio) {
        if (range.norms >= 0) ratio = Rule::ratio(factors.norms[range.norms], range.weight_decay, factors);
    }
    const Extent extent = extent_of(range);
    const BlockSpan span = span_of_block(range, blockIdx.x, kUpdateBlock);
    const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * 8;
    for (std::int64_t i = span.begin + threadIdx.x * 8; i < span.end; i += step) {
        UpdatePiece x = load_piece<Rule, Grad, Moment>(range, i, extent, grad_scale);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            Rule::update(x.w[k], x.m[k], x.v[k], x.g[k], range.weight_decay, ratio, factors);
        }
        if constexpr (Rule::writes & reads_m) store_moment<Moment>(range, i, extent, RoundedValue::m, x.m, factors);
        if constexpr (Rule::writes & reads_v) store_moment<Moment>(range, i, extent, RoundedValue::v, x.v, factors);
        if constexpr (Rule::writes & reads_w) store_weights(range, i, extent, x.w, factors);
        if constexpr (Rule::writes & is_direction) store8(range.parameter, i, extent, round_to<Real>(x.w));
    }
}

template <class Rule, class Real, class Grad, class Moment>
__global__ void __launch_bounds__(kUpdateThreads)
    norm_partials_kernel(double* partials, const UpdateRange<Real>* ranges, int count, const UpdateFactors* of_step) {
    const UpdateFactors factors = *of_step;
    const float grad_scale = factors.norm ? factors.norm->scale : 1.0f;
    const UpdateRange<Real> range = range_of_block(ranges, count, blockIdx.x);
    const Extent extent = extent_of(range);
    const BlockSpan span = span_of_block(range, blockIdx.x, kUpdateBlock);
    const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * 8;
    Vec8<double> weights = {}, changes = {};
    for (std::int64_t i = span.begin + threadIdx.x * 8; i < span.end; i += step) {
        const UpdatePiece x = load_piece<Rule, Grad, Moment>(range, i, extent, grad_scale);   // zero past the end
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const double w = static_cast<double>(x.w[k]);
            const double change =
                static_cast<double>(Rule::change(x.w[k], x.m[k], x.v[k], x.g[k], range.weight_decay, factors));
            weights[k] = fma(w, w, weights[k]);
            changes[k] = fma(change, change, changes[k]);
        }
    }
    const double of_weights = block_sum(sum8(weights)), of_changes = block_sum(sum8(changes));
    if (threadIdx.x > 0) return;
    partials[blockIdx.x] = of_weights;
    partials[gridDim.x + blockIdx.x] = of_changes;
}

// Adds the partial norms; one block per range.
template <class Range>
__global__ void __launch_bounds__(kOrderedSumThreads)
    add_norm_partials_kernel(TensorNorms* norms, const double* partials, const Range* ranges, int count,
                             std::int64_t blocks) {
    const Range range = ranges[blockIdx.x];
    const std::int64_t end = static_cast<int>(blockIdx.x) + 1 < count ? ranges[blockIdx.x + 1].first_block : blocks;
    const std::int64_t range_blocks = end - range.first_block;
    const double weights = ordered_sum(partials + range.first_block, range_blocks);
    __syncthreads();   // ordered_sum's shared memory may be reused
    const double changes = ordered_sum(partials + blocks + range.first_block, range_blocks);
    if (threadIdx.x == 0) norms[range.norms] = {weights, changes};
}

template <class Real>
UpdateTable<Real> make_update_table(Arena& arena, const std::string& name, std::vector<UpdateRange<Real>> ranges,
                                    cudaStream_t stream, bool norms) {
    require_one_type(ranges);
    for (const UpdateRange<Real>& range : ranges) {
        const bool alike = range.m.type == ranges.front().m.type && (!range.v.data || range.v.type == range.m.type);
        ENSURE(alike, "moments of two types in one table");
    }
    UpdateTable<Real> table;
    table.blocks = number_blocks(ranges, kUpdateBlock);
    table.ranges = std::move(ranges);
    table.device_ranges = arena.allocate<UpdateRange<Real>>(name + "_ranges", table.ranges.size());
    table.device_ranges.upload(table.ranges, stream);
    table.factors = arena.allocate<UpdateFactors>(name + "_step", 1);
    if (norms) {
        table.partials = arena.allocate<double>(name + "_partials", static_cast<std::size_t>(2 * table.blocks));
    }
    return table;
}

inline UpdateFactors factors_of(const UpdateStep& step) {
    ENSURE(step.step >= 1, "steps of an optimizer count from 1, not from ", step.step);
    const int updates = step.updates > 0 ? step.updates : step.step;
    const double correction1 = 1.0 / (1.0 - std::pow(static_cast<double>(step.beta1), updates));
    const double correction2 = 1.0 / (1.0 - std::pow(static_cast<double>(step.beta2), updates));
    return {.learning_rate = step.learning_rate,
            .beta1 = step.beta1,
            .beta2 = step.beta2,
            .epsilon = step.epsilon,
            .correction1 = static_cast<float>(correction1),
            .correction2 = static_cast<float>(correction2),
            .trust = step.trust,
            .norm_scale = step.norm_scale,
            .norm_epsilon = step.norm_epsilon,
            .blend = step.blend,
            .average_decay = step.average_decay,
            .step = step.step,
            .seed = step.seed,
            .norm = step.norm,
            .norms = step.norms};
}

template <class Real>
void set_update_step(UpdateTable<Real>& table, const UpdateStep& step, cudaStream_t stream) {
    table.step = step;
    const std::vector factors{factors_of(step)};
    if (table.blocks > 0) table.factors.upload(factors, stream);
}

// Returns a launch that declares what a rule reads of a table's ranges.
template <class Rule, class Real>
Launch update_launch(const UpdateTable<Real>& table, cudaStream_t stream) {
    const UpdateStep& step = table.step;
    ENSURE(step.step >= 1, "an update before its step was set");
    Launch where{dim3(blocks_for(table.blocks, 1)), loop_threads(kUpdateThreads), 0, stream};
    where.reads(table.device_ranges.data(), table.device_ranges.bytes());
    where.reads(table.factors.data(), table.factors.bytes());
    if (step.norm) where.reads(step.norm, sizeof(GradNorm));
    for (const UpdateRange<Real>& range : table.ranges) {
        if (Rule::reads & (reads_g | is_direction)) {
            where.reads(range.gradient.data, range.count * size_of(range.gradient.type));
        }
        if (Rule::reads & reads_m) where.reads(range.m.data, range.count * size_of(range.m.type));
        if (Rule::reads & reads_v) where.reads(range.v.data, range.count * size_of(range.v.type));
        if (Rule::reads & reads_w) {
            if (range.master)
                where.reads(range.master, range.count * sizeof(float));
            else
                where.reads(range.parameter, range.count * sizeof(Real));
            if (range.lower) where.reads(range.lower, range.count * sizeof(bf16));
        }
        if (range.norms >= 0 && step.norms) where.reads(step.norms + range.norms, sizeof(TensorNorms));
    }
    return where;
}

// Calls use.operator()<Grad, Moment>() with the types of a table's gradients and moments.
template <class Rule, class Real, class Use>
void with_types(const UpdateTable<Real>& table, Use&& use) {
    const UpdateRange<Real>& first = table.ranges.front();
    with_gradient_type<Real>(first.gradient.type, [&]<class Grad> {
        if constexpr (Rule::reads & has_moments) {
            with_gradient_type<bf16>(first.m.type, [&]<class Moment> { use.template operator()<Grad, Moment>(); });
        } else {
            ENSURE(first.m.type == DType::fp32, "a rule of another state than moments, in ", name_of(first.m.type));
            use.template operator()<Grad, float>();
        }
    });
}

template <class Rule, class Real>
void update_weights(const UpdateTable<Real>& table, cudaStream_t stream) {
    if (table.blocks == 0) return;
    Launch where = update_launch<Rule>(table, stream);
    for (const UpdateRange<Real>& range : table.ranges) {
        if (Rule::writes & reads_m) where.writes(range.m.data, range.count * size_of(range.m.type));
        if (Rule::writes & reads_v) where.writes(range.v.data, range.count * size_of(range.v.type));
        if (Rule::writes & (reads_w | is_direction)) where.writes(range.parameter, range.count * sizeof(Real));
        if ((Rule::writes & reads_w) && range.master) where.writes(range.master, range.count * sizeof(float));
        if ((Rule::writes & reads_w) && range.lower) where.writes(range.lower, range.count * sizeof(bf16));
    }
    with_types<Rule>(table, [&]<class Grad, class Moment> {
        launch(update_kernel<Rule, Real, Grad, Moment>, where, table.device_ranges.data(),
               static_cast<int>(table.ranges.size()), table.factors.data());
    });
}

template <class Rule, class Real>
void sum_norms(TensorNorms* norms, const UpdateTable<Real>& table, cudaStream_t stream) {
    if (table.blocks == 0) return;
    Launch squares = update_launch<Rule>(table, stream);
    squares.writes(table.partials.data(), table.partials.bytes());
    const int count = static_cast<int>(table.ranges.size());
    with_types<Rule>(table, [&]<class Grad, class Moment> {
        launch(norm_partials_kernel<Rule, Real, Grad, Moment>, squares, table.partials.data(),
               table.device_ranges.data(), count, table.factors.data());
    });
    Launch add{dim3(static_cast<unsigned>(count)), dim3(kOrderedSumThreads), 0, stream};
    add.reads(table.device_ranges.data(), table.device_ranges.bytes());
    add.reads(table.partials.data(), table.partials.bytes());
    for (const UpdateRange<Real>& range : table.ranges) add.writes(norms + range.norms, sizeof(TensorNorms));
    launch(add_norm_partials_kernel<UpdateRange<Real>>, add, norms, table.partials.data(), table.device_ranges.data(),
           count, table.blocks);
}
