#include "llmc/run/run_parts.h"

#include <utility>

#include "llmc/parallel/mesh_cut_points.h"
#include "llmc/run/layout_options.h"
#include "llmc/run/part_options.h"

StageOptions run_stage_options(const Options& options, const ModelConfig& config, const World& world) {
    StageOptions result = stage_options(options, world);
    add_pipeline(result, options, config);
    return result;
}

static StageOptions with(StageOptions options, CutPoints* cut_points) {
    options.cut_points = cut_points;
    return options;
}

RunParts::RunParts(StageOptions of_stage, const ModelConfig& config, World& world, Arena& arena, cudaStream_t stream)
    : cut_points(make_cut_points(world, of_stage, arena, stream)),
      stage(config, with(std::move(of_stage), cut_points.get()), arena, stream) {}
