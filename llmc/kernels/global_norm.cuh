// Computes the norm of all gradients, and from it the factor that clips them: all on the device, no host round trip.
//
// Two stages, each in a fixed order, in double throughout: blocks sum squares of fixed pieces of the tensors, one block
// adds the pieces. The caller then adds `sum` up over ranks that hold different elements. The square of a float is
// exact in double. Additions in double round so little that the norm, a float, hardly ever depends on how elements are
// split over ranks.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/dtype.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/ordered_sum.cuh"
#include "llmc/kernels/rows/block_table.cuh"
#include "llmc/kernels/rows/reduce.cuh"
#include "llmc/kernels/vec.cuh"

// Result that optimizers read on the device and the trainer downloads for its log.
struct GradNorm {
    float norm;    // sqrt of the sum of squares; with local steps, of the mean over replicas
    float scale;   // factor of the gradients: min(1, max_norm / norm), or 1 when max_norm <= 0; norm of this replica
    int skip;      // 1 when the norm or the loss is not finite, or nothing is to be applied: the update must not happen
};

struct NormRange {
    TypedPointer gradient;   // one type in all ranges of a table
    std::int64_t count;
    std::int64_t first_block = 0;   // filled by make_norm_table
};

// Ranges whose squares are summed, on the device with their scratch; made once, used every step.
struct NormTable {
    std::vector<NormRange> ranges;
    DeviceBuffer<NormRange> device_ranges;
    DeviceBuffer<double> partials;   // one per block
    std::int64_t blocks = 0;
};

inline NormTable make_norm_table(Arena& arena, const std::string& name, std::vector<NormRange> ranges,
                                 cudaStream_t stream);

// Computes sum[0] = sum of squares of every element of every range; added to what is there when `accumulate`.
inline void sum_of_squares(double* sum, const NormTable& table, bool accumulate, cudaStream_t stream);

// Sum of squares over the replicas of local steps, which differ in their gradients, and their number.
struct ReplicaSquares {
    const double* sum = nullptr;   // on the device; null: one model
    int replicas = 1;
};

// Computes result[0] from the sum of squares sum[0] of a replica and loss[0], of all ranks; `loss` may be null. All
// replicas come to the same norm and skip, each to a scale of its own. `zero_is_none`: a norm of zero says that there
// are no gradients to apply, so it skips, too.
inline void finish_global_norm(GradNorm* result, const double* sum, const double* loss, float max_norm,
                               cudaStream_t stream, const ReplicaSquares& of_all = {}, bool zero_is_none = false);

// ---------------------------------------------------------------------------------------------------------------------

constexpr int kNormThreads = 256;
constexpr int kNormTurns = 64;     // pieces of eight elements per thread, for one reduction
constexpr int kNormInFlight = 4;   // loads that are under way together
constexpr int kNormSums = 2;
constexpr std::int64_t kNormBlock = static_cast<std::int64_t>(kNormThreads) * 8 * kNormTurns;

template <class Grad>
__global__ void __launch_bounds__(kNormThreads, 2)
    sum_of_squares_kernel(double* partials, const NormRange* ranges, int count) {
    const NormRange range = range_of_block(ranges, count, blockIdx.x);
    const Grad* const gradient = static_cast<const Grad*>(range.gradient.data);
    const BlockSpan span = span_of_block(range, blockIdx.x, kNormBlock);
    const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * 8;
    const Extent extent{span.end, reinterpret_cast<std::uintptr_t>(gradient) % 16 == 0};
    // Several sums keep several loads in flight on a GPU, do not wait for each other, and become vectors on a CPU.
    Vec8<double> sums[kNormSums] = {};
    for (std::int64_t i = span.begin + threadIdx.x * 8; i < span.end; i += kNormInFlight * step) {
        with_known_extent(i + (kNormInFlight - 1) * step, extent, [&](auto known) {
#pragma unroll
            for (int u = 0; u < kNormInFlight; u++) {
                const Vec8<float> x = to_floats(load8(gradient, i + u * step, known));   // zero past the end
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    const double x64 = static_cast<double>(x[k]);
                    sums[u % kNormSums][k] = fma(x64, x64, sums[u % kNormSums][k]);
                }
            }
        });
    }
    static_assert(kNormSums == 2);
    const double sum = block_sum(sum8(sums[0]) + sum8(sums[1]));
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

template <class Sum>
__global__ void __launch_bounds__(kOrderedSumThreads)
    add_partials_kernel(Sum* sum, const double* partials, std::int64_t count, bool accumulate) {
    const double total = ordered_sum(partials, count);
    if (threadIdx.x == 0) *sum = accumulate ? *sum + total : total;
}

inline NormTable make_norm_table(Arena& arena, const std::string& name, std::vector<NormRange> ranges,
                                 cudaStream_t stream) {
    require_one_type(ranges);
    NormTable table;
    table.blocks = number_blocks(ranges, kNormBlock);
    table.ranges = std::move(ranges);
    table.device_ranges = arena.allocate<NormRange>(name + "_ranges", table.ranges.size());
    table.device_ranges.upload(table.ranges, stream);
    table.partials = arena.allocate<double>(name + "_partials", static_cast<std::size_t>(table.blocks));
    return table;
}

inline void sum_of_squares(double* sum, const NormTable& table, bool accumulate, cudaStream_t stream) {
    if (table.blocks > 0) {
        const DType type = table.ranges.front().gradient.type;
        Launch squares{dim3(blocks_for(table.blocks, 1)), loop_threads(kNormThreads), 0, stream};
        for (const NormRange& range : table.ranges) squares.reads(range.gradient.data, range.count * size_of(type));
        squares.reads(table.device_ranges.data(), table.device_ranges.bytes());
        squares.writes(table.partials.data(), table.partials.bytes());
        with_gradient_type<bf16>(type, [&]<class Grad> {
            launch(sum_of_squares_kernel<Grad>, squares, table.partials.data(), table.device_ranges.data(),
                   static_cast<int>(table.ranges.size()));
        });
    }
    Launch add{dim3(1), dim3(kOrderedSumThreads), 0, stream};
    add.reads(table.partials.data(), table.partials.bytes()).writes(sum, sizeof(double));
    launch(add_partials_kernel<double>, add, sum, table.partials.data(), table.blocks, accumulate);
}

template <class Sum>
__global__ void finish_global_norm_kernel(GradNorm* result, const Sum* sum, const Sum* loss, float max_norm,
                                          const Sum* all, int replicas, bool zero_is_none) {
    const float replica_norm = static_cast<float>(sqrt(*sum)), norm = static_cast<float>(sqrt(*all / replicas));
    const bool finite = norm <= FLT_MAX && (loss == nullptr || fabs(*loss) <= FLT_MAX);   // false for NaN
    const bool skip = !finite || (zero_is_none && *all == 0);
    *result = {norm, max_norm > 0 && replica_norm > max_norm ? max_norm / replica_norm : 1.0f, skip ? 1 : 0};
}

inline void finish_global_norm(GradNorm* result, const double* sum, const double* loss, float max_norm,
                               cudaStream_t stream, const ReplicaSquares& of_all, bool zero_is_none) {
    const double* const all = of_all.sum != nullptr ? of_all.sum : sum;
    Launch where{dim3(1), dim3(1), 0, stream};
    where.reads(sum, sizeof(double)).writes(result, sizeof(GradNorm));
    if (loss) where.reads(loss, sizeof(double));
    if (all != sum) where.reads(all, sizeof(double));
    launch(finish_global_norm_kernel<double>, where, result, sum, loss, max_norm, all, of_all.replicas, zero_is_none);
}
