// How long a step takes on a machine, from its recorded graph replayed on the virtual clock.
#pragma once

#include <map>
#include <string>

#include "llmc/plan/machine.h"
#include "llmc/plan/step_recording.h"

// Of the ranks that share a communicator, in one step.
struct GroupTime {
    PlannedGroup size;
    double bytes = 0;     // that a rank sends, of the stage that sends most
    double seconds = 0;   // in which its operations go on
    double exposed = 0;   // by which the step would be shorter if its links were free
};

struct StepTime {
    double seconds = 0;
    double computing = 0;      // the mean of all stages
    double flops = 0;          // of matmuls and attention, of all stages' ranks that were recorded together
    double exposed = 0;        // by which all links together make the step longer
    double bubble_share = 0;   // of the time with free links, in which stages do nothing
    std::map<std::string, GroupTime> groups;
};

// Every operation by the machine's rates. `groups`: of the recording, for the latency of its collectives.
virtual_clock::CostModel costs_of(const Machine& machine, const std::map<std::string, PlannedGroup>& groups);

// Of a collective without a byte. The constants are those of NVLink and a network; a machine's own latencies are to
// them as its smallest message. `passes`: 2 of an all-reduce, 1 of others.
double collective_latency(const Machine& machine, const PlannedGroup& group, int passes);

// `options` with the number of data-parallel ranks and a level of recompute. A step in the midst of a run: what is left
// of the one before goes on beside it. What many micro-batches take is drawn on from two smaller numbers of them:
// beyond the number of stages each one more takes as long. Without `groups` what each of them takes is left out, for it
// costs a replay each.
StepTime step_time(const Options& options, const ModelConfig& config, const MeshShape& mesh, const Machine& machine,
                   bool groups = true);
