// The optimizer of a run: its state of every parameter (optimizer_state.h), and the rule by which it updates it
// (llmc/kernels/optim/rules.cuh).
//
// The parameter table and the storage say which parameters there are and where they lie (param_storage.h). Master
// weights exist if parameters are bf16, unless --master-weights is 0; they start as the parameters' values. Without
// them bf16 parameters are rounded stochastically.
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
#include "llmc/optim/outer_step.h"
#include "llmc/parallel/training_groups.h"

struct GradNorm;   // llmc/kernels/global_norm.cuh
template <class Real>
struct UpdateRange;   // llmc/kernels/optim/update.cuh
class MuonMatrices;   // llmc/optim/muon.h

class Optimizer {
public:
    // Makes moments that are zero, and master weights that equal the parameters, which must be initialised before.
    Optimizer(Stage& stage, const OptimizerOptions& options, Arena& arena, const TrainingGroups& groups = {});
    ~Optimizer();

    // Returns the gradients that update() applies, once the caller has summed them over ranks: the stage's, or those of
    // the step before.
    const StateBuffers& gradients() const { return gradients_; }

    // Writes to sum[0] the sum of squares of the gradients of which this rank is the one owner.
    void sum_squares(double* sum);

    // Updates what this rank owns, in step `step`, counted from 1, and ends local steps. The average of the weights
    // follows. `norm`: on the device.
    void update(int step, float learning_rate, const GradNorm* norm);

    // Makes the outer step of local steps after step `step` (outer_step.h), whether or not the step's update was
    // skipped; returns whether weights have changed. Collective over the ranks of `outer`, and inside a replica.
    bool end_local_steps(int step);

    // Makes the matmuls of an update, if it has any, on values that mean nothing, so that their algorithms are tried.
    // Changes neither weights nor moments; not collective.
    void try_matmuls();

    // Says that the moments were zero after `step` steps: bias corrections count from there.
    void begins_after(int step) { began_ = step; }
    int began() const { return began_; }

    // Says that the run's last step is `step`.
    void ends_after(int step) { last_ = step; }

    // Makes later work on the stage's stream see what travels between replicas beside the steps as it arrives.
    // Collective inside a replica.
    void wait_for_flights();
    // Steps after which what still travels has left (OuterStep::left); empty: nothing does, ever. What a checkpoint
    // keeps besides states; restore_flights() returns a sentence if this run leaves it out.
    std::vector<int> flights() const;
    std::string restore_flights(const std::vector<int>& left);

    // State that a run is resumed from, besides the parameters.
    const std::vector<OptimizerState>& states() const { return states_; }
    const StateBuffers& buffers(std::string_view name) const;   // which must exist
    ModelState<float> state(std::string_view name) const { return buffers(name).as<float>(); }
    double bytes_per_parameter() const;   // all states laid out as the optimizer's

private:
    struct Tables;   // lists what this rank updates, on the device
    cudaStream_t stream() const { return stage_.stream(); }
    void make_tables(Arena& arena);
    UpdateRange<floatX> through_matrices(UpdateRange<floatX>& range) const;
    void copy_parameters(const ModelState<float>& weights);
    void set_step(int step, float learning_rate, const GradNorm* norm);
    void update_matrices();
    template <class Rule>
    void sum_norms_of_all();

    Stage& stage_;
    OptimizerOptions options_;
    Communicator* all_;                    // or null
    std::vector<OptimizerState> states_;   // their contents are undefined
    StateBuffers gradients_;
    int began_ = 0, last_ = 0;                 // last_ 0: not known
    std::vector<int> first_block_;             // each parameter's first block
    std::unique_ptr<MuonMatrices> matrices_;   // null: no rule is Muon's
    std::unique_ptr<Tables> tables_;
    std::unique_ptr<OuterStep> outer_step_;   // null: no local steps
};
