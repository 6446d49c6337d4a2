// A ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009): the vector
// is cut into n pieces. In n - 1 steps each piece travels once around, and every rank adds its own part to it (reduce-
// scatter); in n - 1 more the sums travel around (all-gather). Each rank sends (n - 1)/n M twice, and no all-reduce can
// send less. It needs 2 (n - 1) steps: latency grows with the number of ranks.
//
// Piece i is summed in the order of ranks i, i + 1, ..., around the ring.
#pragma once

#include "dev/bench/algorithms/peers.h"

// Ranks in a circle, and this rank's place among them.
struct Ring {
    std::vector<int> members;
    int place;

    int size() const { return static_cast<int>(members.size()); }
    int next() const { return members[static_cast<std::size_t>((place + 1) % size())]; }
    int previous() const { return members[static_cast<std::size_t>((place + size() - 1) % size())]; }
    // Counted from this rank's place, backwards.
    Piece piece(const Piece& whole, int back) const {
        return piece_of(whole, size(), ((place - back) % size() + size()) % size());
    }
};

inline Ring ring_of_all(const Peers& peers) {
    Ring ring{{}, peers.rank()};
    for (int rank = 0; rank < peers.size(); rank++) ring.members.push_back(rank);
    return ring;
}

// Afterwards piece(-1), the one after its own place, is the sum here.
inline void ring_reduce_scatter(Peers& peers, const Ring& ring, const Piece& whole) {
    for (int step = 0; step < ring.size() - 1; step++) {
        peers.step({{ring.next(), ring.piece(whole, step)}}, {{ring.previous(), ring.piece(whole, step + 1), true}});
    }
}

inline void ring_all_gather(Peers& peers, const Ring& ring, const Piece& whole) {
    for (int step = 0; step < ring.size() - 1; step++) {
        peers.step({{ring.next(), ring.piece(whole, step - 1)}}, {{ring.previous(), ring.piece(whole, step)}});
    }
}

inline void ring_all_reduce(Peers& peers) {
    const Ring ring = ring_of_all(peers);
    ring_reduce_scatter(peers, ring, peers.whole());
    ring_all_gather(peers, ring, peers.whole());
}
