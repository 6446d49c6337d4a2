#include <algorithm>
#include <limits>
#include <type_traits>

#include "llmc/base/check.h"
#include "llmc/kernels/attention_hopper_forward.cuh"
#include "llmc/kernels/attention_kernels.h"

namespace {

// Calls run(std::integral_constant<int, D>{}) with the smallest head size D that kernels exist for and that holds HS.
template <class Run>
void with_padded_head_size(int HS, Run run) {
    if (HS <= 64) return run(std::integral_constant<int, 64>{});
    run(std::integral_constant<int, 128>{});
}

// Boxes of `rows` tokens of one head. A head's stride is smaller than a token's where heads are packed: the driver's
// documentation shows growing strides only, so if a map is refused, look here first.
template <class T>
TensorMap map_of_heads(const HeadsView<T>& view, const AttentionShape& shape, int tokens, int rows) {
    auto size = [](int count) { return static_cast<std::uint64_t>(count); };
    auto bytes = [](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * sizeof(bf16); };
    return make_tensor_map(view.data, {size(shape.HS), size(tokens), size(shape.NH), size(shape.B)},
                           {bytes(view.token), bytes(view.head), bytes(view.batch)},
                           {static_cast<std::uint32_t>(rows), 1, 1});
}

// As many heads as the second-level cache holds k and v of, beside what passes through it.
int heads_together(const AttentionShape& shape) {
    constexpr std::int64_t cache_bytes = 32 << 20;   // of 50 MB
    const std::int64_t head_bytes = std::int64_t{shape.Tk} * shape.HS * 2 * static_cast<std::int64_t>(sizeof(bf16));
    return static_cast<int>(std::clamp<std::int64_t>(cache_bytes / head_bytes, 1, std::int64_t{shape.B} * shape.NH));
}

}   // namespace

template <class O>
void launch_attention_forward_hopper(const AttentionForward<bf16, O>& a, cudaStream_t stream) {
    const AttentionShape& shape = a.shape;
    with_padded_head_size(shape.HS, [&](auto head_size) {
        using Tile = HopperForwardTile<head_size()>;
        HopperForwardMaps maps{map_of_heads(a.q, shape, shape.Tq, Tile::queries),
                               map_of_heads(a.k, shape, shape.Tk, Tile::keys),
                               map_of_heads(a.v, shape, shape.Tk, Tile::keys), TensorMap{}};
        if constexpr (std::is_same_v<O, bf16>) maps.out = map_of_heads(a.out, shape, shape.Tq, Tile::group_queries);
        const std::int64_t blocks = ceil_div(std::int64_t{shape.Tq}, Tile::queries) * shape.B * shape.NH;
        ENSURE(blocks <= std::numeric_limits<int>::max(), blocks, " blocks");
        launch(attention_forward_hopper<O, head_size()>,
               forward_launch(a, dim3(static_cast<unsigned>(blocks)), Tile::threads, Tile::shared_bytes, stream), a,
               maps, heads_together(shape));
    });
}

template void launch_attention_forward_hopper(const AttentionForward<bf16, bf16>&, cudaStream_t);
template void launch_attention_forward_hopper(const AttentionForward<bf16, float>&, cudaStream_t);
