// Checks --pp, --cp, --tp and related options: refuses impossible layouts, warns of poor ones, and gives a stage its
// part of the pipeline.
#pragma once

#include <string>
#include <vector>

#include "llmc/model/stage/stage.h"
#include "llmc/run/options/options.h"
#include "llmc/run/stopping/agreement.h"

PipelineShape pipeline_shape(const Options& options);

// Each throws Error(usage) and names values that work. check_layout: options that do not go together.
// check_total_batch: tokens of steps and of the run, which must also fit into the integers that count them.
// check_micro_batches: of the first step; needs the number of data-parallel ranks (`dp`). check_model_fits: a model
// that the layout cannot divide, or whose activations 64 bits cannot count.
void check_layout(const Options& options);
void check_model_fits(const Options& options, const ModelConfig& config);

// Sets `dp`, the number of ranks with different samples. Throws Error(usage) if they cannot share a step.
void fit_to_ranks(Options& options, int dp);

// Returns a stage's list of actions, the same for every step.
PipelineSchedule schedule_of_stage(const Options& options, int stage);

// Returns how many sets of activations --pp-warmup adds on a stage.
int warmup_sets(const Options& options, int stage);

// Gives a stage its layers and the memory that its schedule needs. Throws Error(usage) if there are too few layers.
void add_pipeline(StageOptions& stage, const Options& options, const ModelConfig& config);

// Describes a stage's memory by its schedule, and names the rank that takes most. Collective.
std::string pipeline_memory(const Stage& stage, const Arena& arena, const Options& options, const MeshShape& mesh,
                            Agreement& agreement);

// Returns warnings about a layout whose ranks are on these hosts (own_host_identity, by rank). Used by training,
// `check`, plans and --print-memory. `options` must have `dp`.
std::vector<std::string> layout_warnings(const Options& options, const std::vector<std::string>& hosts);
// Returns hosts for a planned run: ranks in blocks, as launchers place them by default.
std::vector<std::string> hosts_in_blocks(int ranks, int ranks_of_a_node);
