// Trains with a parameter server, by order of arrival and with bounded staleness (Ho et al., "More effective
// distributed ML via a stale synchronous parallel parameter server", 2013), as one process can: on a clock of its own.
//
// A worker pulls the weights, computes a gradient, and pushes it; the server applies it at once to the weights that it
// has by then. So a gradient is late by as many updates as the server made between pull and push. A worker begins a
// step only if it has made at most `bound` steps more than the one that made fewest. Steps take 1 and a drawn time
// more, so the order is the same for a seed.
//
// Through the server's link every update moves the weights out and a gradient in: 8 bytes a parameter in fp32.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "dev/bench/asynchrony/worker_model.h"

struct ParameterServer {
    int workers = 1;
    int bound = 0;       // steps
    double spread = 0;   // mean of the drawn part of a step's time
    std::uint64_t seed = 1;
};

struct ServerRun {
    double seconds = 0;         // until the last update, where a step takes 1 and what is drawn
    double mean_lateness = 0;   // updates between pull and push
    int most_ahead = 0;         // steps of a worker ahead of the one that made fewest, when it begins one
};

// Makes `updates` updates, in which `model` is server and workers, each on the next sample. `learning_rate`: by update,
// counted from 1.
inline ServerRun train_with_server(WorkerModel& model, const ParameterServer& how, int updates,
                                   const std::function<float(int)>& learning_rate) {
    struct Worker {
        bool works = false;
        double ends = 0;
        int steps = 0, pulled = 0;   // pulled: updates that its weights have seen
        std::vector<float> weights = {};
    };
    std::vector<Worker> workers(static_cast<std::size_t>(how.workers));
    std::vector<float> weights = model.weights();
    ServerRun run;
    double now = 0, lateness = 0;
    for (int made = 0; made < updates;) {
        int fewest = std::numeric_limits<int>::max();
        for (const Worker& worker : workers) fewest = std::min(fewest, worker.steps);
        for (std::size_t w = 0; w < workers.size(); w++) {
            Worker& worker = workers[w];
            if (worker.works || worker.steps - fewest > how.bound) continue;
            const std::uint64_t draw = mix64(mix64(how.seed * 1024 + w) + static_cast<std::uint64_t>(worker.steps));
            const double uniform = (static_cast<double>(draw >> 11) + 0.5) * 0x1p-53;
            run.most_ahead = std::max(run.most_ahead, worker.steps - fewest);
            worker = {true, now + 1 - how.spread * std::log(uniform), worker.steps, made, weights};
        }
        Worker* first = nullptr;   // to push
        for (Worker& worker : workers) {
            if (worker.works && (first == nullptr || worker.ends < first->ends)) first = &worker;
        }
        now = first->ends;
        model.set_weights(first->weights);
        model.gradients(static_cast<std::uint64_t>(made));
        model.set_weights(weights);
        lateness += made - first->pulled;
        made++;
        model.update(made, learning_rate(made));
        weights = model.weights();
        first->works = false, first->steps++;
    }
    run.seconds = now, run.mean_lateness = lateness / updates;
    return run;
}
