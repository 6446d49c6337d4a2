// Chooses what a run leaves to the program: the size of micro-batches, and the layout of ranks.
#pragma once

#include <functional>

#include "llmc/plan/machine/machine.h"
#include "llmc/process/world.h"
#include "llmc/run/options/options.h"

// --micro-batch auto: returns the largest number of sequences that divides the step and fits into nine tenths of
// `device_bytes` on every rank; the step's size does not change. With --recompute auto, it takes the lowest level with
// which any number fits. Throws Error(usage) if none fits.
int largest_micro_batch(const Options& options, double device_bytes);

// --layout auto: returns `options` with the layout (layout_text) of the fastest allowed one that fits. Throws
// Error(usage) if none fits.
Options best_layout(const Options& options, const Machine& machine, int ranks,
                    const std::function<bool(const Options&)>& is_allowed);

// Returns how many multiprocessors matmuls leave to collectives beside them. Where collectives take at most a third of
// backward, none: a kernel that leaves some is slower also while nothing communicates. Else, and where no closed form
// knows, --comm-sms: over several nodes, whose network may be of any speed, on a device that is not in the table, and
// where is_predicted() (llmc/run/options/sync_options.h) is false. `devices_per_node`: ranks on this one.
int multiprocessors_left(const Options& options, const ModelConfig& config, const MeshShape& mesh, int devices_per_node,
                         const std::string& device);
// Returns the first rank's for this run. Collective.
int multiprocessors_left(const Options& options, const ModelConfig& config, World& world);

// Returns the table's machine for a device name as CUDA reports it. Throws Error(usage) if there is none.
Machine machine_of_device(const std::string& device, bool tf32 = false);
