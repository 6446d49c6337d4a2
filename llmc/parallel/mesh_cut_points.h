// The cut points of a rank's place in the mesh.
#pragma once

#include <memory>

#include "llmc/model/stage.h"
#include "llmc/process/world.h"

// What a stage with these options is given as its cut points, which must outlive it; null where one device has all that
// they would ask others for. With both tensor and context parallelism rows and columns are the one's; positions and
// attention, of a tp rank's heads, the other's. Collective.
std::unique_ptr<CutPoints> make_cut_points(World& world, const StageOptions& options, Arena& arena,
                                           cudaStream_t stream);
