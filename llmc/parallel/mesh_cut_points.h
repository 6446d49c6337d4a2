// The cut points of a rank's place in the mesh.
#pragma once

#include <memory>

#include "llmc/model/stage.h"
#include "llmc/parallel/context_parallel.h"
#include "llmc/parallel/tensor_parallel.h"

// What a stage with these options is given as its cut points, which must outlive it; null where one device has all that
// they would ask others for. Collective.
inline std::unique_ptr<CutPoints> make_cut_points(World& world, const StageOptions& options, Arena& arena,
                                                  cudaStream_t stream) {
    const MeshShape& mesh = options.place.mesh;
    ENSURE(mesh.tp == 1 || mesh.cp == 1, "cut points of both tensor and context parallelism");
    if (mesh.tp > 1) return std::make_unique<TensorParallel>(*world.group({Axis::tp}), options.tp_chunks, arena);
    if (mesh.cp > 1) return std::make_unique<ContextParallel>(world, options.ulysses, arena, stream);
    return nullptr;
}
