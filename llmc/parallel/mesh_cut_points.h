// The cut points of a rank of a mesh.
#pragma once

#include <memory>

#include "llmc/model/stage.h"
#include "llmc/parallel/tensor_parallel.h"

// What a stage with these options is given as its cut points, which must outlive it; null where one device has all that
// they would ask others for. Collective calls go to `groups`.
inline std::unique_ptr<CutPoints> make_cut_points(const StageOptions& options, const TrainingGroups& groups,
                                                  Arena& arena) {
    const MeshShape& mesh = options.place.mesh;
    if (mesh.tp > 1) {
        ENSURE(mesh.cp == 1, "cut points of both tensor and context parallelism");
        ENSURE(groups.tensor != nullptr && groups.tensor->size() == mesh.tp, "no group of ", mesh.tp, " tp ranks");
        return std::make_unique<TensorParallel>(*groups.tensor, options.tp_chunks, arena);
    }
    return nullptr;
}
