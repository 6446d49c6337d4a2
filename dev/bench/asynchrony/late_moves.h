// Trains by local steps whose moves come late (Liu et al., "Asynchronous local-SGD training for language modeling",
// 2024), as one process can: workers take turns, so every contribution but the first ones is late by as many moves as
// there are other workers.
//
// A worker starts from the server's weights v, takes H steps with an optimizer of its own, and hands in d = v - w. The
// server moves by the rule of local steps (llmc/kernels/optim/rules.cuh), with d times a gate exp(-a t) for a
// contribution that is t moves late.
#pragma once

#include <cmath>
#include <vector>

#include "dev/bench/asynchrony/worker_model.h"

struct LateMoves {
    int steps = 1;   // H
    float lr = 0.7f, momentum = 0.9f;
    float gate = 0;   // a
};

// Makes `moves` moves of as many workers as there are models; returns the server's weights. All begin with the first
// model's. Samples follow one another in the order in which steps are made.
inline std::vector<float> train_with_late_moves(std::vector<std::unique_ptr<WorkerModel>>& models, const LateMoves& how,
                                                int moves, const std::function<float(int)>& learning_rate) {
    const std::size_t workers = models.size();
    std::vector<float> server = models[0]->weights(), momentum(server.size(), 0.0f);
    std::vector<std::vector<float>> pulled(workers, server);
    std::vector<int> pulled_after(workers, 0), steps(workers, 0);
    std::uint64_t sample = 0;
    for (int move = 0; move < moves; move++) {
        const std::size_t w = static_cast<std::size_t>(move) % workers;
        models[w]->set_weights(pulled[w]);
        for (int step = 0; step < how.steps; step++) {
            models[w]->gradients(sample++);
            models[w]->update(++steps[w], learning_rate(static_cast<int>(sample)));
        }
        const std::vector<float> weights = models[w]->weights();
        const float share = std::exp(-how.gate * static_cast<float>(move - pulled_after[w]));
        for (std::size_t i = 0; i < server.size(); i++) {
            const float d = share * (pulled[w][i] - weights[i]);
            momentum[i] = how.momentum * momentum[i] + d;
            server[i] -= how.lr * (d + how.momentum * momentum[i]);
        }
        pulled[w] = server, pulled_after[w] = move + 1;
    }
    return server;
}
