// Finds the number of GPUs with which a run ends in time at the least cost: plan --deadline.
//
// It searches the layouts (search.h) of powers of two, above a node of nodes, from the fewest GPUs that could make it
// at the speed of their fastest operations; then of 5, 6 and 7 eighths of the first such number that is in time, in
// whole nodes; then of larger ones, while these cost less. None in time: the next smaller ones, too, for the earliest
// end.
#pragma once

#include <functional>
#include <vector>

#include "llmc/plan/search.h"

// A number of GPUs that was searched, with the step of its best layout.
struct DevicesTried {
    int devices;
    double step_seconds;
};

struct DevicesFound {
    std::vector<Candidate> layouts;    // found by search_layouts for the chosen number
    std::vector<DevicesTried> tried;   // numbers with a layout that fits, fewest first
    bool in_time;                      // false: the chosen number has the fastest step
};

// Returns the number of GPUs whose best layout makes a step in `step_seconds` or less, at most `most`: the fewest, or
// more of them that cost at least 2% less. If there is none, returns the number with the fastest step that was found.
// Throws Error(usage) as search_layouts does, and if no number holds the run.
DevicesFound search_devices(const Options& options, const Machine& machine, double step_seconds, int most,
                            const std::function<bool(const Options&)>& is_allowed = {},
                            const SearchEffort& effort = {});
