// Starts attention's kernels for sm_90a.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "llmc/base/check.h"
#include "llmc/kernels/attention/attention_kernels.h"
#include "llmc/kernels/attention/sm90/attention_hopper_backward.cuh"
#include "llmc/kernels/attention/sm90/attention_hopper_forward.cuh"

// Returns a tensor map with boxes of `rows` tokens of one head. Heads come before tokens: where heads are packed, as in
// the model, strides grow from dimension to dimension; the driver's documentation shows no others.
template <class T>
TensorMap map_of_heads(const HeadsView<T>& view, const AttentionShape& shape, int tokens, int heads, int rows) {
    auto size = [](int count) { return static_cast<std::uint64_t>(count); };
    auto bytes = [](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * sizeof(bf16); };
    return make_tensor_map(view.data, {size(shape.HS), size(heads), size(tokens), size(shape.B)},
                           {bytes(view.head), bytes(view.token), bytes(view.batch)},
                           {1, static_cast<std::uint32_t>(rows), 1});
}

// Returns how many of `heads` fit the L2 cache at once: `head_bytes` is read by all blocks of one head, and some of the
// cache is left to other data.
inline int heads_together(std::int64_t heads, std::int64_t head_bytes) {
    constexpr std::int64_t cache_bytes = 32 << 20;   // an H100's L2 cache has 50 MB
    return static_cast<int>(std::clamp<std::int64_t>(cache_bytes / head_bytes, 1, heads));
}

// Returns the grid with one block for each tile of `rows` tokens of every head.
inline dim3 hopper_grid(std::int64_t heads, int tokens, int rows) {
    const std::int64_t blocks = ceil_div(std::int64_t{tokens}, rows) * heads;
    ENSURE(blocks <= std::numeric_limits<int>::max(), blocks, " blocks");
    return dim3(static_cast<unsigned>(blocks));
}

template <int D, class O>
void launch_hopper_forward(const AttentionForward<bf16, O>& a, cudaStream_t stream) {
    using Tile = HopperForwardTile<D>;
    const AttentionShape& shape = a.shape;
    HopperForwardMaps maps{map_of_heads(a.q, shape, shape.Tq, shape.NH, Tile::queries),
                           map_of_heads(a.k, shape, shape.Tk, shape.kv_heads(), Tile::keys),
                           map_of_heads(a.v, shape, shape.Tk, shape.kv_heads(), Tile::keys), TensorMap{}};
    if constexpr (std::is_same_v<O, bf16>)
        maps.out = map_of_heads(a.out, shape, shape.Tq, shape.NH, Tile::group_queries);
    const std::int64_t keys_and_values = std::int64_t{shape.Tk} * shape.HS * 4,
                       heads = std::int64_t{shape.B} * shape.NH;
    launch(attention_forward_hopper<O, D>,
           forward_launch(a, hopper_grid(heads, shape.Tq, Tile::queries), Tile::threads, Tile::shared_bytes, stream), a,
           maps, heads_together(heads, keys_and_values));
}

// Offsets of the counters and sums in the workspace in which blocks add up dq.
template <int D>
struct HopperBackwardPlaces {
    using Tile = HopperBackwardTile<D>;
    std::size_t numbers, sums;   // sizes in units of four bytes

    explicit HopperBackwardPlaces(const AttentionShape& shape) {
        const std::size_t parts = static_cast<std::size_t>(ceil_div(shape.Tq, Tile::queries)) * Tile::groups *
                                  static_cast<std::size_t>(shape.B) * static_cast<std::size_t>(shape.NH);
        numbers = 1 + parts;
        sums = parts * (D / 4) * Tile::group_threads;
    }
    std::size_t all() const { return numbers + sums; }
    HopperBackwardShared in(float* workspace) const {
        return {reinterpret_cast<int*>(workspace + sums), reinterpret_cast<float4*>(workspace)};
    }
};

template <int D, class G>
HopperBackwardMaps hopper_backward_maps(const AttentionBackward<bf16, G>& a) {
    using Tile = HopperBackwardTile<D>;
    const AttentionShape& shape = a.shape;
    return {map_of_heads(a.q, shape, shape.Tq, shape.NH, Tile::queries),
            map_of_heads(a.k, shape, shape.Tk, shape.kv_heads(), Tile::keys),
            map_of_heads(a.v, shape, shape.Tk, shape.kv_heads(), Tile::keys),
            map_of_heads(a.dout, shape, shape.Tq, shape.NH, Tile::queries)};
}

template <int D, class G, bool GROUPED>
void launch_hopper_backward_kernel(const AttentionBackward<bf16, G>& a, float* workspace, cudaStream_t stream) {
    using Tile = HopperBackwardTile<D>;
    const AttentionShape& shape = a.shape;
    const HopperBackwardPlaces<D> places(shape);
    const HopperBackwardShared in_memory = places.in(workspace);
    CUDA_CHECK(cudaMemsetAsync(in_memory.numbers, 0, places.numbers * sizeof(int), stream));
    const std::int64_t queries_and_sums = std::int64_t{shape.Tq} * (shape.HS * 4 + D * 4) * shape.group,
                       heads = std::int64_t{shape.B} * shape.kv_heads();
    const Launch where =
        backward_launch(a, hopper_grid(heads, shape.Tk, Tile::keys), Tile::threads, Tile::shared_bytes, stream)
            .writes(workspace, places.all() * sizeof(float));
    launch(attention_backward_hopper<G, D, GROUPED>, with_queries(with_keys(where, shape, a.dk, a.dv), shape, a.dq), a,
           hopper_backward_maps<D>(a), in_memory, heads_together(heads, queries_and_sums));
}

template <int D, class G>
void launch_hopper_backward(const AttentionBackward<bf16, G>& a, float* workspace, cudaStream_t stream) {
    if (a.shape.group > 1) return launch_hopper_backward_kernel<D, G, true>(a, workspace, stream);
    launch_hopper_backward_kernel<D, G, false>(a, workspace, stream);
}
