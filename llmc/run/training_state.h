// Saves the exact state of a run to a checkpoint (llmc/checkpoint/checkpoint.h) and restores it, so that a run that was
// cut anywhere continues bit for bit.
//
// Files of a checkpoint:
//   config.json, model-*, optimizer-*   the model in Hugging Face's form, and the exact state (saved_tensors.h)
//   generation_config.json, tokenizer.bin, tokenizer.json, tokenizer_config.json    where the data, or else the model
//                                       that the run starts from, has a tokenizer
//   run.json                            everything else: RunState
//   router_bias.safetensors             where routers choose with biases (llmc/model/sublayers/router_bias.h)
//   matmul.json                         which algorithms multiply matrices (matmul_choices.h)
// All but the last, and the manifest that hashes it, are the same whatever mesh and ZeRO stage wrote them. All random
// numbers are functions of the seed and of counters that follow from the step, so none has a state.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "llmc/checkpoint/saved_tensors.h"
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
    OptimizerKind optimizer = OptimizerKind::adamw;
    int moments_began = 0;   // after so many steps they were zero: Optimizer::begins_after
    std::vector<float> router_bias = {};
};

// Returns the tensors as the last update left them: what is queued on the model's stream from now on sees them.
inline TrainedTensors tensors_of(Step& step) {
    step.wait_for_all_gather();
    return {step.stage().parameters(), step.optimizer().states()};
}

// Besides tensors and run.json: what a checkpoint holds, and what rank 0 does in the thread that writes.
struct CheckpointExtras {
    std::string tokenizer_file;                 // tokenizer.bin, or tokenizer.json: both go into it; empty: neither
    std::string matmul_choices;                 // matmul.json's content
    std::function<void()> before = [] {};       // runs before the first file is written; its error is the save's
    std::function<void()> afterwards = [] {};   // runs once the checkpoint is complete; its error is a warning
};

// Starts a save, which is collective: when it returns, all that the save needs of the run has been copied to host
// memory and the run may change the tensors. A thread of each rank writes the tensors of its units, that of rank 0 the
// rest.
//
// `memory` and what `extras` names must not change before the save is over, nor another one begin.
void start_save(CheckpointWriter& writer, const RunState& state, const TrainedTensors& tensors, HostTensors& memory,
                const CheckpointExtras& extras, const Gatherer& gatherer);

// Saves where `saved`, a complete checkpoint, holds the same tensors: links them and writes the rest. For one rank;
// throws what went wrong, as where files cannot have two names.
void link_training_state(FileSystem& files, const std::string& folder, const RunState& state, const std::string& saved,
                         const CheckpointExtras& extras);

// Of a checkpoint of any build: where its loader stands.
LoaderState saved_loader(const FileSystem& files, const std::string& checkpoint);

// Restores what this rank keeps of the tensors, and returns the rest; restore_matmul_choices is the caller's to call.
// Error(bad_data) where the checkpoint is of another model, precision, optimizer or choice of master weights; with
// `reset_moments` it may be of another optimizer, and what `tensors` has but weights stays as it is.
RunState load_training_state(const FileSystem& files, const std::string& path, const TrainedTensors& tensors,
                             cudaStream_t stream, OptimizerKind optimizer = OptimizerKind::adamw,
                             bool reset_moments = false);
