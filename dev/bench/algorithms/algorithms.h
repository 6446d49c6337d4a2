// The algorithms of this folder by name, and what each takes by theory: steps, and the most that a rank sends, in
// vectors (M).
#pragma once

#include <bit>
#include <functional>

#include "dev/bench/algorithms/double_binary_tree.h"
#include "dev/bench/algorithms/halving_doubling.h"
#include "dev/bench/algorithms/naive.h"
#include "dev/bench/algorithms/parameter_server.h"
#include "dev/bench/algorithms/ring.h"
#include "dev/bench/algorithms/tree.h"
#include "dev/bench/algorithms/two_level.h"

struct AllReduceAlgorithm {
    const char* name;
    std::function<void(Peers&)> run;
    std::function<int(int ranks)> steps;
    std::function<double(int ranks)> most_sent;
};

inline int log2_up(int n) { return static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1))); }
inline int power_in(int n) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(n))); }

// For at least two ranks. `per_node`: ranks of a node, a divisor of all.
inline std::vector<AllReduceAlgorithm> all_reduce_algorithms(int per_node, int pieces = 8) {
    auto part = [](int n) { return (n - 1.0) / n; };
    return {
        {"naive", naive_all_reduce, [](int) { return 2; }, [](int n) { return n - 1.0; }},
        {"parameter server, one", [](Peers& peers) { parameter_server_all_reduce(peers, 1); }, [](int) { return 2; },
         [](int n) { return n - 1.0; }},
        {"parameter server, all ranks", [](Peers& peers) { parameter_server_all_reduce(peers, peers.size()); },
         [](int) { return 2; }, [=](int n) { return 2 * part(n); }},
        {"ring", ring_all_reduce, [](int n) { return 2 * (n - 1); }, [=](int n) { return 2 * part(n); }},
        {"tree", tree_all_reduce, [](int n) { return 2 * log2_up(n); },
         [](int n) { return static_cast<double>(log2_up(n)); }},
        {"double binary tree", [=](Peers& peers) { double_binary_tree_all_reduce(peers, pieces); },
         [=](int n) { return pieces + 2 * BinaryTree(n, false).depth() - 1; },
         [](int n) { return n == 2   ? 1
                            : n == 3 ? 1.5
                                     : 2.0; }},
        {"halving-doubling", halving_doubling_all_reduce,
         [](int n) { return 2 * log2_up(power_in(n)) + (n > power_in(n) ? 2 : 0); },
         [=](int n) { return 2 * part(power_in(n)) + (n > power_in(n) ? 1 : 0); }},
        {"two-level", [=](Peers& peers) { two_level_all_reduce(peers, per_node); },
         [=](int n) { return 2 * (per_node - 1) + 2 * (n / per_node - 1); },
         [=](int n) { return 2 * part(per_node) + 2 * part(n / per_node) / per_node; }},
    };
}
