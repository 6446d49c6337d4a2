// How much longer than planned a step takes: a plan is a best case, and published steps of other programs take longer.
#pragma once

#include <string>

#include "llmc/base/json.h"
#include "llmc/model/config.h"
#include "llmc/plan/machine/machine.h"
#include "llmc/run/options/options.h"

// Seconds of a step, divided by the planned ones.
struct TimeRange {
    double least = 1, usual = 1, most = 1;
    std::string from;   // the steps that tell
};

// Returns the range of --efficiency F, 1 / F alone, or else that of steps like the planned one.
TimeRange time_range(const Options& options, const ModelConfig& config, const Machine& machine);

Json to_json(const TimeRange& range);
