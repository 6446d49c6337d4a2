// Every collective over every group of a layout, from 8 bytes on, by nccl-tests' conventions: S is the whole vector
// (what an all-gather makes, what a reduce-scatter takes), algorithm bandwidth S / t, bus bandwidth that times what a
// rank must send of S at least: 2(n-1)/n for an all-reduce, (n-1)/n for reduce-scatter, all-gather and all-to-all, 1
// else. t is the slowest rank's, a median. Groups of an axis work at the same time, as they do in a run.
//
// Groups are all ranks together and, of a layout, those of each axis (pp, dp, cp, tp), of ZeRO (shard, replica) and of
// experts (ep), unless they have all ranks or are those of an axis before.
//
// Under each table stands a fit: latency + bytes of the bus / bandwidth, by least squares of relative errors.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/plan/machine/machine.h"
#include "llmc/process/world.h"

struct CollectiveTime {
    std::string group, operation;   // "tp", "all_reduce"
    int ranks;
    bool inside_host;        // no group of that name reaches over hosts
    double bytes, seconds;   // S, t
    double bus_factor;
    double algorithm_bandwidth() const { return bytes / seconds; }
    double bus_bandwidth() const { return bus_factor * algorithm_bandwidth(); }
};

// t = latency + bus_factor S / bandwidth.
struct LinkFit {
    double latency_seconds, bytes_per_second;
};
LinkFit fit_link(const std::vector<CollectiveTime>& times);

// Vectors of 8 bytes and, times 8, up to `most_bytes`. Collective; the same on all ranks.
std::vector<CollectiveTime> measure_collectives(World& world, std::size_t most_bytes, int repeats, Arena& arena,
                                                cudaStream_t stream);

// Measures each algorithm of dev/bench/algorithms as an all-reduce of all ranks: operations by its name, of the group
// "all, by algorithm". The same sizes; two-level only where ranks are on several hosts, as many on each. Collective.
std::vector<CollectiveTime> measure_algorithms(World& world, std::size_t most_bytes, int repeats, Arena& arena,
                                               cudaStream_t stream);
// Microseconds of each algorithm by size, and which is the fastest.
std::string algorithms_table(const std::vector<CollectiveTime>& times);

// ---- how both measure

// Returns the sizes, as numbers of floats that `ranks` divides.
std::vector<std::size_t> counts_for(std::size_t ranks, std::size_t most_bytes);
// Returns the seconds of one call on this rank, the median of `repeats`.
double seconds_of(World& world, const std::function<void()>& call, int repeats, cudaStream_t stream);
// Gives each time the slowest rank's. Collective.
void take_slowest(World& world, std::vector<CollectiveTime>& times);

// ---- what is made of the times

// By group and operation, each with its fit.
std::string collectives_table(const std::vector<CollectiveTime>& times);
std::string collectives_json(const std::vector<CollectiveTime>& times);
// Returns an SVG file: bus bandwidth over bytes, a panel for each group, a curve for each operation.
std::string collectives_picture(const std::vector<CollectiveTime>& times);

// Replaces the machine's links inside a host and between hosts by fits, where a group tells of them: the bandwidth of
// the first such group's all-reduces, the latency of its sends.
void set_links(Machine& machine, const std::vector<CollectiveTime>& times);
