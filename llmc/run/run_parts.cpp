#include "llmc/run/run_parts.h"

#include <utility>

#include "llmc/model/weights.h"
#include "llmc/parallel/expert_parallel.h"
#include "llmc/run/options/part_options.h"

static StageOptions with(StageOptions options, const StageGroups& groups, ExpertRanks* expert_ranks, bool backward) {
    options.groups = groups;
    options.expert_ranks = expert_ranks;
    options.backward = backward;
    return options;
}

TrainingGroups groups_of_run(const Options& options, const ModelConfig& config, World& world) {
    return training_groups(world, config, options.pipeline.chunks, options.has_replicas());
}

RunParts::RunParts(const Options& options, const ModelConfig& config, World& world, Arena& arena, cudaStream_t stream,
                   bool backward)
    : RunParts(with(stage_options(options, config, world.mesh(), world.at()), {}, nullptr, backward), config,
               groups_of_run(options, config, world), world, arena, stream) {}

RunParts::RunParts(StageOptions of_stage, const ModelConfig& config, const TrainingGroups& its_groups, World& world,
                   Arena& arena, cudaStream_t stream)
    : groups(its_groups),
      expert_ranks(make_expert_ranks(world, of_stage, config, arena)),
      stage(config, with(of_stage, stage_groups(world, of_stage.ulysses), expert_ranks.get(), of_stage.backward), arena,
            stream) {}

void start_weights(const ModelState<floatX>& parameters, RouterBias& router_bias, const WeightSource* weights,
                   std::uint64_t seed, cudaStream_t stream) {
    if (weights != nullptr) {
        load_parameters(parameters, *weights, stream);
        router_bias.set(weights->router_bias());
    } else {
        initialize_parameters(parameters, seed, stream);
    }
}
