// Forward attention for sm_90a, bf16 in, fp32 sums.
//
// A block of three groups of four warps does 128 queries of a head (Shah et al., "FlashAttention-3", 2024):
//
//     group 0     one thread copies q, then tiles of 128 keys of k and v, through a ring of `stages` each (TMA);
//                 it runs ahead as far as the ring has room, and has given its registers to the others
//     groups 1, 2 64 queries each:  scores = q k^T    softmax    sums += p v
//
// Products are asynchronous, so a group's softmax of tile j runs beside its own sums += p v of tile j - 1; and the two
// groups take turns to start products, so one's softmax runs beside the other's products:
//
//     group 1     | q k^T (j), p v (j-1) | softmax (j)            | q k^T (j+1), p v (j) | ...
//     group 2     | softmax (j-1)        | q k^T (j), p v (j-1)   | softmax (j)          | ...
//
// The probabilities never leave the registers. q, k and v are read where they lie, by their strides; rows past the end
// and channels past HS are zeros, and not written. Every sum has a fixed order: two runs agree to the bit.
#pragma once

#include "llmc/kernels/attention/sm90/attention_hopper.cuh"

template <int D>
struct HopperForwardTile {
    static_assert(D == 64 || D == 128);
    static constexpr int threads = 384, group_threads = 128, groups = 2;   // groups: computing groups only
    static constexpr int group_queries = 64, queries = groups * group_queries, keys = 128;
    static constexpr int stages = D == 64 ? 3 : 2;
    static constexpr int panels = D / HOPPER_PANEL;
    static constexpr int query_panel = queries * HOPPER_ROW_BYTES, key_panel = keys * HOPPER_ROW_BYTES;
    static constexpr int query_bytes = panels * query_panel, key_bytes = panels * key_panel;
    static constexpr int barrier_offset = query_bytes + 2 * stages * key_bytes;
    static constexpr int shared_bytes = barrier_offset + 1024;   // D = 64: 113 KiB, D = 128: 161 KiB
    // Registers a thread has at launch: 65,536 per block, in multiples of eight. setmaxnreg then moves some between
    // groups.
    static constexpr int launch_registers = 65536 / threads / 8 * 8;
    static constexpr int producer_registers = 40, consumer_registers = 232;
    static_assert(group_threads * (producer_registers + groups * consumer_registers) <= threads * launch_registers);
};

// mbarriers of a block, 8 bytes each.
template <int D>
struct HopperForwardBarriers {
    SharedAddress first;
    static constexpr int stages = HopperForwardTile<D>::stages;
    __device__ SharedAddress query() const { return first; }
    __device__ SharedAddress key_full(int stage) const { return first + 8 * (1 + stage); }
    __device__ SharedAddress value_full(int stage) const { return first + 8 * (1 + stages + stage); }
    __device__ SharedAddress key_free(int stage) const { return first + 8 * (1 + 2 * stages + stage); }
    __device__ SharedAddress value_free(int stage) const { return first + 8 * (1 + 3 * stages + stage); }
    __device__ SharedAddress unused() const { return first + 8 * (1 + 4 * stages); }

    __device__ void make() const {
        constexpr int readers = 4 * HopperForwardTile<D>::groups;   // one lane of each warp reports that a tile is read
        mbarrier_init(query(), 1);
        for (int stage = 0; stage < stages; stage++) {
            mbarrier_init(key_full(stage), 1);
            mbarrier_init(value_full(stage), 1);
            mbarrier_init(key_free(stage), readers);
            mbarrier_init(value_free(stage), readers);
        }
        mbarrier_init_fence();
    }
};

// Queries, head and keys that a block computes.
struct HopperForwardWork {
    int batch, head, kv_head, first_query;
    AttentionMask mask;
    int begin, end;   // first and end tile of keys that any of the block's queries sees
};
template <int D, class O>
__device__ __forceinline__ HopperForwardWork hopper_forward_work(const AttentionForward<bf16, O>& a, int together) {
    using Tile = HopperForwardTile<D>;
    const AttentionShape& shape = a.shape;
    const HopperTile place = hopper_tile(static_cast<int>(blockIdx.x), (shape.Tq + Tile::queries - 1) / Tile::queries,
                                         shape.B * shape.NH, together);
    HopperForwardWork work;
    work.batch = place.head / shape.NH;
    work.head = place.head % shape.NH;
    work.kv_head = work.head / shape.group;
    work.first_query = place.tile * Tile::queries;
    work.mask = attention_mask<false>(shape, work.batch);
    work.begin = work.mask.begin(work.first_query) / Tile::keys;
    work.end = (work.mask.end(min(work.first_query + Tile::queries, shape.Tq) - 1) + Tile::keys - 1) / Tile::keys;
    return work;
}

// Fills the ring. Runs on one thread of group 0.
template <int D>
__device__ __forceinline__ void hopper_forward_produce(const HopperForwardMaps& maps, const HopperForwardWork& work,
                                                       SharedAddress shared, HopperForwardBarriers<D> barriers) {
    using Tile = HopperForwardTile<D>;
    auto copy = [&](SharedAddress target, int panel_bytes, const TensorMap& map, SharedAddress barrier, int head,
                    int token) {
        mbarrier_arrive_expect(barrier, Tile::panels * panel_bytes);
        for (int panel = 0; panel < Tile::panels; panel++) {
            tma_load(target + panel * panel_bytes, map, barrier, panel * HOPPER_PANEL, head, token, work.batch);
        }
    };
    const SharedAddress k_tiles = shared + Tile::query_bytes, v_tiles = k_tiles + Tile::stages * Tile::key_bytes;
    if (work.begin < work.end) copy(shared, Tile::query_panel, maps.q, barriers.query(), work.head, work.first_query);
    for (int tile = work.begin, stage = 0, round = 0; tile < work.end; tile++) {
        const int token = tile * Tile::keys;
        mbarrier_wait(barriers.key_free(stage), (round & 1) ^ 1);
        copy(k_tiles + stage * Tile::key_bytes, Tile::key_panel, maps.k, barriers.key_full(stage), work.kv_head, token);
        mbarrier_wait(barriers.value_free(stage), (round & 1) ^ 1);
        copy(v_tiles + stage * Tile::key_bytes, Tile::key_panel, maps.v, barriers.value_full(stage), work.kv_head,
             token);
        if (++stage == Tile::stages) stage = 0, round++;
    }
}

// One of the two computing groups (`group` is 0 or 1), with its 64 queries, from their scores to sums and row
// statistics.
template <int D>
struct HopperForwardGroup {
    using Tile = HopperForwardTile<D>;
    static constexpr int HALF_N = Tile::keys / 2;
    static constexpr int turn_barrier = 1, group_barrier = 3;   // + group

    const HopperForwardWork& work;
    SharedAddress q_rows, k_tiles, v_tiles;
    HopperForwardBarriers<D> barriers;
    int group, query, pair, lane;   // query, pair: this lane's first query and first column of eight
    float scale_log2;
    HopperRing<Tile::stages> k_ring, v_ring;
    float scores[HALF_N], sums[D / 2], row_max[2], row_sum[2], rescale[2];
    std::uint32_t weights[HALF_N / 8][4];

    __device__ __forceinline__ void take_turn() { named_barrier_sync(turn_barrier + group, 2 * Tile::group_threads); }
    __device__ __forceinline__ void pass_turn() {
        named_barrier_arrive(turn_barrier + 1 - group, 2 * Tile::group_threads);
    }
    // Starts scores = q k^T of the ring's next tile.
    __device__ __forceinline__ void start_scores() {
        mbarrier_wait(barriers.key_full(k_ring.stage), k_ring.parity);
        const SharedAddress keys = k_tiles + k_ring.stage * Tile::key_bytes;
        wgmma_fence(scores);
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            const int panel = step / 4, within = step % 4 * 32;
            wgmma(scores, wgmma_operand(q_rows, 0, panel * Tile::query_panel + within),
                  wgmma_operand(keys, 0, panel * Tile::key_panel + within), step > 0);
        }
        wgmma_commit();
    }
    // Starts sums += p v of the ring's next tile.
    __device__ __forceinline__ void start_sums(bool accumulate) {
        mbarrier_wait(barriers.value_full(v_ring.stage), v_ring.parity);
        const SharedAddress values = v_tiles + v_ring.stage * Tile::key_bytes;
        wgmma_fence(sums, weights);
#pragma unroll
        for (int step = 0; step < Tile::keys / 16; step++) {
            wgmma<true>(sums, weights[step],
                        wgmma_operand(values, Tile::panels > 1 ? Tile::key_panel : 0, step * 16 * HOPPER_ROW_BYTES),
                        accumulate || step > 0);
        }
        wgmma_commit();
    }
    // Waits for the scores and frees their tile of k. PENDING: batches of products that were started after the scores.
    template <int PENDING>
    __device__ __forceinline__ void end_scores() {
        wgmma_wait<PENDING>(scores);
        if (lane == 0) mbarrier_arrive(barriers.key_free(k_ring.stage));   // one lane of each warp tells the producer
        k_ring.next();
    }
    __device__ __forceinline__ void end_sums() {
        wgmma_wait<0>(sums, weights);
        if (lane == 0) mbarrier_arrive(barriers.value_free(v_ring.stage));
        v_ring.next();
    }
    __device__ __forceinline__ void softmax(int tile) {
        const int first_key = tile * Tile::keys, first_query = work.first_query + group * Tile::group_queries;
        if (!work.mask.sees_all({first_query, Tile::group_queries, first_key, Tile::keys})) {
            mask_scores(scores, work.mask, query, first_key, pair);
        }
        online_softmax(scores, row_max, row_sum, rescale, scale_log2);
    }

    // Computes all tiles. Must not be called if there is none.
    __device__ __forceinline__ void compute() {
        mbarrier_wait(barriers.query(), 0);
        if (group == 1) pass_turn();   // the other group begins
        take_turn();
        start_scores();
        if (group == 0 || work.end - work.begin > 1) pass_turn();
        end_scores<0>();
        softmax(work.begin);
        pack_weights(weights, scores);
        for (int tile = work.begin + 1; tile < work.end; tile++) {
            take_turn();
            start_scores();
            start_sums(tile > work.begin + 1);
            if (group == 0 || tile + 1 < work.end) pass_turn();   // nobody waits for the last turn
            end_scores<1>();
            softmax(tile);
            computed_before_wait(__float_as_uint(row_sum[0] + row_sum[1]), barriers.unused());
            end_sums();
#pragma unroll
            for (int i = 0; i < D / 2; i++) sums[i] *= rescale[i / 2 % 2];
            pack_weights(weights, scores);
        }
        start_sums(work.end - work.begin > 1);
        end_sums();
    }

    // Turns sums into outputs and writes lse. Other warps have read all they need of q by then.
    __device__ __forceinline__ void finish(float* lse, const AttentionShape& shape) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float total = across_quad(row_sum[half], [](float left, float right) { return left + right; });
            const float factor = total > 0.0f ? 1.0f / total : 0.0f;
            const int row = query + 8 * half;
            if (lane % 4 == 0 && row < shape.Tq) {
                lse[(std::int64_t{work.batch} * shape.NH + work.head) * shape.Tq + row] =
                    total > 0.0f ? row_max[half] * shape.scale + logf(total) : -INFINITY;
            }
#pragma unroll
            for (int i = 2 * half; i < D / 2; i += 4) {
                sums[i] *= factor;
                sums[i + 1] *= factor;
            }
        }
    }
    // fp32: each lane writes its own values.
    __device__ __forceinline__ void store(const HeadsView<float>& out, const AttentionShape& shape) {
        store_fragment(head_rows(out, work.batch, work.head), sums, 1.0f, query, shape.Tq, 0, shape.HS);
    }
    // bf16: copies the group's 64 rows to the shared memory of its queries, and from there to `out` with one TMA copy
    // per panel.
    __device__ __forceinline__ void store(unsigned char* q_tile, const TensorMap& out) {
        const int thread = static_cast<int>(threadIdx.x) % Tile::group_threads, row = thread / 32 * 16 + lane / 4;
        const int warp_rows = (group * Tile::group_queries + thread / 32 * 16) * HOPPER_ROW_BYTES;
        named_barrier_sync(group_barrier + group, Tile::group_threads);
#pragma unroll
        for (int i = 0; i < D / 2; i += 2) {
            const int chunk = i / 4 % 8, row_here = row + i / 2 % 2 * 8;
            unsigned char* target = q_tile + i / 32 * Tile::query_panel +
                                    (group * Tile::group_queries + row_here) * HOPPER_ROW_BYTES +
                                    (chunk ^ row_here % 8) * 16 + 2 * pair;
            *reinterpret_cast<std::uint32_t*>(target) = pack_bf16(sums[i], sums[i + 1]);
        }
        for (int panel = 0; panel < Tile::panels; panel++)
            fence_proxy_async(shared_address(q_tile) + panel * Tile::query_panel + warp_rows, 16 * HOPPER_ROW_BYTES);
        named_barrier_sync(group_barrier + group, Tile::group_threads);
        if (thread != 0) return;
        for (int panel = 0; panel < Tile::panels; panel++) {
            tma_store(out, q_rows + panel * Tile::query_panel, panel * HOPPER_PANEL, work.head,
                      work.first_query + group * Tile::group_queries, work.batch);
        }
        tma_store_commit();
        tma_store_wait();
    }
};

template <int D, class O>
__device__ __forceinline__ void hopper_forward(const AttentionForward<bf16, O>& a, const HopperForwardMaps& maps,
                                               int together) {
    using Tile = HopperForwardTile<D>;
    DYNAMIC_SHARED(unsigned char, shared);
    const SharedAddress base = shared_address(shared);
    const HopperForwardBarriers<D> barriers{base + Tile::barrier_offset};
    // Values from one lane tell the compiler that they are equal in the whole warp.
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / Tile::group_threads, 0) - 1;
    const HopperForwardWork work = hopper_forward_work<D>(a, together);
    if (threadIdx.x == 0) barriers.make();
    __syncthreads();
    if (group < 0) {
        registers_fewer<Tile::producer_registers>();
        if (threadIdx.x == 0) hopper_forward_produce<D>(maps, work, base, barriers);
        return;
    }
    registers_more<Tile::consumer_registers>();
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int row = group * Tile::group_queries + warp * 16 + lane / 4;
    HopperForwardGroup<D> consumer{work,
                                   base + group * Tile::group_queries * HOPPER_ROW_BYTES,
                                   base + Tile::query_bytes,
                                   base + Tile::query_bytes + Tile::stages * Tile::key_bytes,
                                   barriers,
                                   group,
                                   work.first_query + row,
                                   lane % 4 * 2,
                                   lane,
                                   a.shape.scale * LOG2_E,
                                   {},
                                   {},
                                   {},
                                   {},
                                   {-INFINITY, -INFINITY},
                                   {},
                                   {},
                                   {}};
    if (work.begin < work.end) consumer.compute();
    consumer.finish(a.lse, a.shape);
    if constexpr (std::is_same_v<O, float>) {
        consumer.store(a.out, a.shape);
    } else {
        consumer.store(shared, maps.out);
    }
}

// Grid (query tiles of all heads). `together`: see hopper_tile. scale > 0.
template <class O, int D>
__global__ void __launch_bounds__(HopperForwardTile<D>::threads, 1)
    attention_forward_hopper(AttentionForward<bf16, O> a, const __grid_constant__ HopperForwardMaps maps,
                             int together) {
    if constexpr (hopper_instructions) hopper_forward<D>(a, maps, together);
}
