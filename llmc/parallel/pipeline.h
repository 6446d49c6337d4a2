// Carries out a schedule on a stage: training, validation, sampling and evaluation all pass through here.
//
// Every legal order of actions gives the same losses, and the same gradients to the bit wherever parts of a gradient
// are added in the same order: in that of micro-batches, for each tensor.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "llmc/model/stage.h"
#include "llmc/parallel/schedule.h"

class Pipeline {
public:
    Pipeline(Stage& stage, Arena& arena);

    // Fills in this rank's tokens of a micro-batch, (B, T) of stage.sizes() each: tokens, and targets, negative where
    // there is no loss. Called once for each that an action of this rank reads, before the first of them. Ids must be
    // checked already.
    using Read = std::function<void(int micro_batch, std::span<std::int32_t> tokens, std::span<std::int32_t> targets)>;

    // Forward and backward of all micro-batches of a schedule. `losses_made`: whenever those of a micro-batch are in
    // stage.losses(), once what is queued has run.
    void train(const PipelineSchedule& schedule, const Read& read, float dloss,
               const std::function<void()>& losses_made) {
        run(schedule, read, Purpose::training, dloss, losses_made);
    }
    // A schedule without backward (forward_schedule).
    void forward(
        const PipelineSchedule& schedule, const Read& read, Purpose purpose,
        const std::function<void()>& losses_made = [] {}) {
        run(schedule, read, purpose, 0, losses_made);
    }
    // One micro-batch.
    void forward(const Read& read, Purpose purpose) { forward(forward_schedule(1, stage_.chunks()), read, purpose); }

private:
    void run(const PipelineSchedule& schedule, const Read& read, Purpose purpose, float dloss,
             const std::function<void()>& losses_made);
    bool reads_batch(const Action& action, Purpose purpose) const;
    const Batch& read_batch(const Read& read, int micro_batch, Purpose purpose);
    void carry_out(const Action& action, const Batch& batch, Purpose purpose, float dloss,
                   const std::function<void()>& losses_made);

    Stage& stage_;
    std::vector<std::int32_t> tokens_, targets_;   // on the host
    Pool<BatchBuffer> buffers_{"micro-batches"};
    std::map<int, BatchBuffer*> batches_;   // of micro-batches that are read again
    Stage::Uses uses_;                      // of the pass at hand
};
