// The exact state of a run, saved to and restored from a checkpoint (llmc/io/checkpoint.h), so that a run that was cut
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

#include <optional>
#include <string>

#include "llmc/data/loader.h"
#include "llmc/train/after_step.h"
#include "llmc/train/guard.h"
#include "llmc/train/state_tensors.h"
#include "llmc/train/step.h"

struct RunState {
    int step = 0;   // completed steps
    std::uint64_t seed = 42;
    LoaderState loader;
    std::uint64_t windows = 0;   // samples of an epoch: the same data and sequence length when it is resumed
    OutlierDetector::State loss_outliers, norm_outliers;
    AttentionKind attention = AttentionKind::auto_;   // own or library, as the run used it
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

// Writes all files and finishes the checkpoint. Collective over all ranks: each writes its share of the tensors, the
// first one the rest.
void save_training_state(FileSystem& files, const std::string& folder, const RunState& state,
                         const TrainedTensors& tensors, const CheckpointExtras& extras, const Gatherer& gatherer,
                         const CheckpointRanks& ranks = {});

// Restores what this rank keeps of the tensors, and returns the rest; restore_matmul_choices is the caller's to call.
// Error(bad_data) where the checkpoint is of another model, precision or choice of master weights.
RunState load_training_state(const FileSystem& files, const std::string& path, const TrainedTensors& tensors,
                             cudaStream_t stream);
