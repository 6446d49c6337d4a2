// Settles --layout auto and --micro-batch auto before anything else looks at the options, alike on every rank.
#pragma once

#include <functional>
#include <string>

#include "llmc/cli/verbs.h"
#include "llmc/plan/search.h"
#include "llmc/run/options/options.h"

// Settles the options that were left open, and returns them as text for the log; empty: none was. With `layout`, sets
// the layout options that were not given (those of layout_text) to those of
// the fastest layout; with --micro-batch auto it is planned with micro-batches of one sequence. Then sets an open
// micro_batch to the largest that fits. Error(usage) where nothing fits.
std::string settle_auto_options(Verb verb, Options& options, bool layout,
                                const std::function<bool(const char*)>& is_given);
