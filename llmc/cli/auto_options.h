// --layout auto and --micro-batch auto: settled before anything else looks at the options, alike on every rank.
#pragma once

#include <functional>
#include <string>

#include "llmc/cli/verbs.h"
#include "llmc/run/options.h"

constexpr int kAutoMicroBatch = 0;   // Options::micro_batch, until it is settled

// Of options that are not given, in this order: with `layout` --tp, --pp, --dp, --zero and --recompute are those of the
// fastest layout, with micro-batches of one sequence where their size is left open too; then --micro-batch. What was
// chosen, as options; empty: nothing was left open. Error(usage) where nothing fits.
std::string settle_auto_options(Verb verb, Options& options, bool layout,
                                const std::function<bool(const char*)>& is_given);
