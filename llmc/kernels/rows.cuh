// The shape of kernels that reduce over rows of C elements and keep the row in registers between the steps.
//
// A row belongs to blockDim.x threads: one warp up to C = 768, more warps beyond. A block holds blockDim.y rows. Each
// thread keeps at most three pieces of eight elements, at columns 8 * (j * blockDim.x + threadIdx.x), so a row is read
// from memory once. Threads whose row or column lies outside take part with zeros: every thread reaches every
// reduction.
//
// On a CPU one thread has all of a row (loop_threads in launch.cuh). It keeps nothing: what it read a moment ago it
// reads again, from the nearest cache. An extent of the type LoopExtent chooses that form when compiling.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "llmc/base/error.h"
#include "llmc/kernels/elementwise.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/reduce.cuh"
#include "llmc/kernels/vec.cuh"

constexpr int kRowParts = 3;       // pieces of eight elements a thread keeps
constexpr int kRowThreads = 512;   // the largest block: leaves 128 registers to a thread
constexpr int kRowMaxColumns = kRowThreads * kRowParts * 8;

// Rows that belong to one thread each: any number of pieces. Base is Extent or PacketExtent.
template <class Base>
struct LoopExtent : Base {};
template <class AnyExtent>
constexpr bool kLoops = false;
template <class Base>
constexpr bool kLoops<LoopExtent<Base>> = true;

// Threads of a block: x along the row, y rows side by side.
inline dim3 row_block(int C) {
    if (C < 1 || C > kRowMaxColumns) {
        throw Error(ErrorKind::usage,
                    text("rows of C=", C, " channels: layer normalisation handles 1 to ", kRowMaxColumns),
                    "Choose a model with fewer --channels.");
    }
    int warps = (C + 32 * kRowParts * 8 - 1) / (32 * kRowParts * 8);
    int rows = warps < 8 ? 8 / warps : 1;
    return dim3(loop_threads(static_cast<unsigned>(32 * warps)), static_cast<unsigned>(rows));
}

inline Launch row_launch(int rows, int C, cudaStream_t stream, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
    dim3 block = row_block(C);
    return {dim3(blocks_for(rows, block.y)), block, 0, stream, file, line};
}

// Calls launch_with(extent) with what is known of rows of C elements: every row begins at a packet, or not; in blocks
// of row_block(C) they belong to one thread, or not.
template <class LaunchWith, class... T>
void with_row_extent(int C, LaunchWith launch_with, const T*... pointers) {
    Extent extent = row_extent(C, pointers...);
    if constexpr (loop_threads_may_be_one) {
        if (row_block(C).x == 1) {
            if (extent.packets)
                launch_with(LoopExtent<PacketExtent>{{C}});
            else
                launch_with(LoopExtent<Extent>{extent});
            return;
        }
    }
    if (extent.packets)
        launch_with(PacketExtent{C});
    else
        launch_with(extent);
}

// Blocks of kRowThreads that a multiprocessor can hold at once, for __launch_bounds__: two where rows are packets. The
// way for all other rows needs more registers than two such blocks leave.
template <class AnyExtent>
constexpr int kRowBlocks = std::is_same_v<AnyExtent, PacketExtent> ? 2 : 1;

// The row of this thread when each block handles blockDim.y consecutive rows.
__device__ __forceinline__ int first_row() { return static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y); }

// One thread's share of one row. AnyExtent is Extent or PacketExtent, of C elements, or a LoopExtent of them.
template <class AnyExtent>
struct RowOfThread {
    AnyExtent extent;
    std::int64_t row;
    bool inside;   // false: there is no such row, everything reads as zero and nothing is stored

    __device__ __forceinline__ RowOfThread(int rows, AnyExtent row_extent, int index)
        : extent(row_extent), row(index), inside(index < rows) {}

    __device__ __forceinline__ int C() const { return static_cast<int>(extent.count); }
    // How many pieces the thread has at most: a constant, for loops over registers, unless the row is all its own.
    __device__ __forceinline__ int parts() const {
        if constexpr (kLoops<AnyExtent>)
            return inside ? ceil_div(C(), 8) : 0;
        else
            return kRowParts;
    }
    __device__ __forceinline__ int column(int part) const {
        if constexpr (kLoops<AnyExtent>)
            return part * 8;
        else
            return static_cast<int>((part * blockDim.x + threadIdx.x) * 8);
    }
    __device__ __forceinline__ bool has(int part) const {
        if constexpr (kLoops<AnyExtent>)
            return true;   // of those below parts()
        else
            return inside && column(part) < C();
    }
    __device__ __forceinline__ bool leads() const { return inside && threadIdx.x == 0; }

    // A piece of this row of a (rows, C) tensor, and of a vector of C elements that all rows share.
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
};

// What a thread keeps of its row of a (rows, C) tensor: pieces in registers. A thread with the whole row reads `tensor`
// again.
template <class T, class AnyExtent>
struct KeptRow {
    Vec8<T> pieces[kRowParts];

    __device__ __forceinline__ explicit KeptRow(const T*) {}
    __device__ __forceinline__ void keep(int part, const Vec8<T>& piece) { pieces[part] = piece; }
    __device__ __forceinline__ Vec8<T> piece(const RowOfThread<AnyExtent>&, int part) const { return pieces[part]; }
};
template <class T, class Base>
struct KeptRow<T, LoopExtent<Base>> {
    const T* tensor;

    __device__ __forceinline__ explicit KeptRow(const T* of) : tensor(of) {}
    __device__ __forceinline__ void keep(int, const Vec8<T>&) {}
    __device__ __forceinline__ Vec8<T> piece(const RowOfThread<LoopExtent<Base>>& row, int part) const {
        return row.load(tensor, part);
    }
};

// Sums a thread's pieces of a row: each at once, or, where there are many, first lane by lane.
template <class AnyExtent>
struct PieceSum {
    float sum = 0;

    __device__ __forceinline__ void add(const Vec8<float>& piece) { sum += sum8(piece); }
    __device__ __forceinline__ float total() const { return sum; }
};
template <class Base>
struct PieceSum<LoopExtent<Base>> {
    Vec8<float> lanes = {};

    __device__ __forceinline__ void add(const Vec8<float>& piece) {
        VECTOR_LOOP
        for (int k = 0; k < 8; k++) lanes[k] += piece[k];
    }
    __device__ __forceinline__ float total() const { return sum8(lanes); }
};

// Sums over the threads of a row, given to each of them. Every thread of the block must call it.
struct RowSums {
    float a, b;
};
struct AddRowSums {
    __device__ RowSums operator()(RowSums x, RowSums y) const { return {x.a + y.a, x.b + y.b}; }
};
template <class AnyExtent>
__device__ __forceinline__ RowSums row_sums(RowSums v) {
    if constexpr (kLoops<AnyExtent>) return v;
    v = warp_butterfly(v, AddRowSums());
    const int warps = static_cast<int>(blockDim.x / 32);
    if (warps == 1) return v;
    __shared__ RowSums of_warp[kRowThreads / 32];
    const int first = static_cast<int>(threadIdx.y) * warps;
    if (threadIdx.x % 32 == 0) of_warp[first + threadIdx.x / 32] = v;
    __syncthreads();
    RowSums total = {0, 0};
    for (int w = 0; w < warps; w++) total = {total.a + of_warp[first + w].a, total.b + of_warp[first + w].b};
    __syncthreads();   // before of_warp is written again
    return total;
}
template <class AnyExtent>
__device__ __forceinline__ float row_sum(float v) {
    if constexpr (kLoops<AnyExtent>) return v;
    v = warp_sum(v);
    const int warps = static_cast<int>(blockDim.x / 32);
    if (warps == 1) return v;
    __shared__ float of_warp[kRowThreads / 32];
    const int first = static_cast<int>(threadIdx.y) * warps;
    if (threadIdx.x % 32 == 0) of_warp[first + threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0;
    for (int w = 0; w < warps; w++) total += of_warp[first + w];
    __syncthreads();
    return total;
}
