// The cut points of a rank's place in the mesh.
#pragma once

#include <memory>

#include "llmc/model/stage/stage.h"
#include "llmc/process/world.h"

// Makes the cut points of a stage with these options; they must outlive the stage. Null if one device has all that they
// would ask others for. With both tensor and context parallelism, gather_to_tp and reduce_from_tp are tensor
// parallelism's; positions, and the attention of a tp rank's heads, are context parallelism's. Collective.
std::unique_ptr<CutPoints> make_cut_points(World& world, const StageOptions& options, Arena& arena,
                                           cudaStream_t stream);
