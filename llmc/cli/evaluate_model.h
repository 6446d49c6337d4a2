// `train_gpt evaluate`: measures the loss of a model on validation data, and its answers to multiple-choice questions.
// Needs no training data, and writes nothing.
//
// It computes as a run does between its steps, so the figures are those that training prints, and several processes
// share the work under the same layouts.
#pragma once

#include "llmc/process/world.h"
#include "llmc/run/options/options.h"
#include "llmc/run/stopping/stop_signals.h"

// Runs the verb. Collective. Returns the exit code: resumable where a signal came before the end.
int evaluate_model(Options options, World& world, const StopSignals& signals);
