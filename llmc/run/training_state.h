// Saves the exact state of a run to a checkpoint (llmc/checkpoint/checkpoint.h) and restores it, so that a run that was
// cut anywhere continues bit for bit.
//
// Files of a checkpoint:
//   config.json, model-*, optimizer-*   the model in Hugging Face's form, and the exact state (saved_tensors.h)
//   generation_config.json, tokenizer.bin, tokenizer.json, tokenizer_config.json    if the data, or else the model
//                                       that the run starts from, has a tokenizer
//   run.json                            everything else: RunState
//   router_bias.safetensors             if routers choose with biases (llmc/model/layer/router_bias.h)
//   matmul.json                         the matmul algorithms (matmul_choices.h)
// All but the last, and the manifest that hashes it, are the same for any mesh and ZeRO stage. All random numbers are
// functions of the seed and of counters that follow from the step, so none has a state.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "llmc/checkpoint/saved_tensors.h"
#include "llmc/data/loader.h"
#include "llmc/run/loop/outlier_detector.h"
#include "llmc/run/loop/step_phase.h"
#include "llmc/run/step/step.h"

struct RunState {
    int step = 0;   // completed steps
    std::uint64_t seed = 42;
    LoaderState loader;
    std::uint64_t windows = 0;   // samples per epoch; a resumed run must have the same data and sequence length
    OutlierDetector::State loss_outliers, norm_outliers;
    AttentionKind attention = AttentionKind::auto_;   // the one that the run used
    StepPhase next = StepPhase::next_step;            // first work of the resumed run
    int bad_steps = 0;                                // steps in a row whose loss or norm is not finite
    std::optional<double> best_val_loss;              // the lowest so far, after a step
    OptimizerKind optimizer = OptimizerKind::adamw;
    StepState of_step = {};
    std::vector<float> router_bias = {};
};

// Returns the tensors, once nothing of them travels (Step::wait_for_traffic). Collective.
inline TrainedTensors tensors_of(Step& step) {
    step.wait_for_traffic();
    return {step.stage().parameters(), step.optimizer().states(), step.stage().options().replica};
}

// Contents of a checkpoint besides tensors and run.json, and rank 0's work in the thread that writes.
struct CheckpointExtras {
    std::string tokenizer_file;                 // tokenizer.bin or tokenizer.json, which are copied both; empty: none
    std::string matmul_choices;                 // content of matmul.json
    std::function<void()> before = [] {};       // runs before the first file is written; its error fails the save
    std::function<void()> afterwards = [] {};   // runs once the checkpoint is complete; its error is a warning
};

// Starts a save; collective. When it returns, everything that the save needs has been copied to host memory, and the
// run may change the tensors. A thread of each rank writes the tensors of its units; rank 0's thread also writes the
// rest.
//
// Until the save is over, `memory` and the files in `extras` must not change, and no other save may begin.
void start_save(CheckpointWriter& writer, const RunState& state, const TrainedTensors& tensors, HostTensors& memory,
                const CheckpointExtras& extras, const Gatherer& gatherer);

// Saves a state whose tensors are those of `saved`, a complete checkpoint: links its files and writes the rest. For one
// rank only. Throws on failure, for example if the file system has no hard links.
void link_training_state(FileSystem& files, const std::string& folder, const RunState& state, const std::string& saved,
                         const CheckpointExtras& extras);

// Reads where the loader of a checkpoint stands; the checkpoint may be of any build.
LoaderState saved_loader(const FileSystem& files, const std::string& checkpoint);

// Restores this rank's part of the tensors, and returns the rest. The caller must also call restore_matmul_choices.
// Throws Error(bad_data) if the checkpoint is of another model, precision or optimizer, or has masters and the run has
// none, or the other way round. With `reset_moments` it may be of another optimizer, and only the weights are read.
RunState load_training_state(const FileSystem& files, const std::string& path, const TrainedTensors& tensors,
                             cudaStream_t stream, OptimizerKind optimizer = OptimizerKind::adamw,
                             bool reset_moments = false);
