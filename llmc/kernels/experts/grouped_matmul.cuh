// Multiplies groups of rows, each with a matrix of its own: the linear layers of a mixture of experts.
//
// Rows of one group are adjacent: group g has the rows offsets[g] ... offsets[g + 1] - 1. The offsets are on the device
// and only read there: no host waits to learn how many rows a group has. A group may have none. Rows of `in`
// and of `dout` may be gathered where they are loaded (GatheredRows): then memory has no copy in the order of groups.
//     forward           out(M,N)        = in(M,K) weight(g,N,K)^T
//     input gradient    dinp(M,K)       = dout(M,N) weight(g,N,K)
//     weight gradient   dweight(g,N,K)  = dout(M,N)^T in(M,K), over the rows of the group
// One kernel computes all three on tensor cores, where both factors are bf16 (grouped_mma.cuh). The kernel below
// computes all else by fp32 FMA: a block a tile of 64 x 64 of the result, and each of its 64 threads 8 x 8 of that in
// registers; operands come through shared memory, 32 steps of the sum at a time.
//
// An element's sum is taken in ascending order in every case. So a row's results do not depend on the rows beside it,
// nor on which ranks have the other groups.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/base/stand_in.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/experts/grouped_mma.cuh"
#include "llmc/kernels/experts/grouped_product.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/vec.cuh"

// Computes the forward product. A and B: element types of the two factors, in the order of the arguments; Out: of the
// result. N and K need not be multiples of anything.
template <class Out, class A, class B>
void grouped_forward(Out* out, const A* in, const B* weight, const GroupedShape& shape, cudaStream_t stream,
                     const GatheredRows& in_rows = {});
// Computes the gradient; with `accumulate`, adds it to the result, rounded once.
template <class Out, class A, class B>
void grouped_input_gradient(Out* dinp, const A* dout, const B* weight, const GroupedShape& shape, bool accumulate,
                            cudaStream_t stream, const GatheredRows& dout_rows = {});
template <class Out, class A, class B>
void grouped_weight_gradient(Out* dweight, const A* dout, const B* in, const GroupedShape& shape, bool accumulate,
                             cudaStream_t stream, const GatheredRows& dout_rows = {}, const GatheredRows& in_rows = {});

// ---------------------------------------------------------------------------------------------------------------------

constexpr int kGroupedTile = 64;      // rows and columns of a block's part of the result
constexpr int kGroupedStep = 32;      // steps of the sum in shared memory at once
constexpr int kGroupedThreads = 64;   // 8 x 8, each with 8 x 8 elements

// Loads 64 rows x 32 steps of a factor into shared memory as [step][row], with zeros outside. memory_row(i): the row of
// the factor's memory that row i, or step i, is in.
template <Along along, class T, class MemoryRow>
__device__ __forceinline__ void load_grouped_tile(float (&tile)[kGroupedStep][kGroupedTile], const T* from,
                                                  std::int64_t stride, bool packets, const MemoryRow& memory_row,
                                                  int row, int row_end, int step, int step_end) {
    constexpr int pieces = kGroupedTile * kGroupedStep / 8;
    for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kGroupedThreads) {
        if constexpr (along == Along::sum) {
            const int r = i / (kGroupedStep / 8), s = i % (kGroupedStep / 8) * 8;
            Vec8<float> piece{};
            if (row + r < row_end) {
                piece = to_floats(load8(from + memory_row(row + r) * stride, step + s, Extent{step_end, packets}));
            }
            for (int k = 0; k < 8; k++) tile[s + k][r] = piece[k];
        } else {
            const int s = i / (kGroupedTile / 8), r = i % (kGroupedTile / 8) * 8;
            Vec8<float> piece{};
            if (step + s < step_end) {
                piece = to_floats(load8(from + memory_row(step + s) * stride, row + r, Extent{row_end, packets}));
            }
            store_packets(&tile[s][r], piece);
        }
    }
}

template <class Product>
__global__ void __launch_bounds__(kGroupedThreads) grouped_product_kernel(Product p) {
    __shared__ __align__(16) float a_tile[kGroupedStep][kGroupedTile], b_tile[kGroupedStep][kGroupedTile];
    const int column = static_cast<int>(blockIdx.x) * kGroupedTile;
    const bool a_packets = p.a_packets(), b_packets = p.b_packets();
    const auto a_row = [&](int i) { return p.a_row(i); };
    const auto b_row = [&](int i) { return p.b_row(i); };
    GroupedPart part;
    if (!find_grouped_part<kGroupedTile>(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z), part)) return;

    Vec8<float> sums[8] = {};
    const int own_row = static_cast<int>(threadIdx.x) / 8 * 8, own_column = static_cast<int>(threadIdx.x) % 8 * 8;
    for (int step = part.step; step < part.step_end; step += kGroupedStep) {
        load_grouped_tile<Product::a_along>(a_tile, p.a, p.a_stride, a_packets, a_row, part.row, part.row_end, step,
                                            part.step_end);
        load_grouped_tile<Product::b_along>(b_tile, p.b, p.b_stride, b_packets, b_row, column, p.N, step,
                                            part.step_end);
        __syncthreads();
        const int steps = min(kGroupedStep, part.step_end - step);
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

#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int m = part.row + own_row + i;
        if (m < part.row_end && column + own_column < p.N) p.store(m, column + own_column, sums[i]);
    }
}

// Returns true if products of bf16 run on tensor cores: not on a CPU, where models of their instructions are slow, nor
// where the instructions disagree with the models.
inline bool grouped_uses_tensor_cores() { return uses_tensor_cores() && stand_in() == nullptr; }

template <class Product>
void launch_grouped(const Product& p, cudaStream_t stream, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
    if (p.M == 0 || p.N == 0 || p.groups == 0) return;
    if constexpr (grouped_mma_exists<Product>()) {
        if (grouped_uses_tensor_cores() && grouped_mma_serves(p)) return launch_grouped_mma(p, stream, file, line);
    }
    const dim3 grid(blocks_for(p.N, kGroupedTile), static_cast<unsigned>(grouped_row_tiles<kGroupedTile>(p)),
                    Product::sums_belong_to_groups ? static_cast<unsigned>(p.groups) : 1u);
    launch(grouped_product_kernel<Product>, grouped_launch(p, grid, kGroupedThreads, 0, stream, file, line), p);
}

template <class Out, class A, class B>
void grouped_forward(Out* out, const A* in, const B* weight, const GroupedShape& shape, cudaStream_t stream,
                     const GatheredRows& in_rows) {
    launch_grouped(forward_product(out, in, weight, shape, in_rows), stream);
}

template <class Out, class A, class B>
void grouped_input_gradient(Out* dinp, const A* dout, const B* weight, const GroupedShape& shape, bool accumulate,
                            cudaStream_t stream, const GatheredRows& dout_rows) {
    launch_grouped(input_gradient_product(dinp, dout, weight, shape, accumulate, dout_rows), stream);
}

template <class Out, class A, class B>
void grouped_weight_gradient(Out* dweight, const A* dout, const B* in, const GroupedShape& shape, bool accumulate,
                             cudaStream_t stream, const GatheredRows& dout_rows, const GatheredRows& in_rows) {
    launch_grouped(weight_gradient_product(dweight, dout, in, shape, accumulate, dout_rows, in_rows), stream);
}
