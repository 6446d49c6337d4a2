// Multiplies groups of rows, each with a matrix of its own: the linear layers of a mixture of experts.
//
// Rows of one group are adjacent: group g has the rows offsets[g] ... offsets[g + 1] - 1. The offsets are on the device
// and only read there: no host waits to learn how many rows a group has. A group may have none.
//     forward           out(M,N)        = in(M,K) weight(g,N,K)^T
//     input gradient    dinp(M,K)       = dout(M,N) weight(g,N,K)
//     weight gradient   dweight(g,N,K)  = dout(M,N)^T in(M,K), over the rows of the group
// One kernel computes all three, by fp32 FMA. A block computes a tile of 64 x 64 of the result, and each of its 64
// threads 8 x 8 of that in registers; operands come through shared memory, 32 steps of the sum at a time.
//
// An element's sum is taken in ascending order in every case. So a row's results do not depend on the rows beside it,
// nor on which ranks have the other groups.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/vec.cuh"

// Sizes of a grouped matmul. All groups together have at most `M` rows, in fact offsets[groups]. Null offsets: one
// group has all M rows.
struct GroupedShape {
    int groups, M, N, K;
    const std::int32_t* offsets;
};

// Computes the forward product. A and B: element types of the two factors, in the order of the arguments; Out: of the
// result. N and K need not be multiples of anything.
template <class Out, class A, class B>
void grouped_forward(Out* out, const A* in, const B* weight, const GroupedShape& shape, cudaStream_t stream);
// Computes the gradient; with `accumulate`, adds it to the result, rounded once.
template <class Out, class A, class B>
void grouped_input_gradient(Out* dinp, const A* dout, const B* weight, const GroupedShape& shape, bool accumulate,
                            cudaStream_t stream);
template <class Out, class A, class B>
void grouped_weight_gradient(Out* dweight, const A* dout, const B* in, const GroupedShape& shape, bool accumulate,
                             cudaStream_t stream);

// ---------------------------------------------------------------------------------------------------------------------

constexpr int kGroupedTile = 64;      // rows and columns of a block's part of the result
constexpr int kGroupedStep = 32;      // steps of the sum in shared memory at once
constexpr int kGroupedThreads = 64;   // 8 x 8, each with 8 x 8 elements

// out(M,N) = sum over k of a(m,k) b(n,k). Either the rows of a and out belong to groups, and each group has its own b;
// or the steps of the sum belong to groups, and each group has its own out.
template <class Out, class A, class B>
struct GroupedProduct {
    Out* out;
    const A* a;
    const B* b;
    int M, N, K, groups;
    const std::int32_t* offsets;
    std::int64_t a_stride, b_stride;   // from one row of memory to the next
    bool a_packets, b_packets, accumulate;
};

enum class Along { sum, rows };   // index of a factor whose elements are adjacent in memory

// Loads 64 rows x 32 steps of a factor into shared memory as [step][row], with zeros outside.
template <Along along, class T>
__device__ __forceinline__ void load_grouped_tile(float (&tile)[kGroupedStep][kGroupedTile], const T* from,
                                                  std::int64_t stride, bool packets, int row, int row_end, int step,
                                                  int step_end) {
    constexpr int pieces = kGroupedTile * kGroupedStep / 8;
    for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kGroupedThreads) {
        if constexpr (along == Along::sum) {
            const int r = i / (kGroupedStep / 8), s = i % (kGroupedStep / 8) * 8;
            Vec8<float> piece{};
            if (row + r < row_end) {
                piece = to_floats(load8(from + (row + r) * stride, step + s, Extent{step_end, packets}));
            }
            for (int k = 0; k < 8; k++) tile[s + k][r] = piece[k];
        } else {
            const int s = i / (kGroupedTile / 8), r = i % (kGroupedTile / 8) * 8;
            Vec8<float> piece{};
            if (step + s < step_end) {
                piece = to_floats(load8(from + (step + s) * stride, row + r, Extent{row_end, packets}));
            }
            store_packets(&tile[s][r], piece);
        }
    }
}

// Finds the group and the rows [row, end) of tile number `tile`, counted over all groups; returns false if there are
// fewer tiles.
__device__ __forceinline__ bool grouped_tile(const std::int32_t* offsets, int groups, int tile, int& group, int& row,
                                             int& end) {
    for (group = 0; group < groups; group++) {
        const int begin = offsets[group];
        end = offsets[group + 1];
        const int tiles = ceil_div(end - begin, kGroupedTile);
        if (tile < tiles) {
            row = begin + tile * kGroupedTile;
            return true;
        }
        tile -= tiles;
    }
    return false;
}

template <Along a_along, Along b_along, bool sums_belong_to_groups, class Out, class A, class B>
__global__ void __launch_bounds__(kGroupedThreads) grouped_product_kernel(GroupedProduct<Out, A, B> p) {
    __shared__ __align__(16) float a_tile[kGroupedStep][kGroupedTile], b_tile[kGroupedStep][kGroupedTile];
    const int column = static_cast<int>(blockIdx.x) * kGroupedTile;
    int group = 0, row = static_cast<int>(blockIdx.y) * kGroupedTile, row_end = p.M, first = 0, end = p.K;
    if constexpr (sums_belong_to_groups) {
        group = static_cast<int>(blockIdx.z);
        if (p.offsets != nullptr) first = p.offsets[group], end = p.offsets[group + 1];
        p.out += static_cast<std::int64_t>(group) * p.M * p.N;
    } else if (p.offsets != nullptr) {
        if (!grouped_tile(p.offsets, p.groups, static_cast<int>(blockIdx.y), group, row, row_end)) return;
        p.b += static_cast<std::int64_t>(group) * p.N * p.K;
    }

    Vec8<float> sums[8] = {};
    const int own_row = static_cast<int>(threadIdx.x) / 8 * 8, own_column = static_cast<int>(threadIdx.x) % 8 * 8;
    for (int step = first; step < end; step += kGroupedStep) {
        load_grouped_tile<a_along>(a_tile, p.a, p.a_stride, p.a_packets, row, row_end, step, end);
        load_grouped_tile<b_along>(b_tile, p.b, p.b_stride, p.b_packets, column, p.N, step, end);
        __syncthreads();
        const int steps = min(kGroupedStep, end - step);
        for (int s = 0; s < steps; s++) {
            const Vec8<float> b = load_packets<8>(&b_tile[s][own_column]);
            const Vec8<float> a = load_packets<8>(&a_tile[s][own_row]);
#pragma unroll
            for (int i = 0; i < 8; i++) {
#pragma unroll
                for (int k = 0; k < 8; k++) sums[i][k] = fmaf(a[i], b[k], sums[i][k]);
            }
        }
        __syncthreads();
    }

    const bool packets = p.N % 8 == 0 && reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0;
    for (int i = 0; i < 8; i++) {
        const int m = row + own_row + i;
        if (m >= row_end || column + own_column >= p.N) continue;
        Out* const to = p.out + static_cast<std::int64_t>(m) * p.N;
        const Extent extent{p.N, packets};
        if (p.accumulate) {
            const Vec8<float> before = to_floats(load8(to, column + own_column, extent));
#pragma unroll
            for (int k = 0; k < 8; k++) sums[i][k] += before[k];
        }
        store8(to, column + own_column, extent, round_to<Out>(sums[i]));
    }
}

template <Along a_along, Along b_along, bool sums_belong_to_groups, class Out, class A, class B>
void launch_grouped(GroupedProduct<Out, A, B> p, const GroupedShape& shape, cudaStream_t stream, const char* file,
                    int line) {
    if (p.M == 0 || p.N == 0 || p.groups == 0) return;
    p.a_packets = p.a_stride % 8 == 0 && packets_fit(p.a);
    p.b_packets = p.b_stride % 8 == 0 && packets_fit(p.b);
    // The last tile of every group may be short.
    const int row_tiles =
        ceil_div(p.M, kGroupedTile) + (sums_belong_to_groups || p.offsets == nullptr ? 0 : p.groups - 1);
    const std::size_t a_elements = static_cast<std::size_t>(shape.M) * static_cast<std::size_t>(p.a_stride);
    const std::size_t matrix =
        static_cast<std::size_t>(shape.groups) * static_cast<std::size_t>(shape.N) * static_cast<std::size_t>(shape.K);
    const std::size_t rows_of_b = static_cast<std::size_t>(shape.M) * static_cast<std::size_t>(p.b_stride);
    const std::size_t out =
        sums_belong_to_groups ? matrix : static_cast<std::size_t>(p.M) * static_cast<std::size_t>(p.N);
    Launch where{dim3(blocks_for(p.N, kGroupedTile), static_cast<unsigned>(row_tiles),
                      sums_belong_to_groups ? static_cast<unsigned>(p.groups) : 1u),
                 dim3(kGroupedThreads),
                 0,
                 stream,
                 file,
                 line};
    where.reads(p.a, sizeof(A) * a_elements).reads(p.b, sizeof(B) * (sums_belong_to_groups ? rows_of_b : matrix));
    where.reads(p.offsets, sizeof(std::int32_t) * static_cast<std::size_t>(shape.groups + 1));
    where.writes(p.out, sizeof(Out) * out).multiplies(2.0 * shape.M * shape.N * shape.K);
    launch(grouped_product_kernel<a_along, b_along, sums_belong_to_groups, Out, A, B>, where, p);
}

template <class Out, class A, class B>
void grouped_forward(Out* out, const A* in, const B* weight, const GroupedShape& shape, cudaStream_t stream) {
    const GroupedProduct<Out, A, B> product{out,           in,      weight,  shape.M, shape.N, shape.K, shape.groups,
                                            shape.offsets, shape.K, shape.K, false,   false,   false};
    launch_grouped<Along::sum, Along::sum, false>(product, shape, stream, __builtin_FILE(), __builtin_LINE());
}

template <class Out, class A, class B>
void grouped_input_gradient(Out* dinp, const A* dout, const B* weight, const GroupedShape& shape, bool accumulate,
                            cudaStream_t stream) {
    const GroupedProduct<Out, A, B> product{dinp,          dout,    weight,  shape.M, shape.K, shape.N,   shape.groups,
                                            shape.offsets, shape.N, shape.K, false,   false,   accumulate};
    launch_grouped<Along::sum, Along::rows, false>(product, shape, stream, __builtin_FILE(), __builtin_LINE());
}

template <class Out, class A, class B>
void grouped_weight_gradient(Out* dweight, const A* dout, const B* in, const GroupedShape& shape, bool accumulate,
                             cudaStream_t stream) {
    const GroupedProduct<Out, A, B> product{dweight,       dout,    in,      shape.N, shape.K, shape.M,   shape.groups,
                                            shape.offsets, shape.N, shape.K, false,   false,   accumulate};
    launch_grouped<Along::rows, Along::rows, true>(product, shape, stream, __builtin_FILE(), __builtin_LINE());
}
