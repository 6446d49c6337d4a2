// Recursive halving and doubling (Rabenseifner, "Optimization of collective reduction operations", 2004): a rank
// exchanges half of the vector with the rank half of all away, keeps the other half summed, then a quarter with the
// rank a quarter away, and so on; then the same backwards with sums. 2 log2 n steps of 2 (n - 1)/n M in all: as few
// bytes as a ring and as few steps as a tree. But peers are far apart, half of the vector at once with the farthest.
//
// Where n is no power of two, ranks beyond the largest one in it are folded in: two steps of M more.
#pragma once

#include <bit>

#include "dev/bench/algorithms/peers.h"

inline void halving_doubling_all_reduce(Peers& peers) {
    const int rank = peers.rank();
    const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(peers.size())));
    const int surplus = peers.size() - power;
    const bool folds = rank < 2 * surplus, waits = folds && rank % 2 == 1;   // odd ones of these are folded in
    auto rank_of = [&](int place) { return place < surplus ? 2 * place : place + surplus; };
    const int place = folds ? rank / 2 : rank - surplus;

    if (surplus > 0) {
        if (waits) {
            peers.step({{rank - 1, peers.whole()}}, {});
        } else if (folds) {
            peers.step({}, {{rank + 1, peers.whole(), true}});
        } else {
            peers.step({}, {});
        }
    }
    // The part that is being summed here: pieces [first, first + width) of `power`.
    auto part = [&](int first, int width) {
        const Piece begin = piece_of(peers.whole(), power, first),
                    end = piece_of(peers.whole(), power, first + width - 1);
        return Piece{begin.first, end.first + end.count - begin.first};
    };
    int first = 0;
    for (int width = power / 2; width > 0; width /= 2) {
        const int peer = rank_of(place ^ width), kept = first + (place & width), given = first + (~place & width);
        if (waits) {
            peers.step({}, {});
        } else {
            peers.step({{peer, part(given, width)}}, {{peer, part(kept, width), true}});
        }
        first = kept;
    }
    for (int width = 1; width < power; width *= 2) {
        const int peer = rank_of(place ^ width), theirs = first ^ width;
        if (waits) {
            peers.step({}, {});
        } else {
            peers.step({{peer, part(first, width)}}, {{peer, part(theirs, width)}});
        }
        first = std::min(first, theirs);
    }
    if (surplus > 0) {
        if (waits) {
            peers.step({}, {{rank - 1, peers.whole()}});
        } else if (folds) {
            peers.step({{rank + 1, peers.whole()}}, {});
        } else {
            peers.step({}, {});
        }
    }
}
