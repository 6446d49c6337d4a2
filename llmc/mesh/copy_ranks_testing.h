// Which ranks keep copies of the same elements, for tests that compare them.
#pragma once

#include "llmc/mesh/shard.h"

// The ranks that keep the same elements of a tensor as this one, which holds it, in the same places, itself included,
// ascending: where nothing is sharded all of dp and cp, else the replicas, where tensor parallelism does not cut all of
// tp, of experts that are dealt out those that hold the same ones, and of a tied tensor the first and the last pipeline
// stage. What they keep must stay equal to the bit.
inline std::vector<int> copy_ranks(const TensorSpec& tensor, const RankLayout& place, StateKind state) {
    auto same = [&](Axis axis, const MeshCoordinates& other) {
        return coordinate(place.mesh, other, axis) == coordinate(place.mesh, place.at, axis);
    };
    std::vector<int> ranks;
    for (int rank = 0; rank < place.mesh.size(); rank++) {
        const MeshCoordinates other = coordinates_of(place.mesh, rank);
        bool copies = same(Axis::pp, other) || (tensor.tied && (other.pp == 0 || other.pp == place.mesh.pp - 1));
        const bool sharded = is_sharded(state, place.zero_stage);
        if (is_expert_parallel(tensor, place.mesh)) {
            copies = copies && same(Axis::ep, other) && (!sharded || same(Axis::holder, other));
        } else {
            copies = copies && (is_whole_on_tp(tensor, place.mesh) || same(Axis::tp, other));
            copies = copies && (!sharded || same(Axis::shard, other));
        }
        if (copies) ranks.push_back(rank);
    }
    return ranks;
}
