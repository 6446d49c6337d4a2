// Estimates a pipeline's time without simulating it, to order the many layouts of a search.
#pragma once

#include <algorithm>

#include "llmc/parallel/schedule.h"

// Returns the time of a step, in the unit of `costs`: all micro-batches on the slowest stage, and the way of one of
// them through the other stages and back. `costs` has stages x chunks pieces.
inline double estimated_makespan(const PipelineShape& shape, const PipelineCosts& costs) {
    const auto stages = static_cast<std::size_t>(shape.stages);
    const double m = shape.micro_batches, n = shape.warmup, others = 1 - 1.0 / shape.stages;
    double slowest = 0, all = 0, weights = 0;   // a micro-batch; `weights`: gradients that may wait
    for (std::size_t stage = 0; stage < stages; stage++) {
        double own = 0;
        for (std::size_t piece = stage; piece < costs.pieces.size(); piece += stages) {
            own += costs.pieces[piece].all();
            if (delays_weights(shape.kind)) weights += costs.pieces[piece].weight;
        }
        slowest = std::max(slowest, own), all += own;
    }
    if (shape.kind == PipelineKind::naive) return m * all;
    // neighbours wait for each other's transfers unless more micro-batches are between them
    const double between = warms_up(shape.kind) ? std::max(0.0, (2 * costs.transfer - n * slowest) / (2 + n)) : 0;
    const double fill = std::max(0.0, all - slowest - 2 * weights * others) / shape.chunks;
    return m * slowest + std::max(0.0, m - shape.stages) * between + fill + 2 * (shape.stages - 1) * costs.transfer;
}
