// Runs the training loop: steps of accumulated micro-batches, validation, sampling, records, and stopping.
//
// Steps count from 1. Loss and gradients are means over all tokens of the step, of all ranks. Validation and sample
// number N use the weights after step N; both also come after the last step, validation also before the first, and
// never twice for one step.
//
// With --spike-rewind an outlier takes the run back to its newest checkpoint that verifies: model, optimizer, windows
// of past values and counters are restored, but the loader stays behind the samples of the outlier. So the run goes on
// bit for bit like one that is resumed from that checkpoint and skips as many samples. A run that is killed later, and
// resumed from there, meets the same outlier and goes back again.
//
// All ranks act upon a signal to stop, to any of them, after the same step, or within validation or evaluation after
// the same micro-batch. The resumed run does the work that then remains after the step.
#pragma once

#include <optional>

#include "llmc/run/evaluation/validation.h"
#include "llmc/run/loop/checkpoint_keeper.h"
#include "llmc/run/loop/outlier_watch.h"
#include "llmc/run/loop/step_batch.h"
#include "llmc/run/loop/step_reporter.h"
#include "llmc/run/loop/trainer_parts.h"

enum class RunEnd {
    finished,         // all steps done
    stop_requested,   // --stop-after
    signal,           // a request to stop (stop_signals.h)
    bad_steps,        // --max-bad-steps in a row were not finite, or --spike-rewind led to no newer checkpoint
};

inline const char* words_of_end(RunEnd end) {
    return end == RunEnd::finished         ? "finished"
           : end == RunEnd::stop_requested ? "stopped after the steps it was asked for"
           : end == RunEnd::signal         ? "stopped by a signal or its time limit"
                                           : "stopped: too many bad steps";
}

class Trainer {
public:
    explicit Trainer(const TrainerParts& parts);
    ~Trainer();

    // Continues after a step of an earlier run. load_training_state must have restored parameters and optimizer.
    void restore(const RunState& state);

    RunEnd run();

    // Gathers the tensors for checkpoints; also usable for another file of the same tensors.
    const Gatherer& gatherer() const { return keeper_.gatherer(); }

private:
    RunEnd run_steps();
    void train_step();
    void follow_step();
    bool has_turn(StepPhase work, bool is_due);

    // The work after a step. Returns false if a request to stop came before its end.
    bool validate();
    bool evaluate();
    void write_samples();
    void save_checkpoint();

    void choose_algorithms();
    void settle_first_step();
    void examine(const StepResult& result);
    bool rewind();   // false: went back to this checkpoint too often
    RunState state_now(StepPhase next) const;
    RunEnd end_at_signal();
    RunEnd end_at_bad_steps();

    const Options& options_;
    const TrainerParts parts_;
    Schedule learning_rates_;
    int step_ = 0;        // completed steps
    int bad_steps_ = 0;   // steps in a row whose loss or gradient norm is not finite
    std::optional<double> best_val_loss_;
    StepPhase next_ = StepPhase::validation;   // the first work after the step that is not done
    StepBatch batch_;
    OutlierWatch outliers_;
    Agreement& agreement_;
    StepReporter reporter_;
    SharedMatmulChoices matmul_choices_;
    CheckpointKeeper keeper_;
    std::optional<Validation> validation_;
    std::optional<StepResult> spike_;    // the last step, if the run must go back from it
    int rewound_to_ = 0, rewinds_ = 0;   // last checkpoint gone back to, and how often
};
