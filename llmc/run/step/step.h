// Computes one optimizer step from a schedule, and the forward passes between steps: everything that a run computes.
//
// Loss, norm and requests to stop, which all ranks must know alike, are summed in one all-reduce and come to the host
// in one copy, for which it waits. With local steps each replica also adds up a norm of its own, by which it clips.
// Everything else is asynchronous on the stage's stream: the norm, the clip factor, and the decision to skip an update
// whose norm or loss is not finite stay on the device.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "llmc/base/pinned.h"
#include "llmc/optim/optimizer.h"
#include "llmc/parallel/pipeline.h"
#include "llmc/process/comm.h"
#include "llmc/run/metrics/expert_load.h"
#include "llmc/run/step/gradient_sync.h"
#include "llmc/run/step/step_state.h"
#include "llmc/run/stopping/stop_signals.h"

// Result of a step, the same on every rank.
struct StepResult {
    float loss;        // mean over the step's tokens
    float grad_norm;   // norm of all gradients together, before clipping; with local steps, RMS of the replicas' norms
    StopVotes stop;
    std::optional<ExpertLoad> experts = {};   // none if the model has no experts
};

// Doubles that all ranks add in a step, in one all-reduce: loss, requests to stop and checkpoints written (StopVotes),
// and at the end the sum of squares of the gradients.
inline constexpr std::size_t step_sums = 5;

class Step {
public:
    // The stage's parameters must be initialised before. A stage without backward gets no optimizer, and only forward()
    // may be called.
    Step(Stage& stage, const OptimizerOptions& options, Arena& arena, const TrainingGroups& groups = {});
    ~Step();

    Stage& stage() { return stage_; }
    Optimizer& optimizer() { return *optimizer_; }
    GradientSync& sync() { return sync_; }

    // Says how many steps the run has.
    void ends_after(int steps);

    // Runs all of a step but the update: gradients (overwritten by the first micro-batch, added to by later ones),
    // loss, norm of all gradients that the update applies, clip factor, and the votes to stop. `token_share` is 1 / the
    // tokens of the whole step on all ranks; every rank has as many micro-batches. `vote` is called at the end for this
    // rank's vote.
    void gradients(
        const PipelineSchedule& schedule, const Pipeline::Read& read, float token_share,
        const std::function<StopVotes()>& vote = [] { return StopVotes{}; });

    // Reads the next step's first micro-batch, which `read` knows as `number`, while the device still works on this
    // step. After forget_read_ahead(), gradients() reads it itself.
    void read_ahead(const Pipeline::Read& read, int number) { pipeline_.read_ahead(read, number); }
    void forget_read_ahead() { pipeline_.forget_read_ahead(); }

    // Updates the parameters by the rule of --optimizer, and after the last of some local steps takes the outer step of
    // all replicas. Steps count from 1. Leaves the update out if the norm or the loss is not finite.
    void update(int step, float learning_rate);

    // Takes the place of update() for a step whose update the caller leaves out: replicas still take their outer step.
    void skip_update(int step);

    // Waits for the step's work and returns its result.
    StepResult result() const;

    // Makes later work on the stage's stream see this rank's parameters as the last update left them on all ranks.
    // Forward passes need no such call. Collective with --zero 1 and 2.
    void wait_for_all_gather();
    // Likewise makes it see all that a checkpoint keeps: what travels beside the steps has arrived. Collective.
    void wait_for_traffic();

    // Returns what goes on from step to step besides tensors, after `step` steps. restore() returns a sentence about
    // what of it this run leaves out, or nothing.
    StepState state(int step);
    std::string restore(const StepState& state);

    // Runs one micro-batch without backward; the results of its last chunk are in the stage: losses() or logits().
    void forward(const Pipeline::Read& read, Purpose purpose) { pipeline_.forward(read, purpose); }

    // Copies the logits of one row of the latest forward to `out` on every rank, stage().logits_columns() elements,
    // wherever the head is. `cp_rank` holds the row.
    void logits(floatX* out, int row, int cp_rank = 0);

    // Returns a line for people: memory of model, gradients and optimizer on this rank by ZeRO's formula
    // (llmc/parallel/zero.h), to compare with the arena's table.
    std::string memory_by_formula() const;

private:
    struct Numbers;   // on the device
    void sum_numbers();
    void add_expert_totals();   // over all ranks

    Stage& stage_;
    float grad_clip_;
    TrainingGroups groups_;
    std::unique_ptr<Optimizer> optimizer_;
    DeviceBuffer<Numbers> numbers_;
    DeviceBuffer<std::int32_t> fullest_ranks_;   // (L), rows of the rank whose experts got most; empty without --ep
    PinnedBuffer<StopVotes> vote_;               // copied to numbers_; reusable after vote_sent_
    OwnedEvent vote_sent_;
    GradientSync sync_;
    Pipeline pipeline_;
};
