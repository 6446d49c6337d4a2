// Estimates a pipeline's time without simulating it, to order the many layouts of a search.
#pragma once

#include <algorithm>

#include "llmc/parallel/schedule.h"

// Returns the time of a step, in the unit of `costs`: all micro-batches on the slowest stage, with the waits for
// transfers, and the way of one of them through the other stages and back. `costs` has stages x chunks pieces. The
// waits are those of the simulator in pipelines of equal stages.
inline double estimated_makespan(const PipelineShape& shape, const PipelineCosts& costs) {
    const auto stages = static_cast<std::size_t>(shape.stages);
    const double p = shape.stages, m = shape.micro_batches, n = shape.warmup, others = 1 - 1 / p, x = costs.transfer;
    double slowest = 0, all = 0, weights = 0;   // a micro-batch; `weights`: gradients that may wait
    for (std::size_t stage = 0; stage < stages; stage++) {
        double own = 0;
        for (std::size_t piece = stage; piece < costs.pieces.size(); piece += stages) {
            own += costs.pieces[piece].all();
            if (delays_weights(shape.kind)) weights += costs.pieces[piece].weight;
        }
        slowest = std::max(slowest, own), all += own;
    }
    if (shape.kind == PipelineKind::naive || shape.stages == 1) return m * (all + 2 * (p - 1) * x);
    double cycle = std::max(slowest, 2 * x);   // time from one micro-batch to the next
    if (warms_up(shape.kind)) {
        // neighbours wait for each other's transfers unless more micro-batches are between them; a stage in the middle
        // has two neighbours, and sends to both on one link
        const double waits = std::max(0.0, (2 * x - n * slowest) / (2 + n)) * (2 - 1 / (p - 1));
        cycle = std::max({slowest, slowest - weights / p * others + waits, (shape.stages > 2 ? 2 : 1) * x});
    } else if (takes_groups(shape.kind)) {
        // each chunk sends twice, and its transfers wait for others on the link, the more the less work is between
        const double sent = shape.chunks * x, queues = shape.stages > 2 ? 2.6 : 2 - 1.0 / shape.chunks;
        cycle = std::max(slowest + sent, slowest / 2 + queues * sent);
    }
    const double fill = std::max(0.0, all - slowest - 2 * weights * others) / shape.chunks;
    const double waiting = takes_groups(shape.kind) ? m : m - 1;
    return m * slowest + waiting * (cycle - slowest) + fill + 2 * (p - 1) * x;
}
