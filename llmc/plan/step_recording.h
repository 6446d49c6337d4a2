// The graph of a step, made by the code that a run is of but without running it: one rank of every pipeline stage, on
// devices that record what they are asked and perform nothing, among groups whose other ranks are only said to be there
// (World's planned ones). Ranks of one stage do the same work, so one stands for all.
//
// Only the stand-in has such devices: in a build for GPUs there is no graph, and a plan is made of closed forms alone.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/clock/step_graph.h"
#include "llmc/mesh/mesh.h"
#include "llmc/model/config.h"
#include "llmc/run/options.h"

bool can_record_steps();

// A communicator that ranks of a stage have, by name.
struct PlannedGroup {
    int ranks = 1, nodes = 1;
};

struct StepRecording {
    std::vector<virtual_clock::Recording> stages;   // of all its steps
    // Of each stage and step: the number of what is recorded, and of waits of the host, up to its end.
    struct End {
        std::size_t recorded, host_waits;
    };
    std::vector<std::vector<End>> ends;
    std::map<std::string, PlannedGroup> groups;
    std::size_t most_bytes = 0;   // of device memory, of the fullest of these ranks
};

// Of steps one after the other, of so many micro-batches each. `options` with the number of data-parallel ranks and a
// level of recompute; the stages' memory is that of their largest step.
StepRecording record_steps(const Options& options, const ModelConfig& config, const MeshShape& mesh,
                           int devices_per_node, const std::vector<int>& micro_batches);

// The name in brackets at the end of a collective's: its communicator's; all links of a pipeline together are "pp".
// Empty: it is none.
std::string group_of(const std::string& operation);
std::string group_of(const virtual_clock::RecordedStep& step);
