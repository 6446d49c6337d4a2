// Multiplies groups of rows of bf16 on tensor cores (sm_80 and later), with fp32 sums: the products of
// grouped_matmul.cuh.
//
// A block of 8 warps computes a tile of 128 x 128 of the result, each warp 64 x 32 of that by m16n8k16 instructions.
// Asynchronous copies fill a ring of stages, 32 steps of the sum each, in the factors' own layouts: [row][step] where
// steps are adjacent in memory, [step][row] where rows are, read by the transposing ldmatrix. Zeros stand for what is
// outside of the group.
//
// An element's sum begins at the group's first step and takes the steps in ascending order, 16 an instruction, so it
// does not depend on the tile or on other groups.
//
// Gathered rows cost no pass over memory: a thread finds the address of a row of the result once, that of a step of the
// sum when its tile is copied, by an index that it has read a tile earlier.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <climits>
#include <cstdint>
#include <type_traits>

#include "llmc/base/dtype.h"
#include "llmc/kernels/experts/grouped_product.cuh"
#include "llmc/kernels/ptx/ptx.cuh"
#include "llmc/kernels/ptx/shared_tile.cuh"

struct GroupedMma {
    static constexpr int threads = 256, tile = 128, step = 32, stages = 4;
    static constexpr int warp_rows = 64, warp_columns = 32;
    static constexpr int columns_at_once = 16;   // tiles beside each other that run at once, and share rows in L2
    static constexpr int factor_bytes = tile * step * 2, stage_bytes = 2 * factor_bytes;
    static constexpr int shared_bytes = stages * stage_bytes;
};
static_assert(GroupedMma::shared_bytes >= GroupedMma::tile * GroupedMma::tile * 4, "sums are staged in the ring");
static_assert(fits_twice(GroupedMma::shared_bytes));

// Rows of a factor's tile in shared memory: steps or rows of the product.
template <Along along>
using GroupedMmaTile = SwizzledTile<along == Along::sum ? GroupedMma::step : GroupedMma::tile>;

// A thread's chunks of a factor's tiles: two of each tile, copied one tile after the other. memory_row(i): the row
// of the factor's memory that row i is in, if steps are adjacent. MAY_GATHER: if rows are, steps may be `gathered`.
template <Along along, bool MAY_GATHER>
struct GroupedCopies {
    using Tile = GroupedMmaTile<along>;
    static constexpr int chunks = 2;
    static constexpr bool may_gather_steps = MAY_GATHER && along == Along::rows;
    static_assert(chunks * GroupedMma::threads * 16 == GroupedMma::factor_bytes);

    const bf16* from[chunks];
    int end[chunks];      // tiles that begin at this step or later have zeros here
    int offset;           // the first chunk's place in a stage
    int source[chunks];   // if steps are gathered, those of the next tile; `from` is then in the factor's first row

    template <class MemoryRow>
    __device__ __forceinline__ GroupedCopies(const bf16* factor, std::int64_t stride, const MemoryRow& memory_row,
                                             const GatheredRows& gathered, int row, int row_end, int step,
                                             int step_end) {
        const int chunk = static_cast<int>(threadIdx.x) % Tile::chunks;
        offset = Tile::offset(line(0), chunk);
#pragma unroll
        for (int c = 0; c < chunks; c++) {
            const int own_row = row + (along == Along::sum ? line(c) : 8 * chunk);
            const int within = along == Along::sum ? 8 * chunk : line(c);   // own step, in every tile
            end[c] = own_row < row_end ? step_end - within : INT_MIN;
            if (own_row >= row_end) {
                from[c] = factor;
            } else if constexpr (along == Along::sum) {
                from[c] = factor + memory_row(own_row) * stride + step + within;
            } else {
                from[c] = factor + own_row + (gathers_steps(gathered) ? 0 : (step + within) * stride);
            }
            read_source(c, step, gathered);
        }
    }

    // Starts the copy of the tile that begins at `step`, and moves on to the next.
    __device__ __forceinline__ void copy(SharedAddress tile, int step, std::int64_t stride,
                                         const GatheredRows& gathered) {
#pragma unroll
        for (int c = 0; c < chunks; c++) {
            const bool gathers = gathers_steps(gathered);
            cp_async_16(tile + static_cast<SharedAddress>(offset + c * GroupedMma::threads * 16),
                        gathers ? from[c] + source[c] / gathered.K * stride : from[c], step < end[c]);
            if (!gathers) from[c] += along == Along::sum ? GroupedMma::step : GroupedMma::step * stride;
            read_source(c, step + GroupedMma::step, gathered);
        }
    }

private:
    // Returns the row of the tile in shared memory that chunk `c` belongs to.
    __device__ static int line(int c) {
        return (static_cast<int>(threadIdx.x) + c * GroupedMma::threads) / Tile::chunks;
    }
    __device__ static bool gathers_steps(const GatheredRows& gathered) {
        return may_gather_steps && gathered.source != nullptr;
    }
    __device__ __forceinline__ void read_source(int c, int step, const GatheredRows& gathered) {
        source[c] = gathers_steps(gathered) && step < end[c] ? gathered.source[step + line(c)] : 0;
    }
};

// Returns the address, in a tile, of what the calling lane loads of 16 rows from `row` on and 16 steps. `steps_first`:
// of the four matrices of 8 x 8, the second has the next steps, not the next rows.
template <Along along>
__device__ __forceinline__ SharedAddress grouped_lane(int row, bool steps_first) {
    const int lane = static_cast<int>(threadIdx.x) % 32, second = lane / 8 % 2, third = lane / 16;
    const int next_rows = steps_first ? third : second, next_steps = steps_first ? second : third;
    using Tile = GroupedMmaTile<along>;
    return static_cast<SharedAddress>(along == Along::sum
                                          ? Tile::offset(row + lane % 8 + 8 * next_rows, next_steps)
                                          : Tile::offset(lane % 8 + 8 * next_steps, row / 8 + next_rows));
}

// Loads four matrices: rows from 16 `block` on, steps from 16 `k` on, both counted from `lane_address`.
template <Along along>
__device__ __forceinline__ void load_grouped_matrices(std::uint32_t (&values)[4], SharedAddress lane_address, int block,
                                                      int k) {
    using Tile = GroupedMmaTile<along>;
    if constexpr (along == Along::sum) {
        ldmatrix_x4(values, Tile::at_pair(lane_address, k) + static_cast<SharedAddress>(Tile::bytes(16 * block)));
    } else {
        ldmatrix_x4_transposed(values,
                               Tile::at_pair(lane_address, block) + static_cast<SharedAddress>(Tile::bytes(16 * k)));
    }
}

// Stores a warp's sums into the result from (row, column) on, through its own part of shared memory, `staging`: in
// whole pieces of eight.
template <class Product, int M, int N>
__device__ __forceinline__ void store_grouped_sums(const Product& p, const float (&sums)[M][N][4], int row, int row_end,
                                                   int column, unsigned char* staging) {
    using Staged = SwizzledTile<2 * 8 * N>;   // chunks of four floats
    constexpr int pieces = N;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                const int offset = Staged::offset(16 * m + 8 * half + lane / 4, 2 * n + lane % 4 / 2) + lane % 2 * 8;
                *reinterpret_cast<float2*>(staging + offset) =
                    make_float2(sums[m][n][2 * half], sums[m][n][2 * half + 1]);
            }
    __syncwarp();
    for (int i = lane; i < 16 * M * pieces; i += 32) {
        const int r = i / pieces, piece = i % pieces;
        if (row + r >= row_end || column + 8 * piece >= p.N) continue;
        Vec8<float> values;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const Vec<float, 4> four =
                load_packets<4>(reinterpret_cast<const float*>(staging + Staged::offset(r, 2 * piece + c)));
#pragma unroll
            for (int k = 0; k < 4; k++) values[4 * c + k] = four[k];
        }
        p.store(row + r, column + 8 * piece, values);
    }
}

// Grid (columns_at_once or fewer, row tiles, bands of so many columns, for each group if sums belong to groups).
// Shared: `stages` of a's tile and b's.
template <class Product>
__global__ void __launch_bounds__(GroupedMma::threads, 2) grouped_product_mma(Product p, int bands) {
    using Mma = GroupedMma;
    constexpr int M = Mma::warp_rows / 16, N = Mma::warp_columns / 8;
    DYNAMIC_SHARED(unsigned char, shared);
    const int band = static_cast<int>(blockIdx.z) % bands, group = static_cast<int>(blockIdx.z) / bands;
    const int column = (band * Mma::columns_at_once + static_cast<int>(blockIdx.x)) * Mma::tile;
    GroupedPart part;
    if (column >= p.N || !find_grouped_part<Mma::tile>(p, static_cast<int>(blockIdx.y), group, part)) return;

    const SharedAddress ring = shared_address(shared);
    constexpr bool gathers = Product::sums_belong_to_groups;
    GroupedCopies<Product::a_along, gathers> a_copies(
        p.a, p.a_stride, [&](int m) { return p.a_row(m); }, p.a_rows, part.row, part.row_end, part.step, part.step_end);
    GroupedCopies<Product::b_along, gathers> b_copies(
        p.b, p.b_stride, [&](int n) { return p.b_row(n); }, p.b_rows, column, p.N, part.step, part.step_end);
    const int tiles = ceil_div(part.step_end - part.step, Mma::step);
    auto load = [&](int tile) {   // one copy group per tile, empty past the last, so that waits can count groups
        if (tile < tiles) {
            const SharedAddress stage = ring + static_cast<SharedAddress>(tile % Mma::stages * Mma::stage_bytes);
            const int step = part.step + tile * Mma::step;
            a_copies.copy(stage, step, p.a_stride, p.a_rows);
            b_copies.copy(stage + Mma::factor_bytes, step, p.b_stride, p.b_rows);
        }
        cp_async_commit();
    };
#pragma unroll
    for (int tile = 0; tile < Mma::stages - 1; tile++) load(tile);

    const int warp = static_cast<int>(threadIdx.x) / 32, warps_across = Mma::tile / Mma::warp_columns;
    const int warp_row = warp / warps_across * Mma::warp_rows, warp_column = warp % warps_across * Mma::warp_columns;
    const SharedAddress a_lane = ring + grouped_lane<Product::a_along>(warp_row, false);
    const SharedAddress b_lane = ring + Mma::factor_bytes + grouped_lane<Product::b_along>(warp_column, true);
    float sums[M][N][4] = {};
    for (int tile = 0; tile < tiles; tile++) {
        cp_async_wait<Mma::stages - 2>();
        __syncthreads();   // this tile is here, and the previous one has been read: its stage may be filled
        load(tile + Mma::stages - 1);
        const SharedAddress stage = static_cast<SharedAddress>(tile % Mma::stages * Mma::stage_bytes);
#pragma unroll
        for (int k = 0; k < Mma::step / 16; k++) {
            std::uint32_t a[M][4], b[N / 2][4];   // b: steps 0-7 and 8-15 of 8 columns, then of the next 8
#pragma unroll
            for (int n = 0; n < N / 2; n++) load_grouped_matrices<Product::b_along>(b[n], b_lane + stage, n, k);
#pragma unroll
            for (int m = 0; m < M; m++) load_grouped_matrices<Product::a_along>(a[m], a_lane + stage, m, k);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < N; n++)
                    mma_m16n8k16(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
    }
    __syncthreads();   // all tiles have been read
    store_grouped_sums(p, sums, part.row + warp_row, part.row_end, column + warp_column,
                       shared + warp * Mma::warp_rows * Mma::warp_columns * 4);
}

// Returns true if the kernel has the product's types: both factors are bf16.
template <class Product>
constexpr bool grouped_mma_exists() {
    return std::is_same_v<typename Product::A, bf16> && std::is_same_v<typename Product::B, bf16>;
}

// Returns true if the kernel can compute the product: both factors are whole packets.
template <class Product>
bool grouped_mma_serves(const Product& p) {
    return p.a_packets() && p.b_packets();
}

// Computes a product that grouped_mma_serves.
template <class Product>
void launch_grouped_mma(const Product& p, cudaStream_t stream, const char* file = __builtin_FILE(),
                        int line = __builtin_LINE()) {
    using Mma = GroupedMma;
    if (p.M == 0 || p.N == 0 || p.groups == 0) return;
    const int columns = ceil_div(p.N, Mma::tile), bands = ceil_div(columns, Mma::columns_at_once);
    const dim3 grid(static_cast<unsigned>(bands > 1 ? Mma::columns_at_once : columns),
                    static_cast<unsigned>(grouped_row_tiles<Mma::tile>(p)),
                    static_cast<unsigned>(bands * (Product::sums_belong_to_groups ? p.groups : 1)));
    launch(grouped_product_mma<Product>, grouped_launch(p, grid, Mma::threads, Mma::shared_bytes, stream, file, line),
           p, bands);
}
