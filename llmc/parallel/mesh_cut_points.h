// The cut points of a rank's place in the mesh.
#pragma once

#include <memory>

#include "llmc/model/stage.h"
#include "llmc/parallel/context_parallel.h"

// Null where one device does nothing there. The stage that `options` are for takes them as its cut points. Collective.
inline std::unique_ptr<CutPoints> make_cut_points(World& world, const StageOptions& options, Arena& arena,
                                                  cudaStream_t stream) {
    const MeshShape& mesh = options.place.mesh;
    if (mesh.cp > 1) return std::make_unique<ContextParallel>(world, options.ulysses, arena, stream);
    return nullptr;
}
