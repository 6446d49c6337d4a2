// Computes RMSNorm of rows that ranks share: each rank has the same number of columns of every row, and a row's sum of
// squares is over all ranks. OLMo2's norm of q and k needs this: it covers a whole row of heads, which tensor
// parallelism cuts.
//
//   forward    y = x r w,  r = 1 / sqrt(sum(x^2) / n + epsilon)         n columns of all ranks
//   backward   dx = r (w dy - x r sum(w dy x r) / n),  dw = sum over rows of dy x r
// Both sums over a row start here; the caller adds them up over ranks, and then they are used (one rank: as they are).
// Columns with copies on several ranks count as many times in sums and in n. If the gradient dy is a partial sum over
// such copies, dx and dw are partial sums too.
//
// All arithmetic is fp32, rounded once, after the weight.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/rows/embedding.cuh"
#include "llmc/kernels/rows/reduce.cuh"
#include "llmc/kernels/vec.cuh"

// This rank's part of rows.
template <class Real>
struct SharedRows {
    Real* data;
    std::int64_t stride;   // elements from one row to the next
    int rows, width;       // width: columns, a multiple of 8
    int ranks;             // ranks that have as many columns each

    float columns() const { return static_cast<float>(width) * static_cast<float>(ranks); }
    std::size_t elements() const { return static_cast<std::size_t>(rows) * static_cast<std::size_t>(width); }
    std::size_t span() const {
        return static_cast<std::size_t>((rows - 1) * stride + width);   // from the first element to the last
    }
};

// Writes kept (rows, width) = x and sums (rows) = its sums of squares.
template <class Real>
void shared_rms_begin(float* sums, Real* kept, const SharedRows<Real>& x, cudaStream_t stream);
// Writes x = the norm of `kept`, and rstd (rows), given the `sums` over all ranks.
template <class Real>
void shared_rms_finish(const SharedRows<Real>& x, float* rstd, const Real* kept, const Real* weight, const float* sums,
                       float epsilon, cudaStream_t stream);

// Computes sums (rows) and dweight (width), which is added to or overwritten, from the gradient dy. scratch:
// shared_rms_scratch(rows, width) floats.
template <class Real, class Grad>
void shared_rms_backward_begin(float* sums, Grad* dweight, float* scratch, const SharedRows<Real>& dy, const Real* kept,
                               const Real* weight, const float* rstd, bool accumulate, cudaStream_t stream);
// Overwrites dy with the gradient of x.
template <class Real>
void shared_rms_backward_finish(const SharedRows<Real>& dy, const Real* kept, const Real* weight, const float* rstd,
                                const float* sums, cudaStream_t stream);

// Number of parts of the rows whose column sums are added in order: a function of the shape alone.
constexpr int shared_rms_parts(int rows) { return std::min(rows, 128); }
constexpr std::size_t shared_rms_scratch(int rows, int width) {
    return static_cast<std::size_t>(shared_rms_parts(rows)) * static_cast<std::size_t>(width);
}

// ---------------------------------------------------------------------------------------------------------------------

constexpr unsigned kSharedRmsThreads = 128;   // threads per row

// Sums one row per block: term(column) are eight terms of its sum.
template <class Term>
__device__ __forceinline__ void sum_row(float* sums, int width, Term&& term) {
    Vec8<float> eight{};
    for (int column = static_cast<int>(threadIdx.x) * 8; column < width; column += static_cast<int>(blockDim.x) * 8) {
        eight = add8(eight, term(column));
    }
    const float sum = block_sum(sum8(eight));
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class Real>
__global__ void __launch_bounds__(kSharedRmsThreads)
    shared_rms_begin_kernel(float* sums, Real* kept, SharedRows<Real> x) {
    const Real* const row = x.data + static_cast<std::int64_t>(blockIdx.x) * x.stride;
    Real* const copy = kept + static_cast<std::int64_t>(blockIdx.x) * x.width;
    sum_row(sums, x.width, [&](int column) {
        const Vec8<Real> values = load_packets<8>(row + column);
        store_packets(copy + column, values);
        Vec8<float> squares = to_floats(values);
#pragma unroll
        for (int k = 0; k < 8; k++) squares[k] *= squares[k];
        return squares;
    });
}

template <class Real>
__global__ void __launch_bounds__(kSharedRmsThreads)
    shared_rms_products_kernel(float* sums, SharedRows<Real> dy, const Real* kept, const Real* weight,
                               const float* rstd) {
    const Real* const row = dy.data + static_cast<std::int64_t>(blockIdx.x) * dy.stride;
    const Real* const x = kept + static_cast<std::int64_t>(blockIdx.x) * dy.width;
    const float r = rstd[blockIdx.x];
    sum_row(sums, dy.width, [&](int column) {
        const Vec8<float> values = to_floats(load_packets<8>(x + column)),
                          w = to_floats(load_packets<8>(weight + column));
        Vec8<float> products = to_floats(load_packets<8>(row + column));
#pragma unroll
        for (int k = 0; k < 8; k++) products[k] *= w[k] * (values[k] * r);
        return products;
    });
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    shared_rms_finish_kernel(SharedRows<Real> x, float* rstd, const Real* kept, const Real* weight, const float* sums,
                             float columns, float epsilon) {
    const RowAndColumn at = thread_row_and_column(x.width, blockIdx.x);
    if (at.row >= x.rows) return;
    const float r = 1.0f / sqrtf(sums[at.row] / columns + epsilon);
    if (at.column == 0) rstd[at.row] = r;
    Vec8<float> values = to_floats(load_packets<8>(kept + static_cast<std::int64_t>(at.row) * x.width + at.column));
    const Vec8<float> w = to_floats(load_packets<8>(weight + at.column));
#pragma unroll
    for (int k = 0; k < 8; k++) values[k] = values[k] * r * w[k];
    store_packets(x.data + at.row * x.stride + at.column, round_to<Real>(values));
}

template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    shared_rms_backward_finish_kernel(SharedRows<Real> dy, const Real* kept, const Real* weight, const float* rstd,
                                      const float* sums, float columns) {
    const RowAndColumn at = thread_row_and_column(dy.width, blockIdx.x);
    if (at.row >= dy.rows) return;
    const float r = rstd[at.row], mean = sums[at.row] / columns;
    Real* const place = dy.data + at.row * dy.stride + at.column;
    Vec8<float> d = to_floats(load_packets<8>(static_cast<const Real*>(place)));
    const Vec8<float> x = to_floats(load_packets<8>(kept + static_cast<std::int64_t>(at.row) * dy.width + at.column)),
                      w = to_floats(load_packets<8>(weight + at.column));
#pragma unroll
    for (int k = 0; k < 8; k++) d[k] = r * (w[k] * d[k] - x[k] * r * mean);
    store_packets(place, round_to<Real>(d));
}

// Writes partials (parts, width): a thread adds eight columns over the rows of a part.
template <class Real>
__global__ void __launch_bounds__(kElementwiseThreads)
    shared_rms_columns_kernel(float* partials, SharedRows<Real> dy, const Real* kept, const float* rstd, int parts) {
    const RowAndColumn at = thread_row_and_column(dy.width, blockIdx.x);
    if (at.row >= parts) return;
    Vec8<float> sum{};
    for (int row = at.row; row < dy.rows; row += parts) {
        const Vec8<float> d = to_floats(load_packets<8>(dy.data + row * dy.stride + at.column)),
                          x = to_floats(load_packets<8>(kept + static_cast<std::int64_t>(row) * dy.width + at.column));
        const float r = rstd[row];
#pragma unroll
        for (int k = 0; k < 8; k++) sum[k] = fmaf(d[k], x[k] * r, sum[k]);
    }
    store_packets(partials + static_cast<std::int64_t>(at.row) * dy.width + at.column, sum);
}

template <class Grad>
__global__ void __launch_bounds__(kElementwiseThreads)
    shared_rms_weight_kernel(Grad* dweight, const float* partials, int parts, int width, bool accumulate) {
    const int column = static_cast<int>(blockIdx.x * kElementwiseThreads + threadIdx.x);
    if (column >= width) return;
    float sum = accumulate ? static_cast<float>(dweight[column]) : 0.0f;
    for (int part = 0; part < parts; part++) sum += partials[static_cast<std::int64_t>(part) * width + column];
    dweight[column] = static_cast<Grad>(sum);
}

// ---------------------------------------------------------------------------------------------------------------------

template <class Real>
void check_shared_rows(const SharedRows<Real>& x) {
    ENSURE(x.rows > 0 && x.width % 8 == 0 && x.stride % 8 == 0, x.rows, " rows of ", x.width, " channels, ", x.stride,
           " apart");
}

template <class Real>
void shared_rms_begin(float* sums, Real* kept, const SharedRows<Real>& x, cudaStream_t stream) {
    check_shared_rows(x);
    Launch where{dim3(static_cast<unsigned>(x.rows)), dim3(loop_threads(kSharedRmsThreads)), 0, stream};
    where.reads(x.data, x.span() * sizeof(Real)).writes(kept, x.elements() * sizeof(Real));
    where.writes(sums, static_cast<std::size_t>(x.rows) * sizeof(float));
    launch(shared_rms_begin_kernel<Real>, where, sums, kept, x);
}

template <class Real>
void shared_rms_finish(const SharedRows<Real>& x, float* rstd, const Real* kept, const Real* weight, const float* sums,
                       float epsilon, cudaStream_t stream) {
    check_shared_rows(x);
    const std::size_t of_rows = static_cast<std::size_t>(x.rows) * sizeof(float);
    Launch where = elementwise_launch(padded_elements(x.rows, x.width), stream);
    where.reads(kept, x.elements() * sizeof(Real)).reads(sums, of_rows);
    where.reads(weight, static_cast<std::size_t>(x.width) * sizeof(Real));
    where.writes(x.data, x.span() * sizeof(Real)).writes(rstd, of_rows);
    launch(shared_rms_finish_kernel<Real>, where, x, rstd, kept, weight, sums, x.columns(), epsilon);
}

template <class Real, class Grad>
void shared_rms_backward_begin(float* sums, Grad* dweight, float* scratch, const SharedRows<Real>& dy, const Real* kept,
                               const Real* weight, const float* rstd, bool accumulate, cudaStream_t stream) {
    check_shared_rows(dy);
    const std::size_t of_rows = static_cast<std::size_t>(dy.rows) * sizeof(float);
    const int parts = shared_rms_parts(dy.rows);
    const std::size_t scratch_bytes = shared_rms_scratch(dy.rows, dy.width) * sizeof(float);
    const std::size_t of_columns = static_cast<std::size_t>(dy.width);
    auto reads = [&](Launch& where) {
        where.reads(dy.data, dy.span() * sizeof(Real)).reads(kept, dy.elements() * sizeof(Real)).reads(rstd, of_rows);
    };
    Launch products{dim3(static_cast<unsigned>(dy.rows)), dim3(loop_threads(kSharedRmsThreads)), 0, stream};
    reads(products);
    products.reads(weight, of_columns * sizeof(Real)).writes(sums, of_rows);
    launch(shared_rms_products_kernel<Real>, products, sums, dy, kept, weight, rstd);

    Launch columns = elementwise_launch(padded_elements(parts, dy.width), stream);
    reads(columns);
    columns.writes(scratch, scratch_bytes);
    launch(shared_rms_columns_kernel<Real>, columns, scratch, dy, kept, rstd, parts);

    Launch finish{dim3(blocks_for(dy.width, kElementwiseThreads)), dim3(kElementwiseThreads), 0, stream};
    finish.reads(scratch, scratch_bytes).writes(dweight, of_columns * sizeof(Grad));
    launch(shared_rms_weight_kernel<Grad>, finish, dweight, scratch, parts, dy.width, accumulate);
}

template <class Real>
void shared_rms_backward_finish(const SharedRows<Real>& dy, const Real* kept, const Real* weight, const float* rstd,
                                const float* sums, cudaStream_t stream) {
    check_shared_rows(dy);
    const std::size_t of_rows = static_cast<std::size_t>(dy.rows) * sizeof(float);
    Launch where = elementwise_launch(padded_elements(dy.rows, dy.width), stream);
    where.reads(kept, dy.elements() * sizeof(Real)).reads(weight, static_cast<std::size_t>(dy.width) * sizeof(Real));
    where.reads(rstd, of_rows).reads(sums, of_rows).writes(dy.data, dy.span() * sizeof(Real));
    launch(shared_rms_backward_finish_kernel<Real>, where, dy, kept, weight, rstd, sums, dy.columns());
}
