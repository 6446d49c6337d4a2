// What --pp, --cp, --tp and their kin ask for: what cannot be is refused, what is poor is warned of, and the stage is
// told its part of a pipeline.
#pragma once

#include <string>
#include <vector>

#include "llmc/model/stage.h"
#include "llmc/run/options.h"
#include "llmc/run/stopping/agreement.h"

PipelineShape pipeline_shape(const Options& options);

// Error(usage) naming what works: where options do not go together; once the number of data-parallel ranks is known,
// and so that of micro-batches, where a schedule cannot have as many; and where a model cannot be shared so.
void check_total_batch(const Options& options);
void check_layout(const Options& options);
void check_micro_batches(const Options& options);
void check_model_fits(const Options& options, const ModelConfig& config);

// Once it is known how many ranks see different samples: sets `dp`. Error(usage) where they cannot share a step.
void fit_to_ranks(Options& options, int dp);

// The list of actions of every step, of a pipeline stage.
PipelineSchedule schedule_of_stage(const Options& options, int stage);

// Sets of activations that --pp-warmup adds on a pipeline stage.
int warmup_sets(const Options& options, int stage);

// Gives a stage its layers and the memory that its schedule needs. Error(usage) where there are too few layers.
void add_pipeline(StageOptions& stage, const Options& options, const ModelConfig& config);

// A stage's memory as its schedule asks for it, and the rank that takes most. Collective.
std::string pipeline_memory(const Stage& stage, const Arena& arena, const Options& options, const MeshShape& mesh,
                            Agreement& agreement);

// What is poor about a layout whose ranks are on these hosts (own_host_identity, by rank), in words: for training,
// `check`, plans and --print-memory alike. `options` with `dp`.
std::vector<std::string> layout_doubts(const Options& options, const std::vector<std::string>& hosts);
// Ranks in blocks, as launchers deal them out unless they are told otherwise: for who has no hosts yet.
std::vector<std::string> hosts_in_blocks(int ranks, int ranks_of_a_node);
