// Describes a product of groups of rows, for the kernels of grouped_matmul.cuh and grouped_mma.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/vec.cuh"

// Sizes of a grouped matmul. All groups together have at most `M` rows, in fact offsets[groups]. Null offsets: one
// group has all M rows.
struct GroupedShape {
    int groups, M, N, K;
    const std::int32_t* offsets;
};

// Rows of a factor that are gathered where they are loaded: the groups' row r is row source[r] / K of the factor, which
// has a row for each of `tokens`. Null `source`: the groups' rows themselves lie in memory.
struct GatheredRows {
    const std::int32_t* source = nullptr;   // that of router.cuh
    int tokens = 0, K = 1;

    __device__ __forceinline__ std::int64_t of(int row) const { return source == nullptr ? row : source[row] / K; }
};

enum class Along { sum, rows };   // index of a factor whose elements are adjacent in memory

// out(M,N) = sum over k of a(m,k) b(n,k). Either the rows of a and out belong to groups, and each group has its own b;
// or the steps of the sum belong to groups, and each group has its own out.
template <Along A_ALONG, Along B_ALONG, bool SUMS_BELONG_TO_GROUPS, class OutType, class AType, class BType>
struct GroupedProduct {
    static constexpr Along a_along = A_ALONG, b_along = B_ALONG;
    static constexpr bool sums_belong_to_groups = SUMS_BELONG_TO_GROUPS;
    using Out = OutType;
    using A = AType;
    using B = BType;

    Out* out;
    const A* a;
    const B* b;
    int M, N, K, groups;
    const std::int32_t* offsets;
    std::int64_t a_stride, b_stride;   // from one row of memory to the next
    bool accumulate;
    GatheredRows a_rows = {}, b_rows = {};   // for a factor whose rows, or steps, are the groups' rows

    // Return the row of the factor's memory that a row of the product, or if rows are adjacent a step, is in.
    __device__ std::int64_t a_row(int i) const { return a_rows.of(i); }
    __device__ std::int64_t b_row(int i) const { return b_rows.of(i); }
    // Return whether the factor is whole packets of eight elements.
    __host__ __device__ bool a_packets() const { return a_stride % 8 == 0 && aligned(a); }
    __host__ __device__ bool b_packets() const { return b_stride % 8 == 0 && aligned(b); }
    // Returns the extent of a row of the result.
    __host__ __device__ Extent out_extent() const { return {N, N % 8 == 0 && aligned(out)}; }

    // Adds sums to elements (m, n) ... (m, n + 7) of the result, rounded once, or stores them there.
    __device__ __forceinline__ void store(int m, int n, Vec8<float> sums) const {
        Out* const to = out + static_cast<std::int64_t>(m) * N;
        const Extent extent = out_extent();
        if (accumulate) {
            const Vec8<float> before = to_floats(load8(to, n, extent));
#pragma unroll
            for (int k = 0; k < 8; k++) sums[k] += before[k];
        }
        store8(to, n, extent, round_to<Out>(sums));
    }
    // Declares what a kernel reads and writes besides factors and result.
    void declare_more(Launch&) const {}

private:
    __host__ __device__ static bool aligned(const void* pointer) {
        return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
    }
};

template <class Out, class A, class B>
GroupedProduct<Along::sum, Along::sum, false, Out, A, B> forward_product(Out* out, const A* in, const B* weight,
                                                                         const GroupedShape& shape,
                                                                         const GatheredRows& in_rows = {}) {
    return {out, in, weight, shape.M, shape.N, shape.K, shape.groups, shape.offsets, shape.K, shape.K, false, in_rows};
}
template <class Out, class A, class B>
GroupedProduct<Along::sum, Along::rows, false, Out, A, B> input_gradient_product(Out* dinp, const A* dout,
                                                                                 const B* weight,
                                                                                 const GroupedShape& shape,
                                                                                 bool accumulate,
                                                                                 const GatheredRows& dout_rows = {}) {
    return {dinp,         dout,          weight,  shape.M, shape.K,    shape.N,
            shape.groups, shape.offsets, shape.N, shape.K, accumulate, dout_rows};
}
template <class Out, class A, class B>
GroupedProduct<Along::rows, Along::rows, true, Out, A, B> weight_gradient_product(
    Out* dweight, const A* dout, const B* in, const GroupedShape& shape, bool accumulate,
    const GatheredRows& dout_rows = {}, const GatheredRows& in_rows = {}) {
    return {dweight,       dout,    in,      shape.N,    shape.K,   shape.M, shape.groups,
            shape.offsets, shape.N, shape.K, accumulate, dout_rows, in_rows};
}

// Returns the number of tiles of TILE rows that are enough for all groups, however long each is.
template <int TILE, class Product>
int grouped_row_tiles(const Product& p) {
    return Product::sums_belong_to_groups || p.offsets == nullptr ? ceil_div(p.M, TILE) : p.M / TILE + p.groups;
}

// A block's part of a product: rows of the result from `row` on, steps of the sum from `step` on.
struct GroupedPart {
    int row, row_end, step, step_end;
};

// Finds the part of row tile number `tile`, and moves the product's pointers to its group, which is `group` if sums
// belong to groups. Returns false if the tile has no rows. Tiles of group g are numbered from offsets[g] / TILE + g on;
// up to the next group's first number there are enough for its rows.
template <int TILE, class Product>
__device__ __forceinline__ bool find_grouped_part(Product& p, int tile, int group, GroupedPart& part) {
    part = {tile * TILE, p.M, 0, p.K};
    if constexpr (Product::sums_belong_to_groups) {
        if (p.offsets != nullptr) part.step = p.offsets[group], part.step_end = p.offsets[group + 1];
        p.out += static_cast<std::int64_t>(group) * p.M * p.N;
    } else if (p.offsets != nullptr) {
        int first = 0, end = p.groups;   // the group is one of these
        while (end - first > 1) {
            const int middle = (first + end) / 2;
            if (p.offsets[middle] / TILE + middle <= tile) {
                first = middle;
            } else {
                end = middle;
            }
        }
        const int begin = p.offsets[first];
        part.row = begin + (tile - (begin / TILE + first)) * TILE;
        part.row_end = p.offsets[first + 1];
        p.b += static_cast<std::int64_t>(first) * p.N * p.K;
    }
    return part.row < part.row_end;
}

// Returns the launch of a product, with what it reads and writes.
template <class Product>
Launch grouped_launch(const Product& p, dim3 grid, int threads, int shared_bytes, cudaStream_t stream, const char* file,
                      int line) {
    const auto M = static_cast<std::size_t>(p.M), N = static_cast<std::size_t>(p.N), K = static_cast<std::size_t>(p.K),
               groups = static_cast<std::size_t>(p.groups);
    constexpr bool sums = Product::sums_belong_to_groups;
    Launch where{grid, dim3(static_cast<unsigned>(threads)), static_cast<std::size_t>(shared_bytes), stream, file,
                 line};
    const std::size_t rows = sums ? K : M;   // in all groups
    auto in_memory = [&](const GatheredRows& of) { return of.source ? static_cast<std::size_t>(of.tokens) : rows; };
    where.reads(p.a, sizeof(typename Product::A) * in_memory(p.a_rows) * (sums ? M : K));
    where.reads(p.b, sizeof(typename Product::B) * N * (sums ? in_memory(p.b_rows) : groups * K));
    where.reads(p.a_rows.source, sizeof(std::int32_t) * rows).reads(p.b_rows.source, sizeof(std::int32_t) * rows);
    where.reads(p.offsets, sizeof(std::int32_t) * (groups + 1));
    const std::size_t out_bytes = sizeof(typename Product::Out) * (sums ? groups : 1) * M * N;
    where.writes(p.out, out_bytes);
    if (p.accumulate) where.reads(p.out, out_bytes);
    p.declare_more(where);
    return where.multiplies(2.0 * p.M * p.N * p.K);
}
