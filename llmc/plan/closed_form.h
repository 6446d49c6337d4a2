// How long a step takes, by formulas of the sizes alone: for builds that record no step, and to choose which layouts
// are worth a replay. Matmuls are those of the parameter table, traffic is that of docs/parallelism.md, the pipeline is
// the simulator's (schedule.h); of kernels only the bytes of the residual stream are reckoned with.
#pragma once

#include "llmc/plan/step_time.h"

// `options` with the number of data-parallel ranks and a level of recompute.
StepTime closed_form_time(const Options& options, const ModelConfig& config, const MeshShape& mesh,
                          const Machine& machine);

// What it takes at least, and every replay: matmuls and attention of the slowest stage, and of the first micro-batch on
// its way there, at the machine's best rates.
double least_seconds(const Options& options, const ModelConfig& config, const MeshShape& mesh, const Machine& machine);
