// The parts of a run that need device memory, made in the same way by training, `check`, `evaluate`, and the counting
// of memory.
#pragma once

#include <memory>
#include <optional>

#include "llmc/model/families/weight_source.h"
#include "llmc/process/world.h"
#include "llmc/run/options/options.h"
#include "llmc/run/step/step.h"

// Returns the groups of a run's ranks; the first call makes their communicators. Collective.
TrainingGroups groups_of_run(const Options& options, const ModelConfig& config, World& world);

struct RunParts {
    TrainingGroups groups;
    std::unique_ptr<ExpertRanks> expert_ranks;
    Stage stage;
    std::optional<Step> step;   // made after the stage has its weights

    // `arena` may allocate or only count. Collective.
    RunParts(const Options& options, const ModelConfig& config, World& world, Arena& arena, cudaStream_t stream,
             bool backward = true);
    Step& make_step(const OptimizerOptions& options, Arena& arena) {
        return step.emplace(stage, options, arena, groups);
    }

private:
    RunParts(StageOptions of_stage, const ModelConfig& config, const TrainingGroups& groups, World& world, Arena& arena,
             cudaStream_t stream);
};

// Sets the first weights: those of a file, or random ones (null). resume() restores a checkpoint's weights later.
void start_weights(const ModelState<floatX>& parameters, RouterBias& router_bias, const WeightSource* weights,
                   std::uint64_t seed, cudaStream_t stream);
