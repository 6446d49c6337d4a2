// Trains small models with updates that come late, to see what lateness costs: `make bench BENCH=asynchrony`.
//
// Two ways, over the number of workers, at equal tokens: gradients that a parameter server applies by order of arrival
// (dev/bench/asynchrony/parameter_server.h), and moves of local steps (dev/bench/asynchrony/late_moves.h). They are
// lessons: order of arrival cannot be resumed bit for bit, so no run trains so.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <string>
#include <vector>

// One way with some number of workers.
struct LateTrial {
    std::string way;   // "server, bound 4", "Nesterov, gate 0.3"
    bool of_server = true;
    int workers = 1;
    double loss = 0;            // of the validation, at the end
    double mean_lateness = 0;   // in updates or moves
    double seconds = 0;         // of a server: until the last update, where a step takes 1 or more
    double bytes = 0;           // through the server's link in an update or a move
    double bytes_of_ring = 0;   // of a rank in an all-reduce of as many ranks' gradients, divided by their number
};

class AsynchronyTrials {
public:
    // `texts`: files; none: docs/*.md. Throws Error(io, bad_data) if they cannot be read or are too short.
    AsynchronyTrials(const std::vector<std::string>& texts, bool long_run, cudaStream_t stream);

    // Makes all trials; calls `told` after each.
    std::vector<LateTrial> run(const std::function<void(const LateTrial&)>& told);

private:
    std::string text_;
    bool long_run_;
    cudaStream_t stream_;
};

std::string late_trial_row(const LateTrial& trial);
std::string late_trials_json(const std::vector<LateTrial>& trials);
std::string late_trials_picture(const std::vector<LateTrial>& trials);   // SVG
