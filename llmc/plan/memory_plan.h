// What a run would take of each device's memory, before it has any: for --print-memory and --recompute auto.
#pragma once

#include <string>

#include "llmc/base/arena.h"
#include "llmc/process/world.h"
#include "llmc/run/options.h"

// The run that the options describe, of a mesh (--dp, else what --processes leaves) that nobody has started.
struct PlannedRun {
    Options options;   // with `dp`
    ModelConfig config;
    MeshShape mesh;
};
// The model is a named size or one's own, with GPT-2's vocabulary unless --vocab-size says otherwise. Error(usage) for
// options that cannot be, and for a --model that is a file.
PlannedRun planned_run(const Options& options);

// What the rank that takes most of a pipeline stage allocates, in an arena that has only counted: all that counted_run
// counts.
Arena fullest_rank(const PlannedRun& run, int stage, Recompute recompute);

// Lines for people: the table of the rank that takes most, of planned_run(). It is counted by what would
// allocate it, a library's workspace for attention where the library serves on this machine. With --recompute auto the
// table is that of `none`, and lines below it say what the other levels leave of it.
std::string memory_plan(const Options& options);

// What this rank of a run allocates, in an arena that only counts: everything but what samples, checkpoints, CUDA
// and NCCL take. Collective.
Arena counted_run(Options options, const ModelConfig& config, World& world, cudaStream_t stream);

// --recompute auto: the lowest level with which all ranks' memory, as counted_run has it, takes at most nine tenths of
// every device; `block` where none does. It depends on the whole memory of devices, not on what is free at the time,
// so a run that is started again on the same machines computes the same bits. The same on all ranks. Collective.
Recompute recompute_that_fits(const Options& options, const ModelConfig& config, World& world);

// The device of this rank, by a name that no other device of the run has: ranks may share one.
std::string own_device(const World& world);
