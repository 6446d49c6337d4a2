// Estimates the time of a step by formulas of the sizes alone: for builds that record no step, and to choose the
// layouts worth a replay. Matmuls come from the parameter table, traffic from docs/parallelism.md, the pipeline from
// the simulator (schedule.h); other kernels count only by the bytes of the residual stream.
#pragma once

#include "llmc/model/parameters/param_table.h"
#include "llmc/plan/step_time.h"

// How a pipeline's time is found: by the simulator, or within microseconds from its slowest stage and its bubble.
enum class PipelineTime { simulated, estimated };

// `options` must have the number of data-parallel ranks and a recompute level; `table` is the model's.
StepTime closed_form_time(const Options& options, const ParamTable& table, const MeshShape& mesh,
                          const Machine& machine, PipelineTime pipeline = PipelineTime::simulated);

// Returns the share of a micro-batch's backward beside which collectives run, where its gradients travel; links of a
// pipeline are none.
double collectives_share(const Options& options, const ParamTable& table, const MeshShape& mesh,
                         const Machine& machine);

// Returns a lower bound of a step's seconds, also for any replay: matmuls and attention of the slowest stage, and those
// of the first micro-batch on its way there, at the machine's best rates.
double least_seconds(const Options& options, const ParamTable& table, const MeshShape& mesh, const Machine& machine);
