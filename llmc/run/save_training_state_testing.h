// Saves, and waits for the end; collective. Throws what CheckpointWriter::finish does.
#pragma once

#include "llmc/run/training_state.h"

inline void save_training_state(FileSystem& files, const std::string& folder, const RunState& state,
                                const TrainedTensors& tensors, const CheckpointExtras& extras, const Gatherer& gatherer,
                                const CheckpointRanks& ranks = {}) {
    HostTensors memory(tensors, gatherer);
    CheckpointWriter writer(files, folder, state.step, ranks);
    start_save(writer, state, tensors, memory, extras, gatherer);
    writer.finish();
}
