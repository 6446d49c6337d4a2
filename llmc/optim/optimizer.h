// The optimizer of a run: what it keeps of every parameter (optimizer_state.h), and AdamW.
//
// Which parameters there are and where they lie is read from the parameter table and the storage (param_storage.h).
// Which rule updates a parameter, and whether it decays, its group says. Master weights exist where parameters are bf16
// and --master-weights is on; they start as the parameters' values. Without them bf16 parameters are rounded
// stochastically.
//
// Everything is asynchronous on the stage's stream.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "llmc/model/stage.h"
#include "llmc/optim/optimizer_state.h"

struct GradNorm;   // llmc/kernels/global_norm.cuh

enum class UpdateRule : std::uint8_t { adamw };

// Parameters that are updated alike.
struct ParamGroup {
    UpdateRule rule;
    float weight_decay;
    std::vector<int> params;   // indices in the table
};

// Every parameter of the table, in one group each.
std::vector<ParamGroup> param_groups(const ParamTable& table, const OptimizerOptions& options);

class Optimizer {
public:
    // Moments are zero and master weights equal the parameters, which must be initialised before.
    static std::unique_ptr<Optimizer> make(Stage& stage, const OptimizerOptions& options, Arena& arena);
    virtual ~Optimizer() = default;

    // sum[0] = the squares of the gradients of which this rank is the one owner, added up.
    virtual void sum_squares(double* sum) = 0;

    // The step with this number, from 1, of what this rank owns. `norm`: on the device.
    virtual void update(int step, float learning_rate, const GradNorm* norm) = 0;

    // Besides the parameters all that a run is resumed from.
    const std::vector<OptimizerState>& states() const { return states_; }
    const ModelState<float>& state(std::string_view name) const;   // which must exist
    double bytes_per_parameter() const;                            // of all of them

protected:
    Optimizer(const ParamStorage& storage, const OptimizerOptions& options, Arena& arena);

    std::vector<OptimizerState> states_;   // their contents are undefined

private:
    const ParamStorage& parameters_;
};
