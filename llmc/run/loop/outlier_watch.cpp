#include "llmc/run/loop/outlier_watch.h"

#include <cmath>

bool OutlierWatch::is_outlier(const StepResult& result) {
    const bool applies_none = lateness_ > 0 && result.grad_norm == 0;
    z_ = {losses_.update(result.loss), norms_.update(applies_none ? NAN : result.grad_norm)};
    const bool by_loss = exceeds("loss", "--skip-loss-z", z_.loss, options_.skip_loss_z);
    const bool by_norm = exceeds("gradient norm", "--skip-norm-z", z_.norm, options_.skip_norm_z);
    return by_loss || by_norm;
}

// Warns if a score is above its limit.
bool OutlierWatch::exceeds(const char* what, const char* flag, double z, float limit) const {
    if (limit <= 0 || !(z > limit)) return false;   // NaN: no score yet
    const std::string read =
        lateness_ > 0 ? "the step that made the gradients read" : text("it read: ", batch_.names_of_samples());
    log_.warning(
        "step %d: the %s's z-score %.2f is above %s %g: update skipped\n"
        "  `train_gpt data --samples %d` with the run's options shows what %s",
        batch_.step(), what, z, flag, static_cast<double>(limit), batch_.step() - lateness_, read.c_str());
    return true;
}
