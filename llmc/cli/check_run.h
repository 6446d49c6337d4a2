// `train_gpt check`: tells if a run with these options can begin and go on to its end, without training and without
// writing anything: model, checkpoint to resume from, token ids, shards and their hashes, disk, device memory, kernels,
// how fast ranks talk, and how long a step and the whole run take.
//
// Prints a line for each check. One that fails does not stop later checks that can do without it. The checks call the
// functions that a run calls, and only read more: all token ids and all hashes. So options that training accepts pass
// here.
#pragma once

#include "llmc/cli/command_line.h"
#include "llmc/process/world.h"
#include "llmc/run/stopping/stop_signals.h"

// Runs all checks. Collective. Returns the exit code: 0, or the one with which a run would end at its first error.
int check_run(const CommandLine& requested, World& world, const StopSignals& signals);

// Free space for a folder that may not exist yet.
struct DiskRoom {
    std::string at;   // deepest part of its path that exists
    std::uint64_t free_bytes = 0;
};
// Returns the space for `folder`. Error(io) where nothing can be written.
DiskRoom disk_room(const std::string& folder);
