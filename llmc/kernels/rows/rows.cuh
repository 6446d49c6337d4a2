// Building blocks of kernels that reduce over rows of C elements and keep the row in registers between the steps.
//
// blockDim.x threads share a row: one warp up to C = 768, more warps beyond. A block holds blockDim.y rows. Each thread
// keeps at most three pieces of eight elements, at columns 8 * (j * blockDim.x + threadIdx.x), so a row is read from
// memory once. Threads whose row or column lies outside take part with zeros: every thread reaches every reduction.
// Rows of more than kKeptRowMaxColumns are not kept but read again, one block per row: wide_rows.cuh has the same
// building blocks for them. On a CPU one thread handles a row of any width (loop_threads in launch.cuh), in that way.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "llmc/base/check.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/ptx/ptx.cuh"
#include "llmc/kernels/rows/reduce.cuh"
#include "llmc/kernels/vec.cuh"

constexpr int kRowParts = 3;       // pieces of eight elements a thread keeps
constexpr int kRowThreads = 512;   // the largest block: leaves 128 registers to a thread
constexpr int kKeptRowMaxColumns = kRowThreads * kRowParts * 8;

// Threads of a block: x along the row, y rows side by side.
inline dim3 row_block(int C) {
    ENSURE(C >= 1, "rows of C=", C, " channels");
    int warps = ceil_div(std::min(C, kKeptRowMaxColumns), 32 * kRowParts * 8);
    int rows = warps < 8 ? 8 / warps : 1;
    return dim3(loop_threads(static_cast<unsigned>(32 * warps)), static_cast<unsigned>(rows));
}

inline Launch row_launch(int rows, int C, cudaStream_t stream, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
    dim3 block = row_block(C);
    return {dim3(blocks_for(rows, block.y)), block, 0, stream, file, line};
}

// Blocks of kRowThreads that a multiprocessor can hold at once, for __launch_bounds__: two if rows are packets. Other
// rows need more registers than two such blocks leave.
template <class AnyExtent>
constexpr int kRowBlocks = std::is_same_v<AnyExtent, PacketExtent> ? 2 : 1;

// Unroll factor of loops over a thread's parts of a row: all parts; wide rows have any number of parts and are not
// unrolled.
template <class AnyExtent>
constexpr int kUnrolledParts = kRowParts;

// Returns the row of this thread when each block handles blockDim.y consecutive rows.
__device__ __forceinline__ int first_row() { return static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y); }

// Groups of blockDim.y rows that one block of a smaller grid takes in turns, given by their first rows.
template <class AnyExtent>
struct RowTurns {
    int first, end, step;

    __device__ __forceinline__ explicit RowTurns(int rows)
        : first(static_cast<int>(blockIdx.x * blockDim.y)), end(rows), step(static_cast<int>(gridDim.x * blockDim.y)) {}
};

// Returns the sum over the threads of a row to each of them. Every thread of the block must call it.
template <class T, class Sum>
__device__ __forceinline__ T over_row_threads(T value, Sum sum) {
    value = warp_butterfly(value, sum);
    const int warps = static_cast<int>(blockDim.x / 32);
    if (warps == 1) return value;
    __shared__ T of_warp[kRowThreads / 32];
    const int first = static_cast<int>(threadIdx.y) * warps;
    if (threadIdx.x % 32 == 0) of_warp[first + threadIdx.x / 32] = value;
    __syncthreads();
    T total = of_warp[first];
    for (int w = 1; w < warps; w++) total = sum(total, of_warp[first + w]);
    __syncthreads();   // before of_warp is written again
    return total;
}

// Two sums that are computed at once.
struct RowSums {
    float a, b;
};
struct AddRowSums {
    __device__ RowSums operator()(RowSums x, RowSums y) const { return {x.a + y.a, x.b + y.b}; }
};

// One thread's share of one row. AnyExtent is Extent or PacketExtent, of C elements.
template <class AnyExtent>
struct RowOfThread {
    static constexpr bool whole_pieces = std::is_same_v<AnyExtent, PacketExtent>;   // C is a multiple of eight
    AnyExtent extent;
    std::int64_t row;
    bool inside;   // false: there is no such row; loads give zero and stores do nothing

    __device__ __forceinline__ RowOfThread(int rows, AnyExtent row_extent, int index)
        : extent(row_extent), row(index), inside(index < rows) {}

    __device__ __forceinline__ int C() const { return static_cast<int>(extent.count); }
    // Returns the most pieces that a thread has: a constant, for loops over registers.
    __device__ __forceinline__ int parts() const { return kRowParts; }
    __device__ __forceinline__ int column(int part) const {
        return static_cast<int>((part * blockDim.x + threadIdx.x) * 8);
    }
    __device__ __forceinline__ bool has(int part) const { return inside && column(part) < C(); }
    __device__ __forceinline__ bool leads() const { return inside && threadIdx.x == 0; }

    // Return a piece of this row of a (rows, C) tensor, and of a vector of C elements that all rows share.
    template <class T>
    __device__ __forceinline__ Vec8<T> load(const T* tensor, int part) const {
        return has(part) ? load8(tensor + row * extent.count, column(part), extent) : Vec8<T>{};
    }
    template <class T>
    __device__ __forceinline__ Vec8<T> load_shared_by_rows(const T* vector, int part) const {
        return has(part) ? load8(vector, column(part), extent) : Vec8<T>{};
    }
    template <class T>
    __device__ __forceinline__ void store(T* tensor, int part, const Vec8<T>& v) const {
        if (has(part)) store8(tensor + row * extent.count, column(part), extent, v);
    }
    // Prefetches a piece that will be loaded later.
    template <class T>
    __device__ __forceinline__ void fetch_ahead(const T* tensor, int part) const {
        if (has(part)) prefetch_to_l2(tensor + row * extent.count + column(part));
    }

    __device__ __forceinline__ float sum(float v) const { return over_row_threads(v, ReduceSum()); }
    __device__ __forceinline__ RowSums sums(RowSums v) const { return over_row_threads(v, AddRowSums()); }
};

// Pieces of a (rows, C) tensor's row that a thread keeps in registers.
template <class T, class AnyExtent>
struct KeptRow {
    Vec8<T> pieces[kRowParts];

    __device__ __forceinline__ explicit KeptRow(const T*) {}
    __device__ __forceinline__ void keep(int part, const Vec8<T>& piece) { pieces[part] = piece; }
    __device__ __forceinline__ Vec8<T> piece(const RowOfThread<AnyExtent>&, int part) const { return pieces[part]; }
};

// Sums a thread's pieces of a row.
template <class AnyExtent>
struct PieceSum {
    float sum = 0;

    __device__ __forceinline__ void add(const Vec8<float>& piece) { sum += sum8(piece); }
    __device__ __forceinline__ float total() const { return sum; }
};

// Two sums, x and y, for each of C columns, over the rows that a block has seen: a thread keeps its columns' sums in
// registers. `store` writes the block's sums to `of_block` (2, C), adding the rows side by side (threadIdx.y) in order.
template <class AnyExtent>
struct ColumnSums {
    Vec8<float> xs[kRowParts] = {}, ys[kRowParts] = {};

    static std::size_t shared_bytes(int C) { return 2 * C * sizeof(float); }   // (2, C), for `store`

    __device__ __forceinline__ ColumnSums(float*, AnyExtent) {}
    __device__ __forceinline__ Vec8<float> x(int part) const { return xs[part]; }
    __device__ __forceinline__ Vec8<float> y(int part) const { return ys[part]; }
    __device__ __forceinline__ void set(int part, const Vec8<float>& x, const Vec8<float>& y) {
        xs[part] = x, ys[part] = y;
    }
    __device__ __forceinline__ void store(float* of_block, float* shared, const RowOfThread<AnyExtent>& row) const {
        const int C = row.C();
        for (unsigned turn = 0; turn < blockDim.y; turn++) {
            if (turn == threadIdx.y) {
#pragma unroll
                for (int j = 0; j < kRowParts; j++) {
                    const int c = row.column(j);
                    if (c >= C) continue;
                    Vec8<float> x = xs[j], y = ys[j];
                    if (turn > 0) x = add8(load8(shared, c, row.extent), x);
                    if (turn > 0) y = add8(load8(shared + C, c, row.extent), y);
                    store8(shared, c, row.extent, x);
                    store8(shared + C, c, row.extent, y);
                }
            }
            __syncthreads();
        }
        const int thread = static_cast<int>(block_thread()), threads = static_cast<int>(block_threads());
        for (int i = thread; i < 2 * C; i += threads) of_block[i] = shared[i];
    }
};

#include "llmc/kernels/rows/wide_rows.cuh"

// Calls launch_with(extent) with an extent type for rows of C elements: whether every row begins at a packet, and
// whether a row fits the registers of a block (rows that are not whole packets: up to kOddRowMaxColumns).
template <int kOddRowMaxColumns = kKeptRowMaxColumns, class LaunchWith, class... T>
void with_row_extent(int C, LaunchWith launch_with, const T*... pointers) {
    with_extent_type(row_extent(C, pointers...), [&](auto known) {
        constexpr bool packets = std::is_same_v<decltype(known), PacketExtent>;
        if (row_block(C).x == 1 || C > (packets ? kKeptRowMaxColumns : kOddRowMaxColumns))
            return launch_with(WideRows<decltype(known)>{known});
        launch_with(known);
    });
}
