// What a run tells its report (llmc/report): how it begins, its warnings, how it ends.
#pragma once

#include <functional>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/report/page.h"
#include "llmc/run/metrics/metrics.h"
#include "llmc/run/options.h"

// The schedule of a pipeline whose picture is not too large to read; else none.
std::vector<ReportPicture> pictures_of_run(const Options& options);

// Rank 0's memory by group, and how many steps the run has.
Json told_start(const Arena& arena, int max_steps);

// Runs and tells how that ended, also where it throws.
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
