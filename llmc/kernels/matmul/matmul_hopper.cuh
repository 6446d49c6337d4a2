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
// cuBLASLt leaves the tensor cores idle at the end of each tile: at a depth of 768, as GPT-2 124M has, for a third of
// the time where GELU follows. Every sum has a fixed order: two runs agree to the bit, on any number of
// multiprocessors.
//
// Source: V. Thakkar et al., CUTLASS 3, "KernelTmaWarpSpecializedPingpong".
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "llmc/kernels/gelu.cuh"
#include "llmc/kernels/launch.cuh"
#include "llmc/kernels/matmul/matmul_hopper.h"
#include "llmc/kernels/ptx/ptx_hopper.cuh"

// Tensor maps for a kernel's copies. `beside` (tokens, channels): see HopperMatmulEnd.
struct HopperMatmulMaps {
    TensorMap in, weight, out, beside;
};

constexpr bool hopper_matmul_reads_beside(HopperMatmulEnd end) {
    return end == HopperMatmulEnd::add || end == HopperMatmulEnd::gelu_slope;
}

// Problem of one launch. Channels are those of `out`; the depth is summed over.
struct HopperMatmulSizes {
    int tokens, channels, depth;
};

template <int COLUMNS>
struct HopperMatmulTile {
    static_assert(COLUMNS == 128 || COLUMNS == 192);
    static constexpr int threads = 384, group_threads = 128, groups = 2;   // groups: computing groups only
    static constexpr int rows = 128, columns = COLUMNS, depth = 64;        // tokens, channels, depth of one copy
    static constexpr int row_bytes = 2 * depth;
    static constexpr int in_bytes = rows * row_bytes, weight_bytes = columns * row_bytes;
    static constexpr int stage_bytes = in_bytes + weight_bytes;
    static constexpr int weight_panel = depth * row_bytes;   // 64 of the depth, 64 channels: MN-major weights only
    static constexpr int panels = columns / 64;              // of results
    static constexpr int panel_bytes = rows * 128;
    static constexpr int buffers = 2;   // panels of results that a group has in shared memory
    static constexpr int barrier_bytes = 1024, most_shared_bytes = 227 * 1024;
    static constexpr int stages = (most_shared_bytes - barrier_bytes - groups * buffers * panel_bytes) / stage_bytes;
    static constexpr int results_offset = stages * stage_bytes;
    static constexpr int barrier_offset = results_offset + groups * buffers * panel_bytes;
    static constexpr int shared_bytes = barrier_offset + barrier_bytes;
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
    __device__ SharedAddress beside(int group, int buffer) const {
        return first + 8 * (2 * Tile::stages + group * Tile::buffers + buffer);
    }
    __device__ void make(bool reads_beside) const {
        for (int stage = 0; stage < Tile::stages; stage++) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(free(stage), 4);   // one lane of each warp of the group that reads it
        }
        for (int i = 0; reads_beside && i < Tile::groups * Tile::buffers; i++) {
            mbarrier_init(beside(i / Tile::buffers, i % Tile::buffers), 1);
        }
        mbarrier_init_fence();
    }
};

// First token and channel of a tile. Tiles are numbered so that those computed at the same time share tokens and
// channels in the L2 cache: 16 tiles of tokens, with all their channels, before the next 16.
struct HopperMatmulPlace {
    int token, channel;
};
template <class Tile>
__host__ __device__ HopperMatmulPlace hopper_matmul_place(int tile, const HopperMatmulSizes& sizes) {
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

// Position in the ring.
template <int STAGES>
struct HopperMatmulRing {
    int stage = 0, parity = 0;
    __device__ __forceinline__ void skip(int steps) {
        const int at = stage + steps;
        stage = at % STAGES;
        parity ^= at / STAGES & 1;
    }
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// Fills the ring for all tiles of the block. Runs on one thread of group 0.
template <class Tile, bool TRANSPOSED>
__device__ __forceinline__ void hopper_matmul_produce(const HopperMatmulMaps& maps, const HopperMatmulSizes& sizes,
                                                      SharedAddress shared, HopperMatmulBarriers<Tile> barriers) {
    const int tiles = hopper_matmul_tiles<Tile>(sizes);
    HopperMatmulRing<Tile::stages> ring;
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
        const HopperMatmulPlace place = hopper_matmul_place<Tile>(tile, sizes);
        for (int k = 0; k < sizes.depth; k += Tile::depth, ring.next()) {
            const SharedAddress in = shared + ring.stage * Tile::stage_bytes, weight = in + Tile::in_bytes;
            mbarrier_wait(barriers.free(ring.stage), ring.parity ^ 1);
            const SharedAddress full = barriers.full(ring.stage);
            mbarrier_arrive_expect(full, Tile::stage_bytes);
            tma_load(in, maps.in, full, k, place.token, 0, 0);
            if constexpr (TRANSPOSED) {
                for (int panel = 0; panel < Tile::panels; panel++) {
                    tma_load(weight + panel * Tile::weight_panel, maps.weight, full, place.channel + 64 * panel, k, 0,
                             0);
                }
            } else {
                tma_load(weight, maps.weight, full, k, place.channel, 0, 0);
            }
        }
    }
}

__device__ __forceinline__ float low_bf16(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// One of the two computing groups (`group` is 0 or 1).
template <class Tile, bool TRANSPOSED, HopperMatmulEnd END>
struct HopperMatmulGroup {
    static constexpr int turn_barrier = 1, group_barrier = 3;   // + group
    static constexpr bool reads_beside = hopper_matmul_reads_beside(END);

    const HopperMatmulMaps& maps;
    const HopperMatmulSizes& sizes;
    const bf16* bias;   // may be null, and is if TRANSPOSED
    unsigned char* shared;
    SharedAddress base;
    HopperMatmulBarriers<Tile> barriers;
    int group, lane, warp, thread;   // in the group
    HopperMatmulRing<Tile::stages> ring;
    int beside_parity = 0;              // bit b: of buffer b
    float sums[2][Tile::columns / 2];   // rows 0 to 63 and 64 to 127 of the tile

    __device__ __forceinline__ void take_turn() { named_barrier_sync(turn_barrier + group, 2 * Tile::group_threads); }
    __device__ __forceinline__ void pass_turn() {
        named_barrier_arrive(turn_barrier + 1 - group, 2 * Tile::group_threads);
    }
    __device__ __forceinline__ void sync_group() { named_barrier_sync(group_barrier + group, Tile::group_threads); }
    __device__ __forceinline__ int buffer_offset(int buffer) const {
        return Tile::results_offset + (group * Tile::buffers + buffer) * Tile::panel_bytes;
    }
    // Frees a stage: one lane of each warp tells the producer.
    __device__ __forceinline__ void free(int stage) {
        if (lane == 0) mbarrier_arrive(barriers.free(stage));
    }

    // Computes all sums of a tile: in(128, depth) weight(depth, COLUMNS).
    __device__ __forceinline__ void multiply(bool is_last) {
        const int steps = (sizes.depth + Tile::depth - 1) / Tile::depth;
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

    // Starts the copy of a panel of `beside` into its buffer. One thread calls it.
    __device__ __forceinline__ void load_beside(const HopperMatmulPlace& place, int panel) {
        const int buffer = panel % Tile::buffers;
        const SharedAddress full = barriers.beside(group, buffer);
        mbarrier_arrive_expect(full, Tile::panel_bytes);
        tma_load(base + buffer_offset(buffer), maps.beside, full, place.channel + 64 * panel, place.token, 0, 0);
    }
    // Starts the first copies of a tile's `beside`; they run beside the products.
    __device__ __forceinline__ void begin(const HopperMatmulPlace& place) {
        if (!reads_beside || thread != 0) return;
        tma_store_wait();   // of the tile before: the buffers are free
        for (int panel = 0; panel < Tile::buffers; panel++) load_beside(place, panel);
    }

    // Returns the bias of the lane's eight pairs of channels in a panel.
    __device__ __forceinline__ void load_bias(std::uint32_t (&pairs)[8], int first_channel) const {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int channel = first_channel + 8 * j + lane % 4 * 2;
            pairs[j] = 0;
            if (bias != nullptr && channel < sizes.channels) {
                pairs[j] = *reinterpret_cast<const std::uint32_t*>(bias + channel);
            }
        }
    }

    // Finishes a panel of 64 channels, from its sums to the copy into `out`. Everything that is read comes before what
    // is written, for a quarter of a panel at a time: compilers cannot know that neither changes the other, and would do one
    // element after the other.
    template <int PANEL>
    __device__ __forceinline__ void finish(const HopperMatmulPlace& place) {
        constexpr int buffer = PANEL % Tile::buffers;
        constexpr bool two = END == HopperMatmulEnd::gelu;   // results; the first in buffer 0, the second in buffer 1
        std::uint32_t shift[8];
        if constexpr (!TRANSPOSED) load_bias(shift, place.channel + 64 * PANEL);
        if (thread == 0) {
            tma_store_wait();   // of the panel before
            if (reads_beside && PANEL > 0 && PANEL + 1 < Tile::panels) load_beside(place, PANEL + 1);
        }
        sync_group();
        if constexpr (reads_beside) {
            mbarrier_wait(barriers.beside(group, buffer), beside_parity >> buffer & 1);
            beside_parity ^= 1 << buffer;
        }
        const int first_row = warp * 16 + lane / 4;
        unsigned char* const rows = shared + buffer_offset(two ? 0 : buffer) + first_row * 128 + lane % 4 * 4;
        // Returns where the lane's pair of channels 8 j .. is, for rows 0, 8, 64 and 72 after its first.
        auto pair_at = [&](int j, int part) {
            return reinterpret_cast<std::uint32_t*>(rows + (part / 2 * 64 + part % 2 * 8) * 128 +
                                                    (j ^ first_row % 8) * 16);
        };
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            std::uint32_t before[2][4];
            if constexpr (reads_beside) {
#pragma unroll
                for (int i = 0; i < 8; i++) before[i / 4][i % 4] = *pair_at(j + i / 4, i % 4);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int part = i % 4, sum = 32 * PANEL + 4 * (j + i / 4) + part % 2 * 2;
                float x = sums[part / 2][sum], y = sums[part / 2][sum + 1];
                if constexpr (!TRANSPOSED) x += low_bf16(shift[j + i / 4]), y += high_bf16(shift[j + i / 4]);
                std::uint32_t* const target = pair_at(j + i / 4, part);
                if constexpr (reads_beside) {
                    const float bx = low_bf16(before[i / 4][part]), by = high_bf16(before[i / 4][part]);
                    *target = END == HopperMatmulEnd::add
                                  ? pack_bf16(x + bx, y + by)
                                  : pack_bf16(x * gelu_slope<bf16>(bx), y * gelu_slope<bf16>(by));
                } else {
                    const std::uint32_t rounded = pack_bf16(x, y);
                    *target = rounded;
                    if constexpr (two) {
                        target[Tile::panel_bytes / 4] =
                            pack_bf16(gelu_of<bf16>(low_bf16(rounded)), gelu_of<bf16>(high_bf16(rounded)));
                    }
                }
            }
        }
        fence_proxy_async(base + buffer_offset(two ? 0 : buffer), (two ? 2 : 1) * Tile::panel_bytes);
        sync_group();
        if (thread != 0) return;
        const int channel = place.channel + 64 * PANEL;
        if (channel < sizes.channels) {
            if constexpr (two) tma_store(maps.beside, base + buffer_offset(0), channel, place.token, 0, 0);
            tma_store(maps.out, base + buffer_offset(two ? 1 : buffer), channel, place.token, 0, 0);
        }
        tma_store_commit();
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
            const HopperMatmulPlace place = hopper_matmul_place<Tile>(tile, sizes);
            begin(place);
            multiply(tile + blocks >= tiles);
            ring.skip(steps);   // the other group's tile
            finish<0>(place);
            finish<1>(place);
            if constexpr (Tile::panels > 2) finish<2>(place);
        }
        if (thread == 0) tma_store_wait();
    }
};

template <int COLUMNS, bool TRANSPOSED, HopperMatmulEnd END>
__device__ __forceinline__ void hopper_matmul(const HopperMatmulMaps& maps, const HopperMatmulSizes& sizes,
                                              const bf16* bias) {
    using Tile = HopperMatmulTile<COLUMNS>;
    DYNAMIC_SHARED(unsigned char, shared);
    const SharedAddress base = shared_address(shared);
    const HopperMatmulBarriers<Tile> barriers{base + Tile::barrier_offset};
    // A value from one lane tells the compiler that it is equal in the whole warp.
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / Tile::group_threads, 0) - 1;
    if (threadIdx.x == 0) barriers.make(hopper_matmul_reads_beside(END));
    __syncthreads();
    if (group < 0) {
        registers_fewer<Tile::producer_registers>();
        if (threadIdx.x == 0) hopper_matmul_produce<Tile, TRANSPOSED>(maps, sizes, base, barriers);
        return;
    }
    registers_more<Tile::consumer_registers>();
    const int thread = static_cast<int>(threadIdx.x) % Tile::group_threads;
    HopperMatmulGroup<Tile, TRANSPOSED, END> consumer{maps,        sizes,       bias,   shared, base, barriers, group,
                                                      thread % 32, thread / 32, thread, {},     0,    {}};
    consumer.run();
}

// TRANSPOSED: `weight` is (depth, channels), as for gradients of inputs; else (channels, depth). Grid: any number of
// blocks up to the number of tiles. Maps' boxes: in 128 rows, weight COLUMNS rows (64 if TRANSPOSED), results 128 rows.
template <int COLUMNS, bool TRANSPOSED, HopperMatmulEnd END>
__global__ void __launch_bounds__(HopperMatmulTile<COLUMNS>::threads, 1)
    matmul_hopper(const __grid_constant__ HopperMatmulMaps maps, HopperMatmulSizes sizes, const bf16* bias) {
    if constexpr (hopper_instructions) hopper_matmul<COLUMNS, TRANSPOSED, END>(maps, sizes, bias);
}
