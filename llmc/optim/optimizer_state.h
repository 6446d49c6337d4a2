// What an optimizer keeps beside the parameters: a list of named tensors, fp32, each in its parameter's shape.
//
// Who gathers, saves, reshards, loads, counts, hashes or compares them iterates over the list; only the optimizer
// itself knows the names. A checkpoint has "<name>.<parameter>" of each, in the order of the list.
#pragma once

#include <string>
#include <vector>

#include "llmc/model/param_storage.h"

struct OptimizerOptions {
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    float weight_decay = 0.0f;
    float grad_clip = 1.0f;   // largest norm of all gradients; 0: no clipping
    bool master_weights = true;
    std::uint64_t seed = 42;   // of stochastic rounding; and of the weights, the sample order and samples
};

struct OptimizerStateName {
    std::string name;          // in files and messages
    bool is_weights = false;   // the exact weights, from which the parameters are rounded; at most one of a list
};

struct OptimizerState : OptimizerStateName {
    ModelState<float> values;

    bool holds(int param) const { return values.storage().find(param) != nullptr; }
};

// The list for a run's options, known before there is an optimizer.
std::vector<OptimizerStateName> optimizer_state_names(const OptimizerOptions& options);
