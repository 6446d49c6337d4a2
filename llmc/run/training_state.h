// The exact state of a run, saved to and restored from a checkpoint (llmc/checkpoint/checkpoint.h), so that a run that was cut
// anywhere continues bit for bit.
//
// Files of a checkpoint:
//   config.json, model-*, optimizer-*   the model in Hugging Face's form, and the exact state (state_tensors.h)
//   generation_config.json, tokenizer.bin, tokenizer.json, tokenizer_config.json    where the data has a tokenizer
//   run.json                            everything else: RunState
//   matmul.json                         which algorithms multiply matrices (matmul_choices.h)
// All but the last, and the manifest that hashes it, are the same whatever mesh and ZeRO stage wrote them. All random
// numbers are functions of the seed and of counters that follow from the step, so none has a state.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "llmc/checkpoint/state_tensors.h"
#include "llmc/data/loader.h"
#include "llmc/run/after_step.h"
#include "llmc/run/step.h"
#include "llmc/run/stopping/guard.h"

struct RunState {
    int step = 0;   // completed steps
    std::uint64_t seed = 42;
    LoaderState loader;
    std::uint64_t windows = 0;   // samples of an epoch: the same data and sequence length when it is resumed
    OutlierDetector::State loss_outliers, norm_outliers;
    AttentionKind attention = AttentionKind::auto_;   // as the run used it
    AfterStep next = AfterStep::next_step;            // what comes first when it goes on
    int bad_steps = 0;                                // in a row until now: loss or norm not finite
    std::optional<double> best_val_loss;              // the lowest of the validations after a step
};

// The tensors as the last update left them: what is queued on the model's stream from now on sees them.
inline TrainedTensors tensors_of(Step& step) {
    step.wait_for_all_gather();
    Optimizer& optimizer = step.optimizer();
    return {step.stage().parameters(), optimizer.first_moments(), optimizer.second_moments(), optimizer.masters()};
}

// Files of a checkpoint besides its tensors and `run.json`.
struct CheckpointExtras {
    std::string tokenizer_file;   // tokenizer.bin: copied with the tokenizer.json beside it, unless empty
    std::string matmul_choices;   // matmul.json's content
};

// What rank 0 does beside the run, in the thread that writes.
struct AroundSave {
    std::function<void()> before = [] {};   // the first file; a failure is the save's
    std::function<void()> after = [] {};    // the checkpoint is complete; a failure is told by after_failure()
};

// A save under way. When it is made, which is collective, all that it needs of the run has been copied to host memory;
// from then on the run may change the tensors, and a thread of each rank writes this rank's share: the tensors of its
// units, rank 0 the rest. Its end takes two meetings of all ranks, when all have written and when rank 0 has committed;
// the run holds them at places that all ranks share, once every rank is ready, so that nobody waits there.
//
// `memory` and what `extras` names must not change before the save is over, nor another one begin.
class StateSave {
public:
    StateSave(FileSystem& files, const std::string& folder, const RunState& state, const TrainedTensors& tensors,
              HostTensors& memory, const CheckpointExtras& extras, const Gatherer& gatherer,
              const CheckpointRanks& ranks = {}, AroundSave around = {});
    ~StateSave();   // waits for the thread; a process alone completes the checkpoint
    StateSave(const StateSave&) = delete;
    StateSave& operator=(const StateSave&) = delete;

    int step() const { return step_; }
    bool ready() const { return !works_; }   // for advance(), which then waits for no disk of this rank's
    void advance();                          // the next meeting: collective
    bool is_over() const { return phase_ == Phase::over; }
    void finish();                       // all that is left of it: collective, waits
    void throw_if_failed() const;        // when over: its error on the rank that failed, Error(resumable) on the others
    std::string after_failure() const;   // when over, on rank 0; empty: none

private:
    enum class Phase { writing, committing, over };
    void start(std::function<void()> work);

    int step_;
    const Gatherer& gatherer_;
    CheckpointRanks ranks_;
    AroundSave around_;
    CheckpointWriter writer_;
    Phase phase_ = Phase::writing;
    std::atomic<bool> works_ = false;   // the thread does
    std::thread thread_;
    std::exception_ptr failure_;
    std::string after_failure_;
};

// A save from its begin to its end; collective. Throws what StateSave::throw_if_failed does.
void save_training_state(FileSystem& files, const std::string& folder, const RunState& state,
                         const TrainedTensors& tensors, const CheckpointExtras& extras, const Gatherer& gatherer,
                         const CheckpointRanks& ranks = {});

// The same where `saved`, a complete checkpoint, holds the same tensors: they are linked, and the rest is written. By
// one rank alone; throws what went wrong, as where files cannot have two names.
void link_training_state(FileSystem& files, const std::string& folder, const RunState& state, const std::string& saved,
                         const CheckpointExtras& extras);

// Restores what this rank keeps of the tensors, and returns the rest; restore_matmul_choices is the caller's to call.
// Error(bad_data) where the checkpoint is of another model, precision or choice of master weights.
RunState load_training_state(const FileSystem& files, const std::string& path, const TrainedTensors& tensors,
                             cudaStream_t stream);
