// What a run puts on its device: made alike by training, `check`, `evaluate` and what counts memory.
#pragma once

#include <memory>
#include <optional>

#include "llmc/process/world.h"
#include "llmc/run/options.h"
#include "llmc/run/step.h"

// What this rank's stage is asked for.
StageOptions run_stage_options(const Options& options, const ModelConfig& config, const World& world);

struct RunParts {
    std::unique_ptr<CutPoints> cut_points;
    Stage stage;
    std::optional<Step> step;   // made once the stage has its weights

    // In an arena that allocates or counts; `of_stage` is without cut points. Collective.
    RunParts(StageOptions of_stage, const ModelConfig& config, World& world, Arena& arena, cudaStream_t stream);
};
