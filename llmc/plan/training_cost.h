// The costs of training by arithmetic alone: FLOPs, days, bytes of state, time of a ring, failures.
#pragma once

#include <cmath>

constexpr double kSecondsPerDay = 86400, kDaysPerYear = 365.25;

// 6 N D for N parameters and D tokens (Kaplan et al., "Scaling laws for neural language models", 2020).
constexpr double training_flops(double parameters, double tokens) { return 6 * parameters * tokens; }
constexpr double training_days(double flops, int devices, double flops_per_second_of_each) {
    return flops / (devices * flops_per_second_of_each) / kSecondsPerDay;
}

// Bytes per parameter of a run in bf16; the optimizer has Adam's moments, 8, and master weights, 4.
struct StateBytes {
    double parameter = 2, gradient = 4, optimizer = 12;
    constexpr double total() const { return parameter + gradient + optimizer; }
};
// Bytes that one of `ranks` ranks keeps at a ZeRO stage (Rajbhandari et al., "ZeRO", 2020), without padding.
constexpr double zero_state_bytes(double parameters, int zero, int ranks, const StateBytes& each) {
    auto share = [&](double bytes, int from) { return zero >= from ? bytes / ranks : bytes; };
    return parameters * (share(each.parameter, 3) + share(each.gradient, 2) + share(each.optimizer, 1));
}

// Each rank's link carries 2 (n - 1) / n of the bytes.
constexpr double ring_all_reduce_seconds(double bytes, int ranks, double bytes_per_second) {
    return 2.0 * (ranks - 1) / ranks * bytes / bytes_per_second;
}

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
