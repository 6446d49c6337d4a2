// Measures how fast ranks talk: a message there and back between every pair, an all-reduce in every group of an axis.
//
// Pairs are measured in rounds, as in a tournament: in each, every rank has another partner, so n ranks take n - 1
// rounds and all pairs of a round share the wires, as they do in a run.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/process/world.h"

struct LinkSpeed {
    int rank, peer;            // the pair, the lower rank first; or a group's first rank, and -1
    std::string group;         // its name; empty: a pair
    double seconds;            // the smallest message, one way, or the smallest all-reduce
    double bytes_per_second;   // a large message; of an all-reduce what each rank sends, 2 (n - 1) / n of it
};

// Returns "ranks 0 and 3", or "group tp of rank 4".
std::string name_of(const LinkSpeed& link);

struct LinkSpeeds {
    std::vector<LinkSpeed> pairs, groups;   // the slowest first
};

// Returns the rank that `rank` of `ranks` talks to in a round; -1: nobody. Every pair meets once in link_rounds(ranks).
int partner_of(int rank, int ranks, int round);
constexpr int link_rounds(int ranks) { return ranks % 2 == 0 ? ranks - 1 : ranks; }

// Measures all pairs and groups. Collective, with the same result on all ranks. The watchdog names a pair that does not
// talk, as in a run.
LinkSpeeds measure_links(World& world, Arena& arena, cudaStream_t stream);

// Returns a line for each pair, or for the `most` slowest where there are more, then a line for each axis.
std::string link_table(const LinkSpeeds& speeds, std::size_t most = 28);
