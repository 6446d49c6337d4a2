// Counts the device memory of a run before it allocates any: for --print-memory and --recompute auto.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/log.h"
#include "llmc/process/world.h"
#include "llmc/run/options/options.h"

// A run that the options describe, on a mesh (--dp, or the ranks that --processes leaves) that nobody has started.
struct PlannedRun {
    Options options;   // `dp` is set
    ModelConfig config;
    MeshShape mesh;
};
// Plans a run. The model must be a named size or given by its dimensions, with GPT-2's vocabulary unless --vocab-size
// is given. Throws Error(usage) for impossible options, for a --model that is a file, and as check_processes does.
PlannedRun planned_run(const Options& options);

// Throws Error(usage) if --processes is given and is not the layout's number of ranks, --pp x --cp x --tp x --dp; where
// --dp is open, not a multiple of it.
void check_processes(const Options& options, bool dp_is_open);

// Returns the model that the options describe; throws as planned_run does.
ModelConfig planned_model(const Options& options);

// Returns a counting arena with the allocations of the rank that takes most in a pipeline stage, as counted_run counts
// them. With Muon under ZeRO 2, 3 or tp ranks differ by the matrices that they own, and this is the first.
Arena fullest_rank(const PlannedRun& run, int stage, Recompute recompute);

// Returns the stages one of which takes the most memory of all: the first, which keeps most micro-batches; the second,
// which of those between the ends has the most layers; and the last, which has the classifier. With zb, where later
// stages put off more weight gradients, it may be any.
std::vector<int> fullest_stages(const Options& options);

// Returns the memory table of the rank that takes most, for people. Counted by running the allocating code on a
// counting arena; a library's workspace for attention is included if the library works on this machine. With
// --recompute auto the table is for `none`, and the lines below give the totals of the other levels.
std::string memory_plan(const Options& options);

// Counts the allocations of this rank of a run: everything but samples, checkpoints, CUDA and NCCL. Needs no
// device. Collective.
Arena counted_run(Options options, const ModelConfig& config, World& world);

// Memory that a rank of a run allocates, and what there is before it does.
struct MemoryNeed {
    std::string host, device;   // own_host_identity, own_device
    struct Bytes {
        std::size_t device = 0;
        std::size_t machine = 0;   // besides: copies of tensors for a checkpoint
    } bytes;
    std::size_t free_bytes = 0;    // the device's
    std::string table;             // Arena::table() of the device's memory
    bool device_is_host = false;   // there is no GPU, and the device's memory is the machine's
    MemoryLimits machine;          // limits of the machine's memory
};
MemoryNeed memory_need(const Options& options, const ModelConfig& config, World& world);   // collective

// Returns, for people, what all ranks of this rank's device need together, what is free, and which limit says so.
// `devices`, `bytes`: those of every rank, by rank, the latter as to_bytes writes them. Throws Error(no_device) with
// the table if the device's memory or the machine's does not suffice. Warns of limits beyond which the kernel slows the
// run down.
std::string memory_that_suffices(const MemoryNeed& own, const std::vector<std::string>& devices,
                                 const std::vector<std::string>& bytes, const Log& log);

// --recompute auto: returns the lowest level with which the memory of all ranks on a device (counted_run) takes at most
// nine tenths of it, for every device; `block` if none does. It goes by the whole memory of devices, not by what is
// free at the time, so a run started again on the same machines computes the same bits. The same on all ranks.
// Collective.
Recompute recompute_that_fits(const Options& options, const ModelConfig& config, World& world);

// Names this rank's device uniquely in the run; ranks that share a device get the same name.
std::string own_device(const World& world);
