// For tests: where a global element is stored, found for that element alone: the inverse of owned_ranges, apart from
// it.
#pragma once

#include "llmc/mesh/shard.h"

// Elements a rank stores of a tensor, padding included.
inline std::int64_t stored_elements(const TensorSpec& tensor, const RankLayout& place, StateKind state) {
    const ZeroCut cut =
        zero_cut(held_part_of(tensor, place.mesh).elements(), group_size(place.mesh, zero_axes_of(tensor, place.mesh)));
    return is_sharded(state, place.zero_stage) ? cut.shard : cut.padded;
}

struct ElementHome {
    int tp_rank = -1;     // -1: on every tp rank (the tensor is not cut)
    int tp_copies = 1;    // else on so many ranks, from tp_rank on
    int ep_rank = -1;     // rank of a dealt-out expert; -1: experts are not dealt out
    int zero_rank = -1;   // -1: on every rank of the ZeRO group (the state is not sharded)
    std::int64_t local = 0;
};
// The inverse of tp_shard_ranges for one element.
inline ElementHome tp_shard_home(const TensorSpec& tensor, int tp, std::int64_t element) {
    const std::int64_t row = element / tensor.cols, col = element % tensor.cols;
    const TensorSpec tp_shard = tp_shard_of(tensor, tp);
    ElementHome home;
    switch (tensor.cut) {
        case TensorCut::none:
        case TensorCut::experts: home.local = element; break;
        case TensorCut::vocabulary:
            home.tp_rank = static_cast<int>(row / tp_shard.rows);
            home.local = row % tp_shard.rows * tp_shard.cols + col;
            break;
        case TensorCut::row_parallel:
            home.tp_rank = static_cast<int>(col / tp_shard.cols);
            home.local = row * tp_shard.cols + col % tp_shard.cols;
            break;
        case TensorCut::column_parallel: {
            std::int64_t before = 0, before_in_shard = 0;
            std::size_t i = 0;
            for (std::int64_t block : tensor.blocks.empty() ? std::vector{tensor.rows} : tensor.blocks) {
                const int parts = tensor.heads.empty() ? tp : std::min(tp, static_cast<int>(tensor.heads[i++]));
                const std::int64_t cut_block = block / parts, in_block = row - before;
                if (in_block < block) {
                    home.tp_copies = tp / parts;
                    home.tp_rank = static_cast<int>(in_block / cut_block) * home.tp_copies;
                    home.local = (before_in_shard + in_block % cut_block) * tp_shard.cols + col;
                    break;
                }
                before += block;
                before_in_shard += cut_block;
            }
            break;
        }
    }
    return home;
}

inline ElementHome home_of(const TensorSpec& tensor, const RankLayout& place, StateKind state,
                           std::int64_t global_element) {
    ENSURE(global_element >= 0 && global_element < tensor.elements(), "element ", global_element, " of ",
           tensor.elements());
    ElementHome home = tp_shard_home(tensor, place.mesh.tp, global_element);
    if (is_expert_parallel(tensor, place.mesh)) {
        const std::int64_t held = tensor.elements() / place.mesh.ep;
        home.ep_rank = static_cast<int>(global_element / held);
        home.local = global_element % held;
    }
    if (is_sharded(state, place.zero_stage) && tensor.owner >= 0) {
        home.zero_rank = tensor.owner;
    } else if (is_sharded(state, place.zero_stage)) {
        const ZeroCut cut = zero_cut(held_part_of(tensor, place.mesh).elements(),
                                     group_size(place.mesh, zero_axes_of(tensor, place.mesh)));
        home.zero_rank = static_cast<int>(home.local / cut.shard);
        home.local %= cut.shard;
    }
    return home;
}
