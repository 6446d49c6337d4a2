// What --pp and its kin ask for: what cannot be is refused, what is poor is warned of, and the stage is told its part.
#pragma once

#include <string>

#include "llmc/model/stage.h"
#include "llmc/train/options.h"

PipelineShape pipeline_shape(const Options& options);

// Error(usage) where options do not go together. Once the number of data-parallel ranks is known, and so that of
// micro-batches: check_micro_batches.
void check_pipeline(const Options& options);
void check_micro_batches(const Options& options);

// The list of actions of every step, of a pipeline stage.
PipelineSchedule schedule_of_stage(const Options& options, int stage);

// Gives a stage its layers and the memory that its schedule needs. Error(usage) where there are too few layers.
void add_pipeline(StageOptions& stage, const Options& options, const ModelConfig& config);

// What is poor about a pipeline, in words; empty: nothing.
std::string pipeline_doubts(const Options& options);
