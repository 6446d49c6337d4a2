// Backward attention for sm_90a, bf16 in, fp32 sums, five products:
//     p = exp(scale k q^T - lse)      dp = v dout^T      ds = p (dp - delta)
//     dv = p dout                     dk = scale ds q    dq = scale ds^T k
//
// A block of three groups of four warps does 128 keys of a head of keys. It walks over the heads of queries that share
// it, and for each over the tiles of 64 queries that see its keys:
//
//     group 0     one thread copies k and v, then tiles of q and dout, through a ring (TMA); a warp puts lse and delta
//                 beside them
//     groups 1, 2 64 keys each. Scores are transposed, rows are keys: p and ds are left operands in registers for dv
//                 and dk. ds is also written to shared memory; from there each group makes dq of all 128 keys for half
//                 of the channels.
//
// dq is a sum over blocks, in global memory and in a fixed order: a tile of queries adds the tiles of keys from the
// last one that it sees down to the first. A block waits until the blocks before it have added (a counter for each tile
// of queries and group), adds, and then increments the counter. Blocks draw numbers as they start, the last keys first.
// So every block that a block waits for has started before it, and all of them end. In this order a causal block is the
// first to add to its own first tile. The block of the first keys that the tile sees is the last to add: it writes dq.
//
// dk and dv stay in registers for all heads of queries, and are written once. Kernels for such grouped queries are
// instances of their own (GROUPED): the others keep no count of heads.
#pragma once

#include "llmc/kernels/attention/sm90/attention_hopper.cuh"

struct HopperBackwardMaps {
    TensorMap q, k, v, dout;
};

// State that blocks share in global memory: counters that begin at zero, and sums of dq, in the order in which a
// group's lanes hold them.
struct HopperBackwardShared {
    int* numbers;   // [0]: the next block's; then, for each head, tile of queries and group: blocks that have added
    float4* sums;   // (heads of queries, tiles of queries, groups, D / 16, threads of a group)
};

template <int D>
struct HopperBackwardTile {
    static_assert(D == 64 || D == 128);
    static constexpr int threads = 384, group_threads = 128, groups = 2;   // groups: computing groups only
    static constexpr int group_keys = 64, keys = groups * group_keys, queries = 64;
    static constexpr int stages = D == 64 ? 3 : 2;
    static constexpr int panels = D / HOPPER_PANEL;
    static constexpr int key_panel = keys * HOPPER_ROW_BYTES, query_panel = queries * HOPPER_ROW_BYTES;
    static constexpr int key_bytes = panels * key_panel, query_bytes = panels * query_panel;
    static constexpr int staging_bytes = keys * HOPPER_ROW_BYTES;   // ds (keys, queries)
    static constexpr int stage_offset = 2 * key_bytes, staging_offset = stage_offset + 2 * stages * query_bytes;
    static constexpr int statistic_offset = staging_offset + 2 * staging_bytes;
    static constexpr int statistic_bytes = 2 * queries * 4;   // lse, delta
    static constexpr int barrier_offset = statistic_offset + stages * statistic_bytes;
    static constexpr int shared_bytes = barrier_offset + 1024;
    static constexpr int launch_registers = 65536 / threads / 8 * 8;   // see HopperForwardTile
    static constexpr int producer_registers = 40, consumer_registers = 232;
    static_assert(group_threads * (producer_registers + groups * consumer_registers) <= threads * launch_registers);
};

// mbarriers of a block, 8 bytes each, and the block's number.
template <int D>
struct HopperBackwardBarriers {
    SharedAddress first;
    static constexpr int stages = HopperBackwardTile<D>::stages;
    static constexpr int number_offset = 8 * (1 + 2 * stages);
    __device__ SharedAddress unused() const { return first + number_offset + 8; }
    __device__ SharedAddress key() const { return first; }
    __device__ SharedAddress full(int stage) const { return first + 8 * (1 + stage); }
    __device__ SharedAddress free(int stage) const { return first + 8 * (1 + stages + stage); }

    __device__ void make() const {
        mbarrier_init(key(), 1);
        for (int stage = 0; stage < stages; stage++) {
            mbarrier_init(full(stage), 1 + 32);   // the copying thread, and the warp of lse and delta
            mbarrier_init(free(stage), 4 * HopperBackwardTile<D>::groups);   // one lane of each warp
        }
        mbarrier_init_fence();
    }
};

// Tiles and heads that a block computes.
struct HopperBackwardWork {
    int batch, key_head;
    int head, heads_head;   // first head of queries; heads_head: index into (B, NH)
    int heads;              // heads of queries
    int key_tile, first_key;
    AttentionMask mask;
    int begin, end;   // first and end tile of the queries that see any of the keys
    int tiles;        // tiles of all queries
};
template <int D, bool GROUPED>
__device__ __forceinline__ HopperBackwardWork hopper_backward_work(const AttentionShape& shape, int number,
                                                                   int together) {
    using Tile = HopperBackwardTile<D>;
    const int key_heads = GROUPED ? shape.NH / shape.group : shape.NH;
    const HopperTile place =
        hopper_tile(number, (shape.Tk + Tile::keys - 1) / Tile::keys, shape.B * key_heads, together);
    HopperBackwardWork work;
    work.heads = GROUPED ? shape.group : 1;
    work.batch = place.head / key_heads;
    work.key_head = place.head % key_heads;
    work.head = work.key_head * work.heads;
    work.heads_head = place.head * work.heads;
    work.key_tile = place.tile;
    work.first_key = place.tile * Tile::keys;
    work.mask = attention_mask<false>(shape, work.batch);
    work.tiles = (shape.Tq + Tile::queries - 1) / Tile::queries;
    const int first_query = work.mask.first_query(work.first_key),
              query_end = work.mask.query_end(work.first_key + Tile::keys);
    work.end = (query_end + Tile::queries - 1) / Tile::queries;
    work.begin = first_query < query_end ? first_query / Tile::queries : work.end;
    return work;
}

// Calls run(i) for each of `heads` heads of queries in order; for a single one without a loop.
template <bool GROUPED, class Run>
__device__ __forceinline__ void for_each_head(int heads, Run run) {
    if constexpr (GROUPED) {
        for (int i = 0; i < heads; i++) run(i);
    } else {
        run(0);
    }
}

// Copies k and v, and fills the ring of q and dout. Runs on one thread of group 0.
template <bool GROUPED, int D>
__device__ __forceinline__ void hopper_backward_produce(const HopperBackwardMaps& maps, const HopperBackwardWork& work,
                                                        SharedAddress shared, HopperBackwardBarriers<D> barriers) {
    using Tile = HopperBackwardTile<D>;
    auto copy = [&](SharedAddress target, int panel_bytes, const TensorMap& map, SharedAddress barrier, int head,
                    int token) {
        for (int panel = 0; panel < Tile::panels; panel++) {
            tma_load(target + panel * panel_bytes, map, barrier, panel * HOPPER_PANEL, head, token, work.batch);
        }
    };
    if (work.begin == work.end) return;
    mbarrier_arrive_expect(barriers.key(), 2 * Tile::key_bytes);
    copy(shared, Tile::key_panel, maps.k, barriers.key(), work.key_head, work.first_key);
    copy(shared + Tile::key_bytes, Tile::key_panel, maps.v, barriers.key(), work.key_head, work.first_key);
    HopperRing<Tile::stages> ring;
    for_each_head<GROUPED>(work.heads, [&](int i) {
        for (int tile = work.begin; tile < work.end; tile++, ring.next()) {
            const SharedAddress stage = shared + Tile::stage_offset + ring.stage * 2 * Tile::query_bytes;
            const SharedAddress full = barriers.full(ring.stage);
            mbarrier_wait(barriers.free(ring.stage), ring.parity ^ 1);
            mbarrier_arrive_expect(full, 2 * Tile::query_bytes);
            copy(stage, Tile::query_panel, maps.q, full, work.head + i, tile * Tile::queries);
            copy(stage + Tile::query_bytes, Tile::query_panel, maps.dout, full, work.head + i, tile * Tile::queries);
        }
    });
}

// Writes lse, in units of log 2, and delta of the ring's tiles. Runs on group 0's second warp. Past the end it writes
// zeros, and q and dout are zeros there too: those queries add nothing.
template <bool GROUPED, int D>
__device__ __forceinline__ void hopper_backward_statistics(const float* lse, const float* delta, int Tq,
                                                           const HopperBackwardWork& work, unsigned char* shared,
                                                           HopperBackwardBarriers<D> barriers) {
    using Tile = HopperBackwardTile<D>;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    HopperRing<Tile::stages> ring;
    for_each_head<GROUPED>(work.heads, [&](int head) {
        const std::int64_t row = std::int64_t{work.heads_head + head} * Tq;
        for (int tile = work.begin; tile < work.end; tile++, ring.next()) {
            float* target =
                reinterpret_cast<float*>(shared + Tile::statistic_offset + ring.stage * Tile::statistic_bytes);
            mbarrier_wait(barriers.free(ring.stage), ring.parity ^ 1);
            for (int i = lane; i < Tile::queries; i += 32) {
                const int query = tile * Tile::queries + i;
                target[i] = query < Tq ? finite_lse_log2(lse[row + query]) : 0.0f;
                target[Tile::queries + i] = query < Tq ? delta[row + query] : 0.0f;
            }
            mbarrier_arrive(barriers.full(ring.stage));
        }
    });
}

// One of the two computing groups (`group` is 0 or 1), with its 64 keys.
template <int D, class G, bool GROUPED>
struct HopperBackwardGroup {
    using Tile = HopperBackwardTile<D>;
    static constexpr int HALF_N = Tile::queries / 2, QUERY_HALF_N = D / 4;   // registers per thread: scores; dq
    static constexpr int staging_barrier = 1, group_barrier = 2;             // + group

    const AttentionBackward<bf16, G>& a;
    const HopperBackwardWork& work;
    HopperBackwardShared in_memory;
    unsigned char* shared;
    SharedAddress base;
    HopperBackwardBarriers<D> barriers;
    int group, thread;   // index of the group; of the thread in it
    float dk[D / 2], dv[D / 2];
    int head_index = 0;   // counts the heads of queries before the one at hand

    __device__ __forceinline__ int row() const { return thread / 32 * 16 + thread % 32 / 4; }
    __device__ __forceinline__ int pair() const { return thread % 4 * 2; }

    // Starts scores = k q^T and dscores = v dout^T.
    __device__ __forceinline__ void start_scores(float (&scores)[HALF_N], float (&dscores)[HALF_N],
                                                 SharedAddress queries) {
        const SharedAddress keys = base + group * Tile::group_keys * HOPPER_ROW_BYTES;
        wgmma_fence(scores);
        multiply(scores, keys, queries);
        wgmma_commit();
        wgmma_fence(dscores);
        multiply(dscores, keys + Tile::key_bytes, queries + Tile::query_bytes);
        wgmma_commit();
    }
    __device__ __forceinline__ void multiply(float (&product)[HALF_N], SharedAddress keys, SharedAddress queries) {
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            const int panel = step / 4, within = step % 4 * 32;
            wgmma(product, wgmma_operand(keys, 0, panel * Tile::key_panel + within),
                  wgmma_operand(queries, 0, panel * Tile::query_panel + within), step > 0);
        }
    }
    // Starts sums += weights rows, `rows` being a tile of q or dout.
    __device__ __forceinline__ void accumulate(float (&sums)[D / 2], const std::uint32_t (&weights)[HALF_N / 8][4],
                                               SharedAddress rows) {
#pragma unroll
        for (int step = 0; step < Tile::queries / 16; step++) {
            wgmma<true>(sums, weights[step],
                        wgmma_operand(rows, Tile::panels > 1 ? Tile::query_panel : 0, step * 16 * HOPPER_ROW_BYTES),
                        true);
        }
    }
    // Starts dq = ds^T k for this group's half of the channels.
    __device__ __forceinline__ void multiply_queries(float (&dq)[QUERY_HALF_N], SharedAddress staging) {
        const SharedAddress keys = base + (D == 64 ? group * HOPPER_ROW_BYTES / 2 : group * Tile::key_panel);
#pragma unroll
        for (int step = 0; step < Tile::keys / 16; step++) {
            wgmma<true, true>(dq, wgmma_operand(staging, 0, step * 16 * HOPPER_ROW_BYTES),
                              wgmma_operand(keys, 0, step * 16 * HOPPER_ROW_BYTES), step > 0);
        }
    }

    // Masks scores and turns them into p.
    __device__ __forceinline__ void probabilities(float (&scores)[HALF_N], int first_query, const float* lse) {
        const int first_key = work.first_key + group * Tile::group_keys;
        if (!work.mask.sees_all({first_query, Tile::queries, first_key, Tile::group_keys})) {
#pragma unroll
            for (int i = 0; i < HALF_N; i++) {
                const int key = first_key + row() + i / 2 % 2 * 8, query = first_query + i / 4 * 8 + pair() + i % 2;
                if (!work.mask.sees(query, key)) scores[i] = -INFINITY;
            }
        }
        const float scale_log2 = a.shape.scale * LOG2_E;
#pragma unroll
        for (int i = 0; i < HALF_N; i += 4) {
            const float2 of_columns = *reinterpret_cast<const float2*>(lse + 2 * i + pair());
#pragma unroll
            for (int e = i; e < i + 4; e++)
                scores[e] = exp2_approximate(scores[e] * scale_log2 - (e % 2 ? of_columns.y : of_columns.x));
        }
    }
    // Turns dscores into ds = p (dscores - delta).
    __device__ __forceinline__ void score_gradients(float (&dscores)[HALF_N], const float (&p)[HALF_N],
                                                    const float* delta) {
#pragma unroll
        for (int i = 0; i < HALF_N; i += 4) {
            const float2 of_columns = *reinterpret_cast<const float2*>(delta + 2 * i + pair());
#pragma unroll
            for (int e = i; e < i + 4; e++) dscores[e] = p[e] * (dscores[e] - (e % 2 ? of_columns.y : of_columns.x));
        }
    }
    // Returns a value that depends on all of p. Its sign bit is 0, because no p is negative.
    __device__ __forceinline__ static std::uint32_t any_sign(const std::uint32_t (&p)[HALF_N / 8][4]) {
        std::uint32_t any = 0;
#pragma unroll
        for (const auto& step : p) any |= step[0] | step[1] | step[2] | step[3];
        return any;
    }
    // Writes ds to shared memory and waits for the other group. Rows are keys, columns queries.
    __device__ __forceinline__ void stage(const std::uint32_t (&weights)[HALF_N / 8][4], int staging_offset) {
        const int first_row = group * Tile::group_keys + row();
#pragma unroll
        for (int i = 0; i < HALF_N; i += 2) {
            const int here = first_row + i / 2 % 2 * 8;
            unsigned char* target = shared + staging_offset + here * HOPPER_ROW_BYTES + (i / 4 ^ here % 8) * 16;
            *reinterpret_cast<std::uint32_t*>(target + 2 * pair()) = weights[i / 8][i / 2 % 4];
        }
        const int warp_rows = group * Tile::group_keys + thread / 32 * 16;
        fence_proxy_async(base + staging_offset + warp_rows * HOPPER_ROW_BYTES, 16 * HOPPER_ROW_BYTES);
        named_barrier_sync(staging_barrier, Tile::groups * Tile::group_threads);
    }

    // Returns the head of queries at hand.
    __device__ __forceinline__ int head() const { return work.head + (GROUPED ? head_index : 0); }
    // Returns the index of this group's part of a tile of queries, of the head at hand or `back` heads before.
    __device__ __forceinline__ std::int64_t part(int tile, int back = 0) const {
        const int heads_head = work.heads_head + (GROUPED ? head_index - back : 0);
        return (std::int64_t{heads_head} * work.tiles + tile) * Tile::groups + group;
    }
    // Returns this thread's part of the sums of dq in global memory.
    __device__ __forceinline__ float4* sums(int tile) const {
        return in_memory.sums + part(tile) * (QUERY_HALF_N / 4 * Tile::group_threads) + thread;
    }
    // Return the first tile of keys that a tile of queries sees, and the one after the last.
    __device__ __forceinline__ int first_key_tile(int tile) const {
        return work.mask.begin(tile * Tile::queries) / Tile::keys;
    }
    __device__ __forceinline__ int key_tile_end(int tile) const {
        const int last_query = min((tile + 1) * Tile::queries, a.shape.Tq) - 1;
        return (work.mask.end(last_query) + Tile::keys - 1) / Tile::keys;
    }
    // Waits until the blocks before this one have added to dq; returns false if there are none.
    __device__ __forceinline__ bool take_turn(int tile) {
        const int before = key_tile_end(tile) - 1 - work.key_tile;
        if (before == 0) return false;
        if (thread == 0) wait_acquire(in_memory.numbers + 1 + part(tile), before);
        named_barrier_sync(group_barrier + group, Tile::group_threads);
        return true;
    }
    // Adds elements FIRST to FIRST + COUNT of dq's sums in global memory to `sum`.
    template <int FIRST, int COUNT>
    __device__ __forceinline__ void fetch(float* sum, int tile) const {
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            const float4 here = __ldcg(sums(tile) + (FIRST + i) / 4 * Tile::group_threads);
            sum[i] += here.x;
            sum[i + 1] += here.y;
            sum[i + 2] += here.z;
            sum[i + 3] += here.w;
        }
    }
    // Waits for dq = ds^T k and adds the sums in global memory. The first `early` of these are loaded while the
    // products run; registers do not suffice for more.
    __device__ __forceinline__ void end_queries(float (&dq)[QUERY_HALF_N], std::uint32_t (&p)[HALF_N / 8][4],
                                                int tile) {
        constexpr int early = 16;
        float sum[early] = {};
        const bool added_to = take_turn(tile);
        if (added_to) fetch<0, early>(sum, tile);
        wgmma_wait<1>(dq, dv, p);
#pragma unroll
        for (int i = 0; i < early; i++) dq[i] += sum[i];
        if (added_to) fetch<early, QUERY_HALF_N - early>(dq + early, tile);
    }
    // Stores the new sums in global memory; the last block writes dq instead.
    __device__ __forceinline__ void put(const float (&dq)[QUERY_HALF_N], int tile) {
        if (work.key_tile == first_key_tile(tile)) return write(dq, tile);
#pragma unroll
        for (int i = 0; i < QUERY_HALF_N; i += 4)
            __stcg(sums(tile) + i / 4 * Tile::group_threads, make_float4(dq[i], dq[i + 1], dq[i + 2], dq[i + 3]));
    }
    // Increments the counter of blocks that have added to the tile. Called some time after put(), so that nothing waits
    // for the memory.
    __device__ __forceinline__ void pass_turn(int tile, int back = 0) {
        if (work.key_tile == first_key_tile(tile)) return;
        named_barrier_sync(group_barrier + group, Tile::group_threads);
        if (thread == 0) add_release(in_memory.numbers + 1 + part(tile, back), 1);
    }
    // Does so for the tile computed before this one, if there is any.
    __device__ __forceinline__ void pass_turn_before(int tile) {
        if (tile > work.begin) return pass_turn(tile - 1);
        if (GROUPED && head_index > 0) pass_turn(work.end - 1, 1);
    }
    __device__ __forceinline__ void write(const float (&dq)[QUERY_HALF_N], int tile) {
        store_fragment(head_rows(a.dq, work.batch, head()), dq, a.shape.scale, tile * Tile::queries + row(), a.shape.Tq,
                       group * D / 2, a.shape.HS);
    }

    // Computes one tile of queries.
    __device__ __forceinline__ void compute(int tile, HopperRing<Tile::stages> ring) {
        // the two buffers take turns from head to head, too: where heads before had an odd number of tiles, `odd` is
        // odd
        const int odd = GROUPED ? head_index & (work.end - work.begin) : 0;
        const int staging_offset = Tile::staging_offset + ((odd + tile) & 1) * Tile::staging_bytes;
        const SharedAddress queries = base + Tile::stage_offset + ring.stage * 2 * Tile::query_bytes;
        const float* lse =
            reinterpret_cast<const float*>(shared + Tile::statistic_offset + ring.stage * Tile::statistic_bytes);
        float scores[HALF_N], dscores[HALF_N];
        std::uint32_t p[HALF_N / 8][4], ds[HALF_N / 8][4];
        mbarrier_wait(barriers.full(ring.stage), ring.parity);
        start_scores(scores, dscores, queries);
        pass_turn_before(tile);
        wgmma_wait<1>(scores);
        probabilities(scores, tile * Tile::queries, lse);
        pack_weights(p, scores);
        computed_before_wait(any_sign(p), barriers.unused());
        wgmma_wait<0>(dscores);
        wgmma_fence(dv, p);
        accumulate(dv, p, queries + Tile::query_bytes);
        wgmma_commit();   // nothing waits for this product alone: it may end with the next ones
        score_gradients(dscores, scores, lse + Tile::queries);
        pack_weights(ds, dscores);
        stage(ds, staging_offset);
        float dq[QUERY_HALF_N];
        wgmma_fence(dq);
        multiply_queries(dq, base + staging_offset);
        wgmma_commit();
        wgmma_fence(dk, ds);
        accumulate(dk, ds, queries);
        wgmma_commit();
        end_queries(dq, p, tile);
        put(dq, tile);
        wgmma_wait<0>(dk, ds);
        if (thread % 32 == 0) mbarrier_arrive(barriers.free(ring.stage));
    }

    __device__ __forceinline__ void run() {
        if (work.begin < work.end) mbarrier_wait(barriers.key(), 0);
        HopperRing<Tile::stages> ring;
        for_each_head<GROUPED>(work.heads, [&](int i) {
            head_index = i;
            for (int tile = work.begin; tile < work.end; tile++, ring.next()) compute(tile, ring);
        });
        if (work.begin < work.end) pass_turn(work.end - 1);
        const int first_row = work.first_key + group * Tile::group_keys + row();
        store_fragment(head_rows(a.dk, work.batch, work.key_head), dk, a.shape.scale, first_row, a.shape.Tk, 0,
                       a.shape.HS);
        store_fragment(head_rows(a.dv, work.batch, work.key_head), dv, 1.0f, first_row, a.shape.Tk, 0, a.shape.HS);
        if (work.key_tile > 0) return;
        const float none[QUERY_HALF_N] = {};
        for_each_head<GROUPED>(work.heads, [&](int i) {
            head_index = i;
            for (int tile = 0; tile < work.tiles; tile++) {
                if (first_key_tile(tile) >= key_tile_end(tile)) write(none, tile);   // these queries see no key
            }
        });
    }
};

template <int D, bool GROUPED, class G>
__device__ __forceinline__ void hopper_backward(const AttentionBackward<bf16, G>& a, const HopperBackwardMaps& maps,
                                                HopperBackwardShared in_memory, int together) {
    using Tile = HopperBackwardTile<D>;
    DYNAMIC_SHARED(unsigned char, shared);
    const SharedAddress base = shared_address(shared);
    const HopperBackwardBarriers<D> barriers{base + Tile::barrier_offset};
    int* number = reinterpret_cast<int*>(shared + Tile::barrier_offset + barriers.number_offset);
    if (threadIdx.x == 0) {
        barriers.make();
        *number = atomicAdd(in_memory.numbers, 1);
    }
    __syncthreads();
    // Values from one lane tell the compiler that they are equal in the whole warp.
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / Tile::group_threads, 0) - 1;
    const HopperBackwardWork work = hopper_backward_work<D, GROUPED>(a.shape, __shfl_sync(~0u, *number, 0), together);
    if (group < 0) {
        registers_fewer<Tile::producer_registers>();
        if (threadIdx.x == 0) hopper_backward_produce<GROUPED>(maps, work, base, barriers);
        if (threadIdx.x / 32 == 1)
            hopper_backward_statistics<GROUPED>(a.lse, a.delta, a.shape.Tq, work, shared, barriers);
        return;
    }
    registers_more<Tile::consumer_registers>();
    HopperBackwardGroup<D, G, GROUPED> consumer{
        a, work, in_memory, shared, base, barriers, group, static_cast<int>(threadIdx.x) % Tile::group_threads, {}, {}};
    consumer.run();
}

// Grid (key tiles of all heads of keys). `together`: see hopper_tile. scale > 0. in_memory.numbers begin at zero.
// GROUPED: where heads of queries share a head of keys.
template <class G, int D, bool GROUPED = false>
__global__ void __launch_bounds__(HopperBackwardTile<D>::threads, 1)
    attention_backward_hopper(AttentionBackward<bf16, G> a, const __grid_constant__ HopperBackwardMaps maps,
                              HopperBackwardShared in_memory, int together) {
    if constexpr (hopper_instructions) hopper_backward<D, GROUPED>(a, maps, in_memory, together);
}
