// Two levels, for nodes whose links to each other are slower than those inside: a ring inside each node leaves every
// rank with the node's sum of a piece; rings of the ranks with the same place in all nodes sum that piece over nodes;
// a ring inside each node gathers. With g ranks a node and R nodes a rank sends 2 (g - 1)/g M inside, and only
// 2 (R - 1)/R M/g to other nodes, in 2 (g - 1) + 2 (R - 1) steps.
//
// `--zero-group` reduces gradients in this way (docs/parallelism.md).
#pragma once

#include "dev/bench/algorithms/ring.h"

// Neighbouring ranks are on a node, `per_node` of them, which divides the number of ranks.
inline void two_level_all_reduce(Peers& peers, int per_node) {
    const int node = peers.rank() / per_node, place = peers.rank() % per_node;
    Ring inside{{}, place}, between{{}, node};
    for (int i = 0; i < per_node; i++) inside.members.push_back(node * per_node + i);
    for (int i = 0; i < peers.size() / per_node; i++) between.members.push_back(i * per_node + place);
    const Piece own = inside.piece(peers.whole(), -1);
    ring_reduce_scatter(peers, inside, peers.whole());
    ring_reduce_scatter(peers, between, own);
    ring_all_gather(peers, between, own);
    ring_all_gather(peers, inside, peers.whole());
}
