// What a run would take of each device's memory, before it has any: for --print-memory.
#pragma once

#include <string>

#include "llmc/train/options.h"

// Lines for people: the table of the rank that takes most, of the run's mesh (--dp, else what --processes leaves). It
// is counted by what would allocate it: parameters, gradients, optimizer, activations, workspace. What ranks exchange
// through and what samples and checkpoints take is not in it. The model is a named size or one's own, with GPT-2's
// vocabulary unless --vocab-size says otherwise. Error(usage) for options that cannot be, and for a --model that is a
// file.
std::string memory_plan(const Options& options);
