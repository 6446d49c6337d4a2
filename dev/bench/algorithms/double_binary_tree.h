// Two binary trees (Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
// 2009; NCCL since 2.4): each carries half of the vector, cut into pieces that follow one another up to the root and
// down again. A rank that has children in one tree is a leaf of the other, so every rank sends at most 2 M, and
// latency grows with log2 n: pieces + 2 depth - 1 steps, depth at most ceil(log2 n).
//
// In step t a rank at depth d sends piece t - (depth of the tree - d) to its parent: all of a rank's children send it
// the same piece in the step before.
#pragma once

#include <bit>

#include "dev/bench/algorithms/peers.h"

// Rank 0 is the root; a rank's parent differs from it in its lowest bit and the one above. Odd ranks are leaves.
inline int parent_in_tree(int rank, int ranks) {
    if (rank == 0) return -1;
    const int lowest = rank & -rank, parent = (rank ^ lowest) | (2 * lowest);
    return parent < ranks ? parent : rank ^ lowest;
}

// The first tree, or the second: the same with ranks in reverse order, or, of an odd number, moved by one.
class BinaryTree {
public:
    BinaryTree(int ranks, bool second) : ranks_(ranks), second_(second) {}
    int parent(int rank) const {
        const int above = parent_in_tree(place(rank), ranks_);
        return above < 0 ? -1 : rank_at(above);
    }
    std::vector<int> children(int rank) const {
        std::vector<int> result;
        for (int other = 0; other < ranks_; other++) {
            if (parent(other) == rank) result.push_back(other);
        }
        return result;
    }
    int depth(int rank) const { return parent(rank) < 0 ? 0 : 1 + depth(parent(rank)); }
    int depth() const {
        int most = 0;
        for (int rank = 0; rank < ranks_; rank++) most = std::max(most, depth(rank));
        return most;
    }

private:
    int place(int rank) const { return !second_ ? rank : ranks_ % 2 == 0 ? ranks_ - 1 - rank : (rank + 1) % ranks_; }
    int rank_at(int place) const {
        return !second_ ? place : ranks_ % 2 == 0 ? ranks_ - 1 - place : (place + ranks_ - 1) % ranks_;
    }
    int ranks_;
    bool second_;
};

// `pieces`: of each half.
inline void double_binary_tree_all_reduce(Peers& peers, int pieces) {
    if (peers.size() == 1) return;
    const int rank = peers.rank();
    const BinaryTree trees[2] = {{peers.size(), false}, {peers.size(), true}};
    const int depth = trees[0].depth();
    for (int t = 0; t < pieces + 2 * depth - 1; t++) {
        std::vector<Peers::Send> sends;
        std::vector<Peers::Receive> receives;
        for (int which = 0; which < 2; which++) {
            const BinaryTree& tree = trees[which];
            const int here = tree.depth(rank), parent = tree.parent(rank);
            const Piece share = piece_of(peers.whole(), 2, which);
            auto moves = [&](int piece) { return piece >= 0 && piece < pieces; };
            const int up = t - depth + here, down = t - depth - here + 1;   // pieces that go to and from the parent
            if (parent >= 0 && moves(up)) sends.push_back({parent, piece_of(share, pieces, up)});
            if (parent >= 0 && moves(down)) receives.push_back({parent, piece_of(share, pieces, down)});
            for (const int child : tree.children(rank)) {
                if (moves(up + 1)) receives.push_back({child, piece_of(share, pieces, up + 1), true});
                if (moves(down - 1)) sends.push_back({child, piece_of(share, pieces, down - 1)});
            }
        }
        peers.step(sends, receives);
    }
}
