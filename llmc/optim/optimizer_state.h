// State that an optimizer keeps beside the parameters: a list of named tensors, fp32, each in its parameter's shape.
//
// Code that gathers, saves, reshards, loads, counts, hashes or compares states iterates over the list; only the
// optimizer itself knows the names. A checkpoint has "<name>.<parameter>" of each, in the order of the list.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/kernels/optim/newton_schulz.h"
#include "llmc/model/parameters/param_storage.h"

enum class OptimizerKind : std::uint8_t { adamw, muon, lamb, lars, sgd };   // llmc/kernels/optim/rules.cuh

// Factor by which Muon's orthogonal matrices move weights: Jordan's sqrt(max(1, out / in)), or 0.2 sqrt(max(out, in)),
// which moves them as AdamW does at the same rate (Liu et al., "Muon is scalable for LLM training", 2025).
enum class MuonScale : std::uint8_t { original, match_rms_adamw };

struct OptimizerOptions {
    OptimizerKind optimizer = OptimizerKind::adamw;
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;   // beta1: also the momentum of lars and sgd
    float lars_trust = 1e-3f;
    float lr = 3e-4f;   // the highest; with muon only AdamW's parameters have it
    float muon_lr = 0.02f, muon_momentum = 0.95f;
    MuonCoefficients muon_coefficients = MuonCoefficients::quintic;
    MuonScale muon_scale = MuonScale::original;
    float weight_decay = 0.0f;
    float grad_clip = 1.0f;   // largest norm of all gradients; 0: no clipping
    float ema = 0;            // decay of the average of weights; 0: none is kept
    bool master_weights = true;
    std::uint64_t seed = 42;   // seeds stochastic rounding, weights, sample order and samples
};

// Description of a state, before it has memory.
struct OptimizerStateSpec {
    std::string name;          // in files and messages
    bool is_weights = false;   // the exact weights, from which the parameters are rounded; at most one of a list
    bool averages = false;     // average of the weights so far; begins as the weights, also if a file has none
    std::function<bool(const ParamInfo&)> keeps = [](const ParamInfo&) { return true; };   // true: the parameter has it
};

struct OptimizerState : OptimizerStateSpec {
    // Contents are undefined. `parameters`: storage of all parameters on this rank.
    OptimizerState(const OptimizerStateSpec& spec, const ParamStorage& parameters, Arena& arena)
        : OptimizerStateSpec(spec),
          storage(std::make_unique<ParamStorage>(parameters, keeps)),
          values(arena, "optimizer " + name, *storage, StateKind::optimizer) {}

    // Returns where this rank keeps the state of a parameter; null if it does not.
    const TensorLayout* find(int param) const { return storage->find(param); }

    std::unique_ptr<const ParamStorage> storage;   // layout of the parameters that have it
    ModelState<float> values;
};

// True if Muon makes the parameter's updates orthogonal: the matrices of layers. AdamW updates the others.
inline bool is_muon_matrix(const ParamInfo& info) { return info.is_layer_matrix(); }

// Returns the list of states for a run's options.
std::vector<OptimizerStateSpec> optimizer_states(const OptimizerOptions& options);
