// All to one, and back: rank 0 receives everybody's vector, adds them up in the order of ranks, and sends everybody the
// sum. Two steps, but (n - 1) M bytes each way through the link of one rank: nobody's choice for large vectors, and
// the fewest steps of all for tiny ones.
#pragma once

#include "dev/bench/algorithms/peers.h"

inline void naive_all_reduce(Peers& peers) {
    std::vector<Peers::Send> sends;
    std::vector<Peers::Receive> receives;
    if (peers.rank() > 0) {
        peers.step({{0, peers.whole()}}, {});
        peers.step({}, {{0, peers.whole()}});
        return;
    }
    for (int rank = 1; rank < peers.size(); rank++) {
        sends.push_back({rank, peers.whole()});
        receives.push_back({rank, peers.whole(), true});
    }
    peers.step({}, receives);
    peers.step(sends, {});
}
