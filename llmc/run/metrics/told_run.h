// Reports a run's begin, warnings and end to its report (llmc/report).
#pragma once

#include <functional>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/report/page.h"
#include "llmc/run/metrics/metrics.h"
#include "llmc/run/options/options.h"

// Returns the picture of a pipeline's schedule, unless it is too large to read.
std::vector<ReportPicture> pictures_of_run(const Options& options);

// Returns rank 0's memory by group, and the run's number of steps.
Json told_start(const Arena& arena, int max_steps);

// Calls run() and reports how it ended, also if it throws.
template <class Run, class Name>
auto tell_end(Metrics& metrics, const Run& run, const Name& name_of_end) {
    try {
        const auto end = run();
        metrics.tell("end", name_of_end(end));
        return end;
    } catch (const std::exception& error) {
        metrics.tell("end", error.what());
        throw;
    }
}
