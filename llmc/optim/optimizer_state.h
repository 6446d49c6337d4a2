// State that an optimizer keeps beside the parameters: a list of named tensors, each in its parameter's shape or
// another that the list gives, fp32 unless it says otherwise.
//
// Code that gathers, saves, reshards, loads, counts, hashes or compares states iterates over the list; only the
// optimizer itself knows the names. A checkpoint has "<name>.<parameter>" of each, in the order of the list.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/model/parameters/param_storage.h"
#include "llmc/optim/optimizer_options.h"

// Name of the state that --staleness 1 keeps: the gradients that the next step applies.
inline constexpr const char* kDelayedGradient = "delayed_gradient";
inline constexpr const char *kMaster = "master", *kLowerHalf = "master_lower_half";

// Description of a state, before it has memory.
struct OptimizerStateSpec {
    std::string name;              // in files and messages
    bool is_weights = false;       // the exact weights, from which the parameters are rounded; at most one of a list
    bool is_lower_half = false;    // lower halves of the exact weights (master_halves.cuh); then none is_weights
    bool averages = false;         // average of the weights so far; begins as the weights, also if a file has none
    bool outer = false;            // local steps: replicas have the same
    bool optional = false;         // begins as zero if a file has none
    bool delayed = false;          // gradients of the step before; valid where owned
    bool of_sum = false;           // each of compressed_sums() has another
    bool of_compression = false;   // kept by compressed gradients
    StateKind laid_out_as = StateKind::optimizer;
    DType type = DType::fp32;   // fp32 or bf16, also for lower halves, which are no numbers
    std::function<bool(const ParamInfo&)> keeps = [](const ParamInfo&) { return true; };   // true: the parameter has it
    std::function<TensorSpec(const TensorSpec&)> shape = nullptr;   // its shape, if not the parameter's
};

struct OptimizerState : OptimizerStateSpec {
    // Contents are undefined. `parameters`: storage of all parameters on this rank.
    OptimizerState(const OptimizerStateSpec& spec, const ParamStorage& parameters, Arena& arena)
        : OptimizerStateSpec(spec),
          storage(std::make_unique<ParamStorage>(parameters, keeps, shape)),
          values(arena, type, "optimizer " + name, *storage, laid_out_as) {}

    // Returns where this rank keeps the state of a parameter; null if it does not.
    const TensorLayout* find(int param) const { return storage->find(param); }

    std::unique_ptr<const ParamStorage> storage;   // layout of the parameters that have it
    StateBuffers values;
};

// Returns the list of states for a run's options. `mesh` says which gradients can be compressed.
std::vector<OptimizerStateSpec> optimizer_states(const OptimizerOptions& options, const MeshShape& mesh);
