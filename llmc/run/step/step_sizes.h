// Checks the sizes of a step: what is computed from them must divide, and fit into the integers that count it. Each
// throws Error(usage) and names the largest or nearest values that work.
#pragma once

#include "llmc/model/config.h"
#include "llmc/run/options/options.h"

// Tokens of every step of the run, of a micro-batch, and of the whole run.
void check_total_batch(const Options& options);

// Micro-batches of the first step, whose tokens the option `flag` gives. Needs the number of data-parallel ranks
// (`dp`).
void check_micro_batches(const Options& options, const char* flag = "--total-batch ");

// Activations of a model, in bytes, under every layout.
void check_activations(const Options& options, const ModelConfig& config);
