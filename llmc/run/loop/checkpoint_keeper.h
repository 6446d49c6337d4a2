// Keeps a run's checkpoints: saves them beside the run, keeps the best, removes old ones, and finds the newest.
//
// The run waits only for the copy to host memory. A failed save gives a warning, and the run goes on: the next one is
// due as usual, and the run fails only if its last save failed. The end of the run, a request to stop and the next save
// wait for a save that is being written. save, save_best, advance, finish_save, settle,
// newest and load are collective.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "llmc/run/choices/matmul_choices.h"
#include "llmc/run/loop/trainer_parts.h"
#include "llmc/run/stopping/agreement.h"
#include "llmc/run/training_state.h"

// Subfolder of the output folder with the state of the lowest validation loss (--keep-best).
inline constexpr const char* kBestFolder = "best";

class CheckpointKeeper {
public:
    CheckpointKeeper(const TrainerParts& parts, SharedMatmulChoices& matmul_choices);

    // Allocates host memory now, because it takes time, and must not fail after the last step.
    void prepare();
    void went_back_to(int step) { saved_step_ = origin_ = step, best_step_ = 0; }   // the state is that of a checkpoint

    // Saves the state, if there is an output folder, unless its step is saved already. Links the files of the best
    // state if that is of this step. Each first waits for the active save.
    void save(const RunState& state);
    void save_best(const RunState& state);   // as the best folder's only checkpoint

    bool has_written() const { return save_ && save_->ready(); }   // this rank's part of the active save
    void advance();       // goes on with the active save once all ranks have written; call it after each step
    void finish_save();   // waits for the active save, and reports its outcome
    void settle();        // at the run's end: waits for the active save; throws if the last one failed

    // Waits for the active save, and returns the newest checkpoint that verifies; sets aside those passed over.
    std::optional<FoundCheckpoint> newest();
    RunState load(const FoundCheckpoint& checkpoint);

    const Gatherer& gatherer() const { return gatherer_; }

private:
    bool link_best(const RunState& state);   // false: failed
    void remove_older(int saved);
    // Starts a save, which then calls `afterwards` on the first rank. No other save may be active.
    void begin_save(const std::string& folder, const RunState& state, std::function<void()> afterwards);

    const TrainerParts& parts_;
    const std::string& folder_;
    Agreement& agreement_;
    SharedMatmulChoices& matmul_choices_;
    Gatherer gatherer_;
    std::optional<HostTensors> host_tensors_;
    std::optional<CheckpointWriter> save_;   // the active save
    std::string save_folder_;                // its folder
    std::exception_ptr save_failure_;        // error of the last save
    int saved_step_ = 0;                     // last step that is in a checkpoint
    int origin_ = 0;                         // the checkpoint that the state was read from
    int best_step_ = 0;                      // last step that this start saved as the best
};
