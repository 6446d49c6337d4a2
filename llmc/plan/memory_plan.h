// What a run would take of each device's memory, before it has any: for --print-memory and --recompute auto.
#pragma once

#include <string>

#include "llmc/base/arena.h"
#include "llmc/process/world.h"
#include "llmc/run/options.h"

// Lines for people: the table of the rank that takes most, of the run's mesh (--dp, else what --processes leaves). It
// is counted by what would allocate it: parameters, gradients, optimizer, activations, workspace. What ranks exchange
// through and what samples and checkpoints take is not in it. The model is a named size or one's own, with GPT-2's
// vocabulary unless --vocab-size says otherwise. With --recompute auto the table is that of `none`, and lines below it
// say what the other levels leave of it. Error(usage) for options that cannot be, and for a --model that is a file.
std::string memory_plan(const Options& options);

// What this rank of a run allocates, in an arena that only counts: everything but a library's attention and what
// samples, checkpoints, CUDA and NCCL take. Collective.
Arena counted_run(Options options, const ModelConfig& config, World& world, cudaStream_t stream);

// --recompute auto: the lowest level with which all ranks' memory, as counted_run has it, takes at most nine tenths of
// every device; `block` where none does. It depends on the whole memory of devices, not on what is free at the time,
// so a run that is started again on the same machines computes the same bits. The same on all ranks. Collective.
Recompute recompute_that_fits(const Options& options, const ModelConfig& config, World& world);

// The device of this rank, by a name that no other device of the run has: ranks may share one.
std::string own_device(const World& world);
