// A binomial tree: in step k ranks that are odd multiples of 2^k send their sums to the even multiple below; then the
// total goes back the same way. 2 ceil(log2 n) steps of the whole vector: few, but half of the ranks have nothing to do
// from the second on, and the root's link carries ceil(log2 n) M each way.
#pragma once

#include "dev/bench/algorithms/peers.h"

inline void tree_all_reduce(Peers& peers) {
    const int rank = peers.rank(), ranks = peers.size();
    const Piece whole = peers.whole();
    int stride = 1;
    for (; stride < ranks; stride *= 2) {
        if (rank % (2 * stride) == stride) {
            peers.step({{rank - stride, whole}}, {});
        } else if (rank % (2 * stride) == 0 && rank + stride < ranks) {
            peers.step({}, {{rank + stride, whole, true}});
        } else {
            peers.step({}, {});
        }
    }
    for (stride /= 2; stride > 0; stride /= 2) {
        if (rank % (2 * stride) == stride) {
            peers.step({}, {{rank - stride, whole}});
        } else if (rank % (2 * stride) == 0 && rank + stride < ranks) {
            peers.step({{rank + stride, whole}}, {});
        } else {
            peers.step({}, {});
        }
    }
}
