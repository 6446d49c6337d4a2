// What a run may leave to the program: how large its micro-batches are, and how its ranks share the work.
#pragma once

#include <functional>

#include "llmc/plan/machine.h"
#include "llmc/run/options.h"

// --micro-batch auto: the most sequences with which nine tenths of `device_bytes` suffice for every rank, of those that
// divide the step, which stays as large as it is. With --recompute auto at the least level with which any fit.
// Error(usage) where none does.
int largest_micro_batch(const Options& options, double device_bytes);

// --layout auto: `options` with the --tp, --pp, --dp, --zero and --recompute of the fastest layout that fits, among
// those that are allowed. Error(usage) where there is none.
Options best_layout(const Options& options, const Machine& machine, int ranks,
                    const std::function<bool(const Options&)>& is_allowed);

// The table's machine whose devices have this name (as CUDA says it). Error(usage) where there is none.
Machine machine_of_device(const std::string& device);
