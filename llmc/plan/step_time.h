// Replays a step's recorded graph on the virtual clock to find how long the step takes on a machine.
#pragma once

#include <map>
#include <string>

#include "llmc/plan/machine/machine.h"
#include "llmc/plan/step_recording.h"

// Time of the ranks that share a communicator, in one step.
struct GroupTime {
    PlannedGroup size;
    double bytes = 0;     // sent per rank, in the stage that sends most
    double seconds = 0;   // in which its operations are active
    double exposed = 0;   // by which free links of this group would shorten the step
};

struct StepTime {
    double seconds = 0;
    double computing = 0;      // mean of all stages
    double flops = 0;          // matmuls and attention, summed over one rank of each stage
    double exposed = 0;        // by which free links would shorten the step
    double bubble_share = 0;   // share of the time with free links in which stages are idle
    std::map<std::string, GroupTime> groups;
};

// Returns attention's FLOPs per second for the sequences and heads that a rank has at once.
double attention_rate(const Options& options, const ModelConfig& config, const Machine& machine);

// Returns the cost of every operation at the machine's rates, all attention at attention_per_second. `groups`: of the
// recording, for the time of collectives.
virtual_clock::CostModel costs_of(const Machine& machine, const std::map<std::string, PlannedGroup>& groups);

// Seconds of a collective in which each rank sends `bytes`, by the protocol that is fastest for so many. NCCL's
// constants, for NVLink and a network, are scaled by the machine's own latency of the smallest message. `passes`: 2 for
// an all-reduce, 1 for others.
double collective_seconds(const Machine& machine, const PlannedGroup& group, double bytes, int passes);

// Returns the time of a step in the midst of a run, which starts beside the rest of the step before. `options` must
// have the number of data-parallel ranks and a recompute level. For many micro-batches it extrapolates from two smaller
// numbers: beyond the number of stages, each further one takes the same time. `groups` false: leaves out the exposed
// time of each group, which costs a replay each.
StepTime step_time(const Options& options, const ModelConfig& config, const MeshShape& mesh, const Machine& machine,
                   bool groups = true);
