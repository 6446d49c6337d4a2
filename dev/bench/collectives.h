// Every collective over every group of a layout, from 8 bytes on, by nccl-tests' conventions: S is the whole vector
// (what an all-gather makes, what a reduce-scatter takes), algorithm bandwidth S / t, bus bandwidth that times what a
// rank must send of S at least: 2(n-1)/n for an all-reduce, (n-1)/n for reduce-scatter, all-gather and all-to-all, 1
// else. t is the slowest rank's, a median. Groups of an axis work at the same time, as they do in a run.
//
// Under each table stands a fit: latency + bytes of the bus / bandwidth, by least squares of relative errors.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/process/world.h"

struct CollectiveTime {
    std::string group, operation;   // "tp", "all_reduce"
    int ranks;
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

// By group and operation, each with its fit.
std::string collectives_table(const std::vector<CollectiveTime>& times);
std::string collectives_json(const std::vector<CollectiveTime>& times);
