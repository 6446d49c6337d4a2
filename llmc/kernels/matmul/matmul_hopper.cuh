// Matmuls of activations for sm_90a, bf16 in and out, fp32 sums, with what follows them: out = end(in weight + bias).
//
// A block of three groups of four warps stays on its multiprocessor and computes one tile of 128 tokens and `COLUMNS`
// channels after another. Its two computing groups take turns ("ping-pong", CUTLASS), so what follows the products of
// one tile (bias, GELU, residual, copies to memory) runs beside the products of the next:
//
//     group 0     one thread copies tiles of `in` and `weight`, 64 of the depth at a time, through a ring (TMA)
//     group 1     | products of tile 0 | end of tile 0      | products of tile 2 | end of tile 2 ...
//     group 2                          | products of tile 1 | end of tile 1      | products of tile 3 ...
//
// So short depths lose less at the end of each tile, such as 768 of GPT-2 124M; docs/performance.md has the times
// beside cuBLASLt's. Results go from registers to memory, 16 bytes a lane. Every sum has a fixed order: two runs agree
// to the bit, on any number of multiprocessors.
//
// Source: V. Thakkar et al., CUTLASS 3, "KernelTmaWarpSpecializedPingpong".
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/matmul/matmul_hopper.h"
#include "llmc/kernels/ptx/hopper_ring.cuh"
#include "llmc/kernels/ptx/ptx_hopper.cuh"
#include "llmc/kernels/ptx/transpose_in_quad.cuh"

// Tensor maps for a kernel's copies. `beside` (tokens, channels) is for ends that read it.
struct HopperMatmulMaps {
    TensorMap in, weight, beside;
};

constexpr bool hopper_matmul_reads_beside(HopperMatmulEnd end) {
    return end == HopperMatmulEnd::add || end == HopperMatmulEnd::gelu_slope;
}

// Problem of one launch. Channels are those of `out`; the depth is summed over.
struct HopperMatmulSizes {
    int tokens, channels, depth;
};

// Memory that a kernel reads and writes without copies of tiles.
struct HopperMatmulResults {
    bf16* out;        // rows `stride` apart
    bf16* pre_gelu;   // `beside` of HopperMatmulEnd::gelu, likewise
    std::int64_t stride;
    const bf16* bias;   // (channels), may be null, and is for transposed weights
};

template <int COLUMNS, HopperMatmulEnd END>
struct HopperMatmulTile {
    static_assert(COLUMNS == 128 || COLUMNS == 192);
    static constexpr int threads = 384, group_threads = 128, groups = 2;   // groups: computing groups only
    static constexpr int rows = 128, columns = COLUMNS, depth = 64;        // tokens, channels, depth of one copy
    static constexpr int row_bytes = 2 * depth;
    static constexpr int in_bytes = rows * row_bytes, weight_bytes = columns * row_bytes;
    static constexpr int stage_bytes = in_bytes + weight_bytes;
    static constexpr int weight_panel = depth * row_bytes;   // 64 of the depth, 64 channels: MN-major weights only
    static constexpr int panels = columns / 64;              // results or `beside`
    static constexpr int panel_bytes = rows * 128;
    static constexpr bool reads_beside = hopper_matmul_reads_beside(END);
    static constexpr int group_beside_bytes = reads_beside ? panels * panel_bytes : 0;
    static constexpr int rest_bytes = 2048, most_shared_bytes = 227 * 1024;   // rest: bias, barriers
    static constexpr int stages = (most_shared_bytes - rest_bytes - groups * group_beside_bytes) / stage_bytes;
    static constexpr int beside_offset = stages * stage_bytes;
    static constexpr int bias_offset = beside_offset + groups * group_beside_bytes;
    static constexpr int barrier_offset = bias_offset + groups * columns * 2;
    static constexpr int shared_bytes = bias_offset + rest_bytes;
    static constexpr int launch_registers = 65536 / threads / 8 * 8;
    static constexpr int producer_registers = 24, consumer_registers = 240;
    static_assert(group_threads * (producer_registers + groups * consumer_registers) <= threads * launch_registers);
};

// mbarriers of a block, 8 bytes each.
template <class Tile>
struct HopperMatmulBarriers {
    SharedAddress first;
    __device__ SharedAddress full(int stage) const { return first + 8 * stage; }
    __device__ SharedAddress free(int stage) const { return first + 8 * (Tile::stages + stage); }
    __device__ SharedAddress beside(int group) const { return first + 8 * (2 * Tile::stages + group); }
    __device__ void make() const {
        for (int stage = 0; stage < Tile::stages; stage++) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(free(stage), 4);   // one lane of each warp of the group that reads it
        }
        for (int group = 0; Tile::reads_beside && group < Tile::groups; group++) mbarrier_init(beside(group), 1);
        mbarrier_init_fence();
    }
};

// First token and channel of a tile. Tiles are numbered so that those computed at the same time share tokens and
// channels in the L2 cache: 16 tiles of tokens, with all their channels, before the next 16.
struct HopperMatmulOrigin {
    int token, channel;
};
template <class Tile>
__host__ __device__ HopperMatmulOrigin hopper_matmul_origin(int tile, const HopperMatmulSizes& sizes) {
    constexpr int together = 16;
    const int down = ceil_div(sizes.tokens, Tile::rows), across = ceil_div(sizes.channels, Tile::columns);
    const int first = tile / (together * across) * together, here = min(together, down - first);
    const int within = tile - first * across;
    return {(first + within % here) * Tile::rows, within / here * Tile::columns};
}
template <class Tile>
__host__ __device__ int hopper_matmul_tiles(const HopperMatmulSizes& sizes) {
    return ceil_div(sizes.tokens, Tile::rows) * ceil_div(sizes.channels, Tile::columns);
}

// Fills the ring for all tiles of the block. Runs on one thread of group 0.
template <class Tile, bool TRANSPOSED>
__device__ __forceinline__ void hopper_matmul_produce(const HopperMatmulMaps& maps, const HopperMatmulSizes& sizes,
                                                      SharedAddress shared, HopperMatmulBarriers<Tile> barriers) {
    const int tiles = hopper_matmul_tiles<Tile>(sizes);
    HopperRing<Tile::stages> ring;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
        const HopperMatmulOrigin origin = hopper_matmul_origin<Tile>(tile, sizes);
        for (int k = 0; k < sizes.depth; k += Tile::depth, ring.next()) {
            const SharedAddress in = shared + ring.stage * Tile::stage_bytes, weight = in + Tile::in_bytes;
            mbarrier_wait(barriers.free(ring.stage), ring.parity ^ 1);
            const SharedAddress full = barriers.full(ring.stage);
            mbarrier_arrive_expect(full, Tile::stage_bytes);
            tma_load(in, maps.in, full, k, origin.token, 0, 0);
            if constexpr (TRANSPOSED) {
                for (int panel = 0; panel < Tile::panels; panel++) {
                    tma_load(weight + panel * Tile::weight_panel, maps.weight, full, origin.channel + 64 * panel, k, 0,
                             0);
                }
            } else {
                tma_load(weight, maps.weight, full, k, origin.channel, 0, 0);
            }
        }
    }
}

__device__ __forceinline__ float low_bf16(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ void unpack_pairs(float (&values)[8], const std::uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 8; i++) values[i] = i % 2 == 0 ? low_bf16(pairs[i / 2]) : high_bf16(pairs[i / 2]);
}
__device__ __forceinline__ void add_pairs(float (&values)[8], const std::uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 8; i++) values[i] += i % 2 == 0 ? low_bf16(pairs[i / 2]) : high_bf16(pairs[i / 2]);
}
__device__ __forceinline__ void pack_pairs(std::uint32_t (&pairs)[4], const float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = pack_bf16(values[2 * i], values[2 * i + 1]);
}

// One of the two computing groups (`group` is 0 or 1).
template <class Tile, bool TRANSPOSED, HopperMatmulEnd END>
struct HopperMatmulGroup {
    static constexpr int turn_barrier = 1, group_barrier = 3;   // + group

    const HopperMatmulMaps& maps;
    const HopperMatmulSizes& sizes;
    const HopperMatmulResults& results;
    unsigned char* shared;
    SharedAddress base;
    HopperMatmulBarriers<Tile> barriers;
    int group, lane, warp, thread;   // in the group
    HopperRing<Tile::stages> ring;
    int beside_parity = 0;
    float sums[2][Tile::columns / 2];   // rows 0 to 63 and 64 to 127 of the tile

    __device__ __forceinline__ void take_turn() { named_barrier_sync(turn_barrier + group, 2 * Tile::group_threads); }
    __device__ __forceinline__ void pass_turn() {
        named_barrier_arrive(turn_barrier + 1 - group, 2 * Tile::group_threads);
    }
    // Frees a stage: one lane of each warp tells the producer.
    __device__ __forceinline__ void free(int stage) {
        if (lane == 0) mbarrier_arrive(barriers.free(stage));
    }
    __device__ __forceinline__ std::uint32_t* bias_of_group() const {   // pairs of channels
        return reinterpret_cast<std::uint32_t*>(shared + Tile::bias_offset) + group * (Tile::columns / 2);
    }
    __device__ __forceinline__ int beside_offset(int panel) const {
        return Tile::beside_offset + group * Tile::group_beside_bytes + panel * Tile::panel_bytes;
    }

    // Fetches what a tile's sums are finished with: its bias, and `beside`, whose copies run beside the products.
    __device__ __forceinline__ void fetch(const HopperMatmulOrigin& origin) {
        if (TRANSPOSED && !Tile::reads_beside) return;
        named_barrier_sync(group_barrier + group, Tile::group_threads);   // all have read those of the last tile
        if (Tile::reads_beside && thread == 0) {
            mbarrier_arrive_expect(barriers.beside(group), Tile::group_beside_bytes);
            for (int panel = 0; panel < Tile::panels; panel++) {
                tma_load(base + beside_offset(panel), maps.beside, barriers.beside(group), origin.channel + 64 * panel,
                         origin.token, 0, 0);
            }
        }
        if (TRANSPOSED || thread >= Tile::columns / 2) return;
        const int channel = origin.channel + 2 * thread;
        std::uint32_t pair = 0;
        if (results.bias != nullptr && channel < sizes.channels) {
            pair = *reinterpret_cast<const std::uint32_t*>(results.bias + channel);
        }
        bias_of_group()[thread] = pair;
    }

    // Computes the sums in(128, depth) weight(depth, COLUMNS) of a tile.
    __device__ __forceinline__ void multiply(int steps, bool is_last) {
        take_turn();
        int before = 0;
        for (int step = 0; step < steps; step++) {
            mbarrier_wait(barriers.full(ring.stage), ring.parity);
            const SharedAddress in = base + ring.stage * Tile::stage_bytes, weight = in + Tile::in_bytes;
            wgmma_fence(sums[0], sums[1]);
#pragma unroll
            for (int k = 0; k < Tile::depth / 16; k++) {
                const std::uint64_t right = TRANSPOSED ? wgmma_operand(weight, Tile::weight_panel, k * 16 * 128)
                                                       : wgmma_operand(weight, 0, k * 32);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    wgmma<false, TRANSPOSED>(sums[half], wgmma_operand(in, 0, half * 64 * Tile::row_bytes + k * 32),
                                             right, step > 0 || k > 0);
                }
            }
            wgmma_commit();
            if (step > 0) {
                wgmma_wait<1>();
                free(before);
            }
            before = ring.stage;
            ring.next();
        }
        if (!is_last) pass_turn();   // nobody waits for the last turn
        wgmma_wait<0>(sums[0], sums[1]);
        free(before);
    }

    // Finishes 64 channels of a tile, from the lane's sums to memory. Four lanes have eight channels of a row between
    // them; they exchange their pairs, and each writes 16 bytes.
    template <int PANEL>
    __device__ __forceinline__ void finish(const HopperMatmulOrigin& origin) {
        const int first_row = warp * 16 + lane / 4, first_channel = origin.channel + 64 * PANEL;
        const unsigned char* const beside = shared + beside_offset(PANEL) + first_row * 128 + lane % 4 * 4;
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
#pragma unroll
            for (int part = 0; part < 4; part++) {   // rows 0, 8, 64 and 72 after the lane's first
                const int further = part / 2 * 64 + part % 2 * 8;
                float values[8];   // the lane's four pairs
                std::uint32_t pairs[4];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    values[i] = sums[part / 2][32 * PANEL + 4 * (j + i / 2) + part % 2 * 2 + i % 2];
                }
                if constexpr (!TRANSPOSED) {
#pragma unroll
                    for (int i = 0; i < 4; i++) pairs[i] = bias_of_group()[32 * PANEL + 4 * (j + i) + lane % 4];
                    add_pairs(values, pairs);
                }
                if constexpr (Tile::reads_beside) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        pairs[i] = *reinterpret_cast<const std::uint32_t*>(beside + further * 128 +
                                                                           ((j + i) ^ first_row % 8) * 16);
                    }
                    if constexpr (END == HopperMatmulEnd::add) {
                        add_pairs(values, pairs);
                    } else {
                        float pre_gelu[8], slopes[8];
                        unpack_pairs(pre_gelu, pairs);
                        gelu_slopes<bf16>(slopes, pre_gelu);
#pragma unroll
                        for (int i = 0; i < 8; i++) values[i] *= slopes[i];
                    }
                }
                pack_pairs(pairs, values);
                const int token = origin.token + first_row + further, channel = first_channel + 8 * j + lane % 4 * 8;
                const bool inside = token < sizes.tokens && channel < sizes.channels;
                const std::int64_t offset = token * results.stride + channel;
                auto store = [&](bf16* to, std::uint32_t(&four)[4]) {
                    transpose_in_quad(four);
                    if (inside) *reinterpret_cast<uint4*>(to + offset) = make_uint4(four[0], four[1], four[2], four[3]);
                };
                if constexpr (END == HopperMatmulEnd::gelu) {
                    float pre_gelu[8];
                    std::uint32_t activated[4];
                    unpack_pairs(pre_gelu, pairs);
                    gelu_of<bf16>(values, pre_gelu);
                    pack_pairs(activated, values);
                    store(results.pre_gelu, pairs);
                    store(results.out, activated);
                } else {
                    store(results.out, pairs);
                }
            }
        }
    }

    // Computes every second tile of the block, from its number `group` on.
    __device__ __forceinline__ void run() {
        const int tiles = hopper_matmul_tiles<Tile>(sizes), blocks = static_cast<int>(gridDim.x);
        const int steps = (sizes.depth + Tile::depth - 1) / Tile::depth;
        if (group == 1) {
            pass_turn();   // the other group begins
            ring.skip(steps);
        }
        for (int tile = static_cast<int>(blockIdx.x) + group * blocks; tile < tiles; tile += 2 * blocks) {
            const HopperMatmulOrigin origin = hopper_matmul_origin<Tile>(tile, sizes);
            fetch(origin);
            multiply(steps, tile + blocks >= tiles);
            ring.skip(steps);   // the other group's tile
            if constexpr (Tile::reads_beside) {
                mbarrier_wait(barriers.beside(group), beside_parity);
                beside_parity ^= 1;
            }
            finish<0>(origin);
            finish<1>(origin);
            if constexpr (Tile::panels > 2) finish<2>(origin);
        }
    }
};

template <int COLUMNS, bool TRANSPOSED, HopperMatmulEnd END>
__device__ __forceinline__ void hopper_matmul(const HopperMatmulMaps& maps, const HopperMatmulSizes& sizes,
                                              const HopperMatmulResults& results) {
    using Tile = HopperMatmulTile<COLUMNS, END>;
    DYNAMIC_SHARED(unsigned char, shared);
    const SharedAddress base = shared_address(shared);
    const HopperMatmulBarriers<Tile> barriers{base + Tile::barrier_offset};
    // A value from one lane tells the compiler that it is equal in the whole warp.
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / Tile::group_threads, 0) - 1;
    if (threadIdx.x == 0) barriers.make();
    __syncthreads();
    if (group < 0) {
        registers_fewer<Tile::producer_registers>();
        if (threadIdx.x == 0) hopper_matmul_produce<Tile, TRANSPOSED>(maps, sizes, base, barriers);
        return;
    }
    registers_more<Tile::consumer_registers>();
    const int thread = static_cast<int>(threadIdx.x) % Tile::group_threads;
    HopperMatmulGroup<Tile, TRANSPOSED, END> consumer{maps,        sizes,       results, shared, base, barriers, group,
                                                      thread % 32, thread / 32, thread,  {},     0,    {}};
    consumer.run();
}

// TRANSPOSED: `weight` is (depth, channels), as for gradients of inputs; else (channels, depth). Grid: any number of
// blocks up to the number of tiles. Maps' boxes: in 128 rows, weight COLUMNS rows (64 if TRANSPOSED), beside 128 rows.
template <int COLUMNS, bool TRANSPOSED, HopperMatmulEnd END>
__global__ void __launch_bounds__(HopperMatmulTile<COLUMNS, END>::threads, 1)
    matmul_hopper(const __grid_constant__ HopperMatmulMaps maps, HopperMatmulSizes sizes, HopperMatmulResults results) {
    if constexpr (hopper_instructions) hopper_matmul<COLUMNS, TRANSPOSED, END>(maps, sizes, results);
}
