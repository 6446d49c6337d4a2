// Watches the losses and gradient norms of steps for outliers (--skip-loss-z, --skip-norm-z).
#pragma once

#include "llmc/run/loop/outlier_detector.h"
#include "llmc/run/loop/step_batch.h"
#include "llmc/run/loop/trainer_parts.h"
#include "llmc/run/training_state.h"

class OutlierWatch {
public:
    OutlierWatch(const TrainerParts& parts, const StepBatch& batch)
        : options_(parts.options), log_(parts.log), batch_(batch), lateness_(parts.step.sync().lateness()) {}

    void restore(const RunState& state) { losses_.restore(state.loss_outliers), norms_.restore(state.norm_outliers); }
    void save_to(RunState& state) const {
        state.loss_outliers = losses_.state();
        state.norm_outliers = norms_.state();
    }

    // True if an outlier's update is skipped, so that the host decides whether an update runs.
    bool skips_updates() const { return options_.skip_loss_z > 0 || options_.skip_norm_z > 0; }

    // Adds the loss and norm of a step, which the batch is of, to the windows of past values. Returns true, with a
    // warning, if one is too far above them.
    bool is_outlier(const StepResult& result);

    const ZScores& scores() const { return z_; }   // the last step's

private:
    bool exceeds(const char* what, const char* flag, double z, float limit) const;

    const Options& options_;
    const Log& log_;
    const StepBatch& batch_;
    int lateness_;   // steps by which gradients are applied late
    OutlierDetector losses_, norms_;
    ZScores z_;
};
