// The exact state of a run, saved to and restored from a checkpoint (llmc/io/checkpoint.h), so that a run that was cut
// anywhere continues bit for bit.
//
// Files of a checkpoint:
//   config.json, model.safetensors   the model in Hugging Face's form and the build's precision (model_export.h)
//   tokenizer.bin                    where the data has one
//   optimizer.safetensors            fp32, without padding, stored [out, in]: "m.<name>", "v.<name>", and
//                                    "master.<name>" where parameters are rounded ones
//   run.json                         everything else: RunState
//   matmul.json                      which algorithms multiply matrices (matmul_choices.h)
// All random numbers are functions of the seed and of counters that follow from the step, so none has a state.
#pragma once

#include <string>
#include <vector>

#include "llmc/data/loader.h"
#include "llmc/io/checkpoint.h"
#include "llmc/parallel/gather.h"
#include "llmc/train/after_step.h"
#include "llmc/train/guard.h"
#include "llmc/train/step.h"

struct RunState {
    int step = 0;   // completed steps
    std::uint64_t seed = 42;
    LoaderState loader;
    std::uint64_t windows = 0;   // samples of an epoch: the same data and sequence length when it is resumed
    OutlierDetector::State loss_outliers, norm_outliers;
    AttentionKind attention = AttentionKind::auto_;   // own or library, as the run used it; auto_: an old checkpoint
    AfterStep next = AfterStep::next_step;            // what comes first when it goes on
};

// Writes all files and finishes the checkpoint. `tokenizer_file` is copied into it, unless empty. Collective over the
// ranks that share the state: tensors are gathered one at a time to the one that writes, so the files do not depend on
// how the state is cut.
void save_training_state(FileSystem& files, const std::string& folder, const RunState& state, Step& step,
                         const std::string& tokenizer_file, const WholeTensors& whole);

// Restores what this rank keeps of parameters and optimizer, and returns the rest; restore_matmul_choices is the
// caller's to call. Error(bad_data) where the checkpoint is of another model, precision or choice of master weights.
RunState load_training_state(const FileSystem& files, const std::string& path, Step& step);
