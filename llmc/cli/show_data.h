// `train_gpt data`: what a run reads. No device and no model is needed.
#pragma once

#include "llmc/cli/command_line.h"

// Writes the samples of step --samples to standard output: source, epoch, file and token of each, and its text where a
// tokenizer lies beside the data. With --output-dir it counts from the newest checkpoint there before that step; with
// --resume each step has the batch, the data and the weights of the start of the run that made it. With --inspect what
// the files hold, whatever a run reads of them. Returns the exit code.
int show_data(const CommandLine& command_line);
