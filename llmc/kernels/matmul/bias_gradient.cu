#include "llmc/kernels/matmul/bias_gradient.h"

#include <algorithm>

#include "llmc/base/check.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/add_rows.cuh"
#include "llmc/kernels/vec.cuh"

namespace {

// Few rows per split keep many threads busy; few splits keep stage 2 short.
constexpr int least_rows_per_split = 32, most_splits = 256;
constexpr int rows_in_flight = 8, partial_threads = 64;

// Sums eight neighbouring columns per thread (one 16-byte access in bf16) over the rows of one split. The bound of
// eight blocks per multiprocessor makes nvcc keep a row in registers for each load; without it, nvcc saves registers
// and loads one row after another.
template <class T>
__global__ void __launch_bounds__(partial_threads, 8)
    bias_gradient_partial(float* partial, const T* dout, BiasGradientShape shape, int rows, bool packets) {
    const std::int64_t column = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8;
    if (column >= shape.N) return;
    const int first = static_cast<int>(blockIdx.y) * rows, last = min(first + rows, shape.M);
    Vec8<float> sums = {};
    with_known_extent(column, Extent{shape.N, packets}, [&](auto known) {
        add_rows<rows_in_flight>(
            sums, first, last, 1, [&](int row) { return dout + row * shape.stride; }, column, known);
    });
    float* out = partial + std::int64_t{blockIdx.y} * shape.N + column;
    for (int k = 0; k < 8; k++) {
        if (column + k < shape.N) out[k] = sums[k];
    }
}

// Sums one column of the partials per thread (neighbouring threads read neighbouring columns). There are few threads,
// so each needs many loads under way.
template <class G>
__global__ void bias_gradient_finish(G* dbias, const float* partial, int splits, int N, bool accumulate) {
    const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (column >= N) return;
    float sum = accumulate ? static_cast<float>(dbias[column]) : 0.0f;
#pragma unroll 32
    for (int split = 0; split < splits; split++) sum += partial[std::int64_t{split} * N + column];
    dbias[column] = static_cast<G>(sum);
}

// __grid_constant__: blockIdx.y indexes the parameters where they are, without a copy for each thread.
__global__ void add_bias_sums_kernel(const __grid_constant__ BiasSums sums) {
    const int i = static_cast<int>(blockIdx.y), column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (column < sums.channels[i]) sums.to[i][column] += sums.from[i][column];
}

}   // namespace

BiasGradientSplits bias_gradient_splits(int M, int N, std::size_t scratch_bytes) {
    const std::size_t room = scratch_bytes / (sizeof(float) * static_cast<std::size_t>(N));
    const int most = static_cast<int>(std::min<std::size_t>(most_splits, room));
    if (most == 0) return {0, 0};
    const int rows = std::max(least_rows_per_split, (M + most - 1) / most);
    return {(M + rows - 1) / rows, rows};
}

template <class T, class G>
void bias_gradient(G* dbias, float* scratch, std::size_t scratch_bytes, const T* dout, const BiasGradientShape& s,
                   bool accumulate, cudaStream_t stream) {
    ENSURE(s.M > 0 && s.N > 0 && s.stride >= s.N, "bias gradient of (", s.M, ", ", s.N, ") with rows ", s.stride,
           " apart");
    const auto [splits, rows] = bias_gradient_splits(s.M, s.N, scratch_bytes);
    ENSURE(splits > 0, "bias gradient of ", s.N, " channels with ", scratch_bytes, " bytes of scratch");
    const unsigned threads = partial_threads;
    const std::size_t dout_bytes = sizeof(T) * static_cast<std::size_t>((s.M - 1) * s.stride + s.N);
    const std::size_t partial_bytes = sizeof(float) * static_cast<std::size_t>(splits) * static_cast<std::size_t>(s.N);
    const bool packets = packets_fit(dout) && s.stride * sizeof(T) % 16 == 0;
    dim3 grid(static_cast<unsigned>((s.N + 8 * threads - 1) / (8 * threads)), static_cast<unsigned>(splits));
    launch(bias_gradient_partial<T>,
           Launch{grid, threads, 0, stream}.reads(dout, dout_bytes).writes(scratch, partial_bytes), scratch, dout, s,
           rows, packets);
    launch(bias_gradient_finish<G>,
           Launch{static_cast<unsigned>((s.N + threads - 1) / threads), threads, 0, stream}
               .reads(scratch, partial_bytes)
               .reads(dbias, accumulate ? sizeof(G) * s.N : 0)
               .writes(dbias, sizeof(G) * s.N),
           dbias, scratch, splits, s.N, accumulate);
}

template void bias_gradient(float*, float*, std::size_t, const float*, const BiasGradientShape&, bool, cudaStream_t);
template void bias_gradient(float*, float*, std::size_t, const bf16*, const BiasGradientShape&, bool, cudaStream_t);
template void bias_gradient(bf16*, float*, std::size_t, const bf16*, const BiasGradientShape&, bool, cudaStream_t);

void add_bias_sums(const BiasSums& sums, cudaStream_t stream) {
    if (sums.count == 0) return;
    for (int i = 1; i < sums.count; i++) {
        float* const* const before = sums.to + i;
        ENSURE(std::find(sums.to, before, *before) == before, "two sums of one bias in one launch, which would race");
    }
    const unsigned threads = 256,
                   most = static_cast<unsigned>(*std::max_element(sums.channels, sums.channels + sums.count));
    Launch where{dim3((most + threads - 1) / threads, static_cast<unsigned>(sums.count)), threads, 0, stream};
    for (int i = 0; i < sums.count; i++) {
        const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(sums.channels[i]);
        where.reads(sums.from[i], bytes).reads(sums.to[i], bytes).writes(sums.to[i], bytes);
    }
    launch(add_bias_sums_kernel, where, sums);
}
