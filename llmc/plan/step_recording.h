// Records the graph of a step by running the program's own code without computing: one rank of every pipeline stage, on
// devices that record calls and perform nothing, in groups whose other ranks are only planned (World). Ranks of one
// stage do the same work, so one stands for all: the last of a ring, which the others wait for.
//
// Only the stand-in has such devices; in a build for GPUs there is no graph, and a plan uses closed forms alone.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/clock/step_graph.h"
#include "llmc/mesh/mesh.h"
#include "llmc/model/config.h"
#include "llmc/run/options/options.h"

bool can_record_steps();
// Most memory of a rank whose step is recorded, half of what the recording device has.
constexpr double kMostRecordedBytes = 2199023255552.0;

// The size of a communicator that ranks of a stage have.
struct PlannedGroup {
    int ranks = 1, nodes = 1;
};

// Returns the most nodes over which a group like the one with these members, anywhere among the ranks, is spread.
// Groups are cut from all ranks alike, so each is the first one shifted; neighbouring ranks share a node.
int most_nodes(const std::vector<int>& members, int ranks, int devices_per_node);

struct StepRecording {
    std::vector<virtual_clock::Recording> stages;   // by stage: the recording of all its steps
    // The end of a step, per stage: how many entries, and how many waits of the host, are recorded up to it.
    struct End {
        std::size_t recorded, host_waits;
    };
    std::vector<std::vector<End>> ends;
    std::map<std::string, PlannedGroup> groups;
    std::size_t most_bytes = 0;   // device memory of the fullest of these ranks
};

// Records steps one after the other, with these numbers of micro-batches. `options` must have the number of
// data-parallel ranks and a recompute level; memory is allocated for the largest step.
StepRecording record_steps(const Options& options, const ModelConfig& config, const MeshShape& mesh,
                           int devices_per_node, const std::vector<int>& micro_batches);

// Returns the name of the communicator, in brackets at the end of a collective's name; "pp" for all links of a
// pipeline. Empty if it is no collective.
std::string group_of(const std::string& operation);
std::string group_of(const virtual_clock::RecordedStep& step);
