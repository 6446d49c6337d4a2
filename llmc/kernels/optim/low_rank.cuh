// Sums gradients over ranks as products of two thin matrices, with error feedback: PowerSGD (Vogels, Karimireddy and
// Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization", 2019, algorithms 1 and 2).
//
// A matrix M(n, m), a rank's gradient and what was left out before, stands for itself by one step of the power
// iteration from last step's right factor R(r, m), whose rows are scaled to length 1 first; ranks add up two factors:
//
//     L = R M^T, (r, n), added up over ranks;  its rows are made orthogonal and of length 1
//     R = L M, (r, m);  the error is M - L^T R;  R is added up over ranks, and the sum of all M is about L^T R
//
// L^T R is linear in M once L is known, so what is left out on all ranks is the sum of all M less that.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cfloat>
#include <cstdint>
#include <vector>

#include "llmc/base/rng.h"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/optim/low_rank.h"
#include "llmc/kernels/rows/reduce.cuh"

// Scales each row of the right factors to length 1; a row of zeros, as at first, is drawn by the key (normal, rng.h).
inline void prepare_right(float* right, const LowRank& how, std::uint64_t key, cudaStream_t stream);

// Writes error + gradient to error, and the left factors of this, which are not orthogonal yet.
inline void multiply_left(float* left, float* error, const float* gradient, const float* right, const LowRank& how,
                          cudaStream_t stream);

// Makes the rows of each matrix's left factor orthogonal and of length 1 (Gram and Schmidt, twice). A row of which
// nothing but rounding is left becomes zero.
struct LeftFactors {
    float* left;
    std::int64_t count, rows;
};
inline void orthogonalize_left(const std::vector<LeftFactors>& factors, int rank, cudaStream_t stream);

// Writes the right factors of matrices by orthogonal left factors. `partials`: right_partials(how) floats.
inline void multiply_right(float* right, float* partials, const float* left, const float* matrices, const LowRank& how,
                           cudaStream_t stream);
inline std::int64_t right_partials(const LowRank& how);

// Subtracts the products of the factors from matrices, whole.
inline void subtract_products(float* matrices, const float* left, const float* right, const LowRank& how,
                              cudaStream_t stream);

// Writes elements [first, first + n) of the products to out; what is past the last matrix stays as it is.
inline void write_products(float* out, std::int64_t first, std::int64_t n, const float* left, const float* right,
                           const LowRank& how, cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

constexpr int kLowRankThreads = 128;
constexpr int kOrthogonalThreads = 512;
constexpr int kRanksAtOnce = 4;                // sums that a thread has in registers
constexpr int kMostRowGroups = 32;             // parts of a column's sum
constexpr std::int64_t kProductBlock = 4096;   // elements of a block of threads
constexpr float kOnlyRounding = 1e-5f;         // length that is left of a row, over what it was

inline __global__ void __launch_bounds__(kLowRankThreads)
    prepare_right_kernel(float* factors, LowRank how, std::uint64_t key) {
    const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * how.cols;   // a block for each row
    float* const row = factors + begin;
    double squares = 0;
    for (std::int64_t j = threadIdx.x; j < how.cols; j += blockDim.x) {
        squares = fma(static_cast<double>(row[j]), static_cast<double>(row[j]), squares);
    }
    squares = block_sum(squares);
    const double scale = 1 / sqrt(squares);
    for (std::int64_t j = threadIdx.x; j < how.cols; j += blockDim.x) {
        row[j] = squares == 0 ? normal(key, static_cast<std::uint64_t>(begin + j))
                              : static_cast<float>(static_cast<double>(row[j]) * scale);
    }
}

// Grid: a block for each row of each matrix.
inline __global__ void __launch_bounds__(kLowRankThreads)
    multiply_left_kernel(float* left, float* error, const float* gradient, const float* right, LowRank how) {
    const std::int64_t matrix = blockIdx.x / how.rows, i = blockIdx.x % how.rows;
    float* const row = error + static_cast<std::int64_t>(blockIdx.x) * how.cols;
    const float* const added = gradient + static_cast<std::int64_t>(blockIdx.x) * how.cols;
    for (std::int64_t j = threadIdx.x; j < how.cols; j += blockDim.x) row[j] += added[j];   // read by this thread alone
    for (int first = 0; first < how.rank; first += kRanksAtOnce) {
        const float* const factor = right + (matrix * how.rank + first) * how.cols;
        const int ranks = min(kRanksAtOnce, how.rank - first);
        float sums[kRanksAtOnce] = {};
        for (std::int64_t j = threadIdx.x; j < how.cols; j += blockDim.x) {
#pragma unroll
            for (int k = 0; k < kRanksAtOnce; k++) {
                if (k < ranks) sums[k] = fmaf(row[j], factor[k * how.cols + j], sums[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < kRanksAtOnce; k++) {
            if (k >= ranks) continue;   // alike in all threads
            const float sum = block_sum(sums[k]);
            if (threadIdx.x == 0) left[(matrix * how.rank + first + k) * how.rows + i] = sum;
        }
    }
}

// Factors of several tensors, in a kernel's parameters.
struct LeftFactorList {
    static constexpr int kMost = 16;
    int tensors = 0;
    LeftFactors of[kMost];
};

// Grid: a block for each matrix. Each thread reads and writes its own columns alone.
inline __global__ void __launch_bounds__(kOrthogonalThreads) orthogonalize_left_kernel(LeftFactorList list, int rank) {
    std::int64_t matrix = blockIdx.x;
    int tensor = 0;
    while (matrix >= list.of[tensor].count) matrix -= list.of[tensor++].count;
    const std::int64_t rows = list.of[tensor].rows;
    float* const factor = list.of[tensor].left + matrix * rank * rows;
    auto squares_of = [&](const float* row) {
        double sum = 0;
        for (std::int64_t i = threadIdx.x; i < rows; i += blockDim.x) {
            sum = fma(static_cast<double>(row[i]), static_cast<double>(row[i]), sum);
        }
        return block_sum(sum);
    };
    for (int k = 0; k < rank; k++) {
        float* const row = factor + k * rows;
        const double before = squares_of(row);
        for (int turn = 0; turn < 2; turn++) {
            for (int first = 0; first < k; first += kRanksAtOnce) {
                const int ranks = min(kRanksAtOnce, k - first);
                double dots[kRanksAtOnce] = {};
                for (std::int64_t i = threadIdx.x; i < rows; i += blockDim.x) {
                    for (int j = 0; j < ranks; j++) {
                        dots[j] = fma(static_cast<double>(factor[(first + j) * rows + i]), static_cast<double>(row[i]),
                                      dots[j]);
                    }
                }
                for (int j = 0; j < ranks; j++) dots[j] = block_sum(dots[j]);
                for (std::int64_t i = threadIdx.x; i < rows; i += blockDim.x) {
                    double value = static_cast<double>(row[i]);
                    for (int j = 0; j < ranks; j++) {
                        value = fma(-dots[j], static_cast<double>(factor[(first + j) * rows + i]), value);
                    }
                    row[i] = static_cast<float>(value);
                }
            }
        }
        const double after = squares_of(row);
        // also where nothing was; what is not finite makes the whole row NaN
        const bool vanishes = after <= static_cast<double>(kOnlyRounding) * static_cast<double>(kOnlyRounding) * before;
        const double scale = !(before <= DBL_MAX) ? before - before : vanishes ? 0.0 : 1 / sqrt(after);
        for (std::int64_t i = threadIdx.x; i < rows; i += blockDim.x) {
            row[i] = static_cast<float>(static_cast<double>(row[i]) * scale);
        }
    }
}

__host__ __device__ inline std::int64_t row_groups(const LowRank& how) {
    return how.rows < 64 * kMostRowGroups ? ceil_div(how.rows, 64) : kMostRowGroups;
}

// Grid: columns, groups of rows, matrices. Each thread has a column.
inline __global__ void __launch_bounds__(kLowRankThreads)
    multiply_right_kernel(float* partials, const float* left, const float* matrices, LowRank how, std::int64_t width) {
    const std::int64_t groups = row_groups(how), of_group = ceil_div(how.rows, groups);
    const std::int64_t begin = blockIdx.y * of_group, end = begin + of_group < how.rows ? begin + of_group : how.rows;
    const std::int64_t from = blockIdx.x * width, to = from + width < how.cols ? from + width : how.cols;
    const float* const matrix = matrices + blockIdx.z * how.rows * how.cols;
    for (int first = 0; first < how.rank; first += kRanksAtOnce) {
        const float* const factor = left + (blockIdx.z * how.rank + first) * how.rows;
        const int ranks = min(kRanksAtOnce, how.rank - first);
        for (std::int64_t j = from + threadIdx.x; j < to; j += blockDim.x) {
            float sums[kRanksAtOnce] = {};
            for (std::int64_t i = begin; i < end; i++) {
                const float element = matrix[i * how.cols + j];
#pragma unroll
                for (int k = 0; k < kRanksAtOnce; k++) {
                    if (k < ranks) sums[k] = fmaf(factor[k * how.rows + i], element, sums[k]);
                }
            }
            float* const out = partials + ((blockIdx.z * groups + blockIdx.y) * how.rank + first) * how.cols + j;
#pragma unroll
            for (int k = 0; k < kRanksAtOnce; k++) {
                if (k < ranks) out[k * how.cols] = sums[k];
            }
        }
    }
}

// Adds up the groups' sums in their order.
inline __global__ void __launch_bounds__(kLowRankThreads)
    add_groups_kernel(float* right, const float* partials, LowRank how, std::int64_t width) {
    const std::int64_t groups = row_groups(how), of_one = how.rank * how.cols;
    const std::int64_t end = how.count * of_one, from = blockIdx.x * width,
                       to = from + width < end ? from + width : end;
    for (std::int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
        const std::int64_t matrix = i / of_one;
        const float* const parts = partials + matrix * groups * of_one + i % of_one;
        float sum = 0;
        for (std::int64_t g = 0; g < groups; g++) sum += parts[g * of_one];
        right[i] = sum;
    }
}

// Writes out = sign * products, or with `adds` out += sign * products, for elements [begin, end), of which the first is
// out[0].
inline __global__ void __launch_bounds__(kLowRankThreads)
    products_kernel(float* out, std::int64_t begin, std::int64_t end, const float* left, const float* right,
                    LowRank how, float sign, bool adds) {
    const std::int64_t from = begin + blockIdx.x * kProductBlock;
    const std::int64_t to = from + kProductBlock < end ? from + kProductBlock : end;
    for (std::int64_t at = from; at < to;) {   // the part of a row
        const std::int64_t row = at / how.cols, col = at % how.cols, matrix = row / how.rows;
        const std::int64_t count = how.cols - col < to - at ? how.cols - col : to - at;
        for (int first = 0; first < how.rank; first += kRanksAtOnce) {
            const float* const l = left + (matrix * how.rank + first) * how.rows + row % how.rows;
            const float* const r = right + (matrix * how.rank + first) * how.cols + col;
            const int ranks = min(kRanksAtOnce, how.rank - first);
            float factors[kRanksAtOnce];
#pragma unroll
            for (int k = 0; k < kRanksAtOnce; k++) factors[k] = k < ranks ? sign * l[k * how.rows] : 0.0f;
            float* const sums = out + (at - begin);
            const bool writes = first == 0 && !adds;
            for (std::int64_t j = threadIdx.x; j < count; j += blockDim.x) {
                float sum = writes ? 0.0f : sums[j];
#pragma unroll
                for (int k = 0; k < kRanksAtOnce; k++) {
                    if (k < ranks) sum = fmaf(factors[k], r[k * how.cols + j], sum);
                }
                sums[j] = sum;
            }
        }
        at += count;
    }
}

inline Launch low_rank_launch(dim3 blocks, cudaStream_t stream) {
    return {blocks, loop_threads(kLowRankThreads), 0, stream};
}

inline void prepare_right(float* right, const LowRank& how, std::uint64_t key, cudaStream_t stream) {
    const std::int64_t bytes = how.of_right() * static_cast<std::int64_t>(sizeof(float));
    Launch where = low_rank_launch(dim3(static_cast<unsigned>(how.count * how.rank)), stream);
    where.reads(right, bytes).writes(right, bytes);
    launch(prepare_right_kernel, where, right, how, key);
}

inline void multiply_left(float* left, float* error, const float* gradient, const float* right, const LowRank& how,
                          cudaStream_t stream) {
    const std::int64_t bytes = how.elements() * static_cast<std::int64_t>(sizeof(float));
    Launch where = low_rank_launch(dim3(static_cast<unsigned>(how.count * how.rows)), stream);
    where.reads(error, bytes).reads(gradient, bytes).reads(right, how.of_right() * sizeof(float));
    where.writes(error, bytes).writes(left, how.of_left() * sizeof(float));
    launch(multiply_left_kernel, where, left, error, gradient, right, how);
}

inline void orthogonalize_left(const std::vector<LeftFactors>& factors, int rank, cudaStream_t stream) {
    for (std::size_t first = 0; first < factors.size(); first += LeftFactorList::kMost) {
        LeftFactorList list;
        unsigned matrices = 0;
        for (std::size_t i = first; i < factors.size() && list.tensors < LeftFactorList::kMost; i++) {
            list.of[list.tensors++] = factors[i];
            matrices += static_cast<unsigned>(factors[i].count);
        }
        Launch where{dim3(matrices), loop_threads(kOrthogonalThreads), 0, stream};
        for (int i = 0; i < list.tensors; i++) {
            const std::int64_t elements = list.of[i].count * rank * list.of[i].rows;
            where.reads(list.of[i].left, elements * sizeof(float)).writes(list.of[i].left, elements * sizeof(float));
        }
        launch(orthogonalize_left_kernel, where, list, rank);
    }
}

inline std::int64_t right_partials(const LowRank& how) { return row_groups(how) * how.of_right(); }

inline void multiply_right(float* right, float* partials, const float* left, const float* matrices, const LowRank& how,
                           cudaStream_t stream) {
    constexpr std::int64_t width = kLowRankThreads;
    Launch products = low_rank_launch(dim3(static_cast<unsigned>(ceil_div(how.cols, width)),
                                           static_cast<unsigned>(row_groups(how)), static_cast<unsigned>(how.count)),
                                      stream);
    products.reads(left, how.of_left() * sizeof(float)).reads(matrices, how.elements() * sizeof(float));
    products.writes(partials, right_partials(how) * sizeof(float));
    launch(multiply_right_kernel, products, partials, left, matrices, how, width);
    Launch sums = low_rank_launch(dim3(static_cast<unsigned>(ceil_div(how.of_right(), width))), stream);
    sums.reads(partials, right_partials(how) * sizeof(float)).writes(right, how.of_right() * sizeof(float));
    launch(add_groups_kernel, sums, right, partials, how, width);
}

inline void subtract_products(float* matrices, const float* left, const float* right, const LowRank& how,
                              cudaStream_t stream) {
    const std::int64_t bytes = how.elements() * static_cast<std::int64_t>(sizeof(float));
    Launch where = low_rank_launch(dim3(static_cast<unsigned>(ceil_div(how.elements(), kProductBlock))), stream);
    where.reads(left, how.of_left() * sizeof(float)).reads(right, how.of_right() * sizeof(float));
    where.reads(matrices, bytes).writes(matrices, bytes);
    launch(products_kernel, where, matrices, std::int64_t{0}, how.elements(), left, right, how, -1.0f, true);
}

inline void write_products(float* out, std::int64_t first, std::int64_t n, const float* left, const float* right,
                           const LowRank& how, cudaStream_t stream) {
    const std::int64_t end = std::min(first + n, how.elements());
    if (end <= first) return;
    Launch where = low_rank_launch(dim3(static_cast<unsigned>(ceil_div(end - first, kProductBlock))), stream);
    where.reads(left, how.of_left() * sizeof(float)).reads(right, how.of_right() * sizeof(float));
    where.writes(out, (end - first) * static_cast<std::int64_t>(sizeof(float)));
    launch(products_kernel, where, out, first, end, left, right, how, 1.0f, false);
}
