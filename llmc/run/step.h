// One optimizer step from a schedule, and the forward passes between steps: everything that a run computes.
//
// What ranks must know alike of a step (loss, norm, requests to stop) travels in one all-reduce and comes to the host
// in one copy, for which it waits. Everything else is asynchronous on the stage's stream: the norm, the clip factor
// derived from it and the decision to skip an update whose norm or loss is not finite stay on the device.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "llmc/base/pinned.h"
#include "llmc/optim/optimizer.h"
#include "llmc/parallel/pipeline.h"
#include "llmc/process/comm.h"
#include "llmc/run/metrics/expert_load.h"
#include "llmc/run/stopping/stop_signals.h"

class Zero;               // llmc/parallel/zero.h
class PartialGradients;   // llmc/parallel/partial_gradients.h

// What a step has found, the same on every rank.
struct StepResult {
    float loss;        // mean over the step's tokens
    float grad_norm;   // of all gradients together, before clipping
    StopVotes stop;
    std::optional<ExpertLoad> experts = {};   // none where the model has no experts
};

// Doubles that all ranks add in a step, in one all-reduce: loss, requests to stop and checkpoints written (StopVotes),
// and at the end the sum of squares of the gradients.
inline constexpr std::size_t step_sums = 5;

// Bytes that a rank sends in a step for these, and for the loads and losses of experts.
double step_sum_bytes(const MeshShape& mesh, const ModelConfig& model);

class Step {
public:
    // The stage's parameters must be initialised before. A stage without backward gets no optimizer, and only forward
    // is called. From now on the stage's hooks are ZeRO's, where ranks share.
    Step(Stage& stage, const OptimizerOptions& options, Arena& arena, const TrainingGroups& groups = {});
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    Stage& stage() { return stage_; }
    Optimizer& optimizer() { return *optimizer_; }

    // All of a step but the update: gradients, overwritten by the first micro-batch and added to by later ones, loss,
    // norm of all gradients, the clip factor, and whether a rank asks to stop. `token_share` is 1 / the number of
    // tokens of the whole step, of all ranks; every rank has as many micro-batches. `vote`: this rank's, asked for at
    // the end.
    void gradients(
        const PipelineSchedule& schedule, const Pipeline::Read& read, float token_share,
        const std::function<StopVotes()>& vote = [] { return StopVotes{}; });

    // Of the next step: its first micro-batch, which `read` knows by `number`, is read while the device is still at
    // work on this one. Forgotten, `gradients` reads it itself.
    void read_ahead(const Pipeline::Read& read, int number) { pipeline_.read_ahead(read, number); }
    void forget_read_ahead() { pipeline_.forget_read_ahead(); }

    // By the rule of --optimizer. Steps count from 1. Does nothing where the norm or the loss is not finite.
    void update(int step, float learning_rate);

    // Waits for the step's work.
    StepResult result() const;

    // What is queued on the stage's stream from now on sees the parameters this rank keeps as the last update left them
    // everywhere. Forward passes need no such call.
    void wait_for_all_gather();

    // One micro-batch without backward; what its last chunk then has is asked of the stage: losses() or logits().
    void forward(const Pipeline::Read& read, Purpose purpose) { pipeline_.forward(read, purpose); }

    // Logits of one row of the latest forward for them, into stage().logits_columns() on the device of every rank,
    // wherever the head is; `cp_rank` has the row.
    void logits(floatX* out, int row, int cp_rank = 0);

    // A line for people: what model, gradients and optimizer take on this rank by ZeRO's formula
    // (llmc/parallel/zero.h), to compare with the table of what is allocated.
    std::string memory_by_formula() const;

private:
    struct Numbers;   // on the device
    void exchange_tied_gradients();
    void add_expert_totals();   // of all ranks

    Stage& stage_;
    float grad_clip_;
    TrainingGroups groups_;
    std::unique_ptr<Optimizer> optimizer_;
    DeviceBuffer<Numbers> numbers_;
    PinnedBuffer<StopVotes> vote_{1};   // on its way to `numbers_`, until `vote_sent_`
    OwnedEvent vote_sent_;
    std::unique_ptr<Zero> zero_;                  // null: one rank
    std::unique_ptr<PartialGradients> partial_;   // null: no gradient is a part of a sum over tp ranks
    Pipeline pipeline_;
};
