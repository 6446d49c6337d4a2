// `train_gpt check`: whether a run with these options can begin and go on to its end, without training and without
// writing anything: model, checkpoint to resume from, token ids, shards and their hashes, disk, device memory, kernels,
// how fast ranks talk, and how long a step and the whole run take.
//
// A line for each; what is wrong with one does not keep the others from being looked at, where they need no more than
// is there. What training takes passes here, for it is looked at by the same functions, which only read more: all ids
// and all hashes.
#pragma once

#include "llmc/cli/command_line.h"
#include "llmc/process/world.h"
#include "llmc/run/stopping/stop_signals.h"

// Collective. Returns the exit code: 0, or that of the first thing that is wrong, which a run would end with.
int check_run(const CommandLine& asked, World& world, const StopSignals& signals);

// Where a folder that may not be there yet would lie, and how much it could hold.
struct DiskRoom {
    std::string at;   // the deepest of its parents that there is
    std::uint64_t free_bytes = 0;
};
// Error(io) where nothing can be written.
DiskRoom disk_room(const std::string& folder);
