// The optimizer of a run: its state of every parameter (optimizer_state.h), and the rule by which it updates it
// (llmc/kernels/optim/rules.cuh).
//
// The parameter table and the storage say which parameters there are and where they lie (param_storage.h). Master
// weights exist if parameters are bf16 and --master-weights is on; they start as the parameters' values. Without them
// bf16 parameters are rounded stochastically.
//
// Rules with a ratio per tensor (lamb, lars) add up the sums of squares of every tensor, or block of its rows, in one
// all-reduce of all N ranks: 2f x 16 bytes for each, f = (N - 1) / N. Each element counts once, on the rank that is its
// one owner, so ranks that hold copies of it find the same ratio.
//
// Everything is asynchronous on the stage's stream.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "llmc/model/stage/stage.h"
#include "llmc/optim/optimizer_state.h"
#include "llmc/parallel/training_groups.h"

struct GradNorm;   // llmc/kernels/global_norm.cuh

class Optimizer {
public:
    // Makes the optimizer. Moments are zero and master weights equal the parameters, which must be initialised before.
    static std::unique_ptr<Optimizer> make(Stage& stage, const OptimizerOptions& options, Arena& arena,
                                           const TrainingGroups& groups = {});
    virtual ~Optimizer() = default;

    // Writes to sum[0] the sum of squares of the gradients of which this rank is the one owner.
    virtual void sum_squares(double* sum) = 0;

    // Updates what this rank owns, in step `step`, counted from 1. `norm`: on the device.
    virtual void update(int step, float learning_rate, const GradNorm* norm) = 0;

    // Says that the moments were zero after `step` steps: bias corrections count from there.
    void begins_after(int step) { began_ = step; }
    int began() const { return began_; }

    // State that a run is resumed from, besides the parameters.
    const std::vector<OptimizerState>& states() const { return states_; }
    const ModelState<float>& state(std::string_view name) const;   // which must exist
    double bytes_per_parameter() const;                            // all states together

protected:
    Optimizer(const ParamStorage& storage, const OptimizerOptions& options, Arena& arena);

    std::vector<OptimizerState> states_;   // their contents are undefined
    int began_ = 0;

private:
    const ParamStorage& parameters_;
};
