// Estimates NCCL's time before bandwidth matters, with the constants and formulas by which NCCL itself chooses between
// its algorithms (src/graph/tuning.cc of 2.19 and later), in microseconds, for Simple, LL and LL128. Only latencies are
// taken from there; bandwidths are measured.
#pragma once

#include <algorithm>
#include <cmath>

namespace nccl_time {

enum class Protocol { ll, ll128, simple };

struct Hop {
    double intra, inter;   // within a node (NVLink), and between nodes
};

constexpr double base_us(bool tree, Protocol protocol) {
    if (protocol == Protocol::simple) return 8.4;
    if (protocol == Protocol::ll128) return 14.0;
    return tree ? 6.8 : 6.6;
}
constexpr Hop hop_us(bool tree, Protocol protocol) {
    constexpr Hop of_tree[] = {{0.6, 5.0}, {1.25, 8.5}, {4.0, 14.0}}, of_ring[] = {{0.6, 2.7}, {1.9, 4.0}, {3.4, 14.0}};
    return (tree ? of_tree : of_ring)[static_cast<int>(protocol)];
}
// Share of the link's bandwidth that is not flags: 4 of 8 bytes for LL, 120 of 128 for LL128.
constexpr double share_of_bandwidth(Protocol protocol) {
    return protocol == Protocol::simple ? 1.0 : protocol == Protocol::ll128 ? 120.0 / 128 : 0.5;
}

// `passes`: 2 for an all-reduce, 1 for a reduce-scatter or an all-gather.
inline double ring_us(int ranks, int nodes, Protocol protocol, int passes = 2) {
    const Hop hop = hop_us(false, protocol);
    const int steps = passes * (ranks - 1), between = nodes > 1 ? passes * (nodes - 1) : 0;
    return base_us(false, protocol) + (steps - between) * hop.intra + between * hop.inter;
}
// For an all-reduce; the other collectives have no tree algorithm in NCCL.
inline double tree_us(int ranks, int nodes, Protocol protocol) {
    const Hop hop = hop_us(true, protocol);
    return base_us(true, protocol) +
           2 * ((static_cast<double>(ranks) / nodes - 1) * hop.intra + std::log2(nodes) * hop.inter);
}

// Seconds of a collective in which each rank sends `bytes`, with the fastest algorithm and protocol. `hop`: the
// machine's latency in units of NCCL's.
inline double seconds(double bytes, int ranks, int nodes, int passes, double bytes_per_second, double hop = 1) {
    double best = 1e30;
    for (const Protocol protocol : {Protocol::ll, Protocol::ll128, Protocol::simple}) {
        const double travel = bytes / (share_of_bandwidth(protocol) * bytes_per_second);
        best = std::min(best, hop * 1e-6 * ring_us(ranks, nodes, protocol, passes) + travel);
        if (passes == 2) best = std::min(best, hop * 1e-6 * tree_us(ranks, nodes, protocol) + travel);
    }
    return best;
}

}   // namespace nccl_time
