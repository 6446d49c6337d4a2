// The costs of training by arithmetic alone: days, failures.
#pragma once

#include <cmath>

constexpr double kSecondsPerDay = 86400;

// ---- failures: Young, 1974; Daly, 2006

// Llama 3 405B (Dubey et al., 2024): 419 unexpected interruptions in 54 days on 16,384 GPUs.
constexpr double kGpuHoursPerFailure = 50700;

struct Failures {
    double write_seconds;     // per checkpoint, during which training stands still
    double restart_seconds;   // from a failure to the next step
    double between_seconds;   // mean time between failures, of all devices together
};
inline double best_checkpoint_interval(const Failures& f) { return std::sqrt(2 * f.write_seconds * f.between_seconds); }
// Returns the share of the time that is lost, with a checkpoint every `interval` seconds.
inline double wasted_share(const Failures& f, double interval) {
    return f.write_seconds / interval + interval / (2 * f.between_seconds) + f.restart_seconds / f.between_seconds;
}
