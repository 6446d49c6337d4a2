#include "llmc/plan/time_range.h"

#include "llmc/base/log.h"

namespace {

// Published steps in bf16, divided by plans of them; `dev/reference/published_steps.py ROWS --factors` derives the rows
// (2026-11-30, docs/plan.md). `usual` is the median; nine tenths of the steps are at most `most`. By kind of layout,
// number of GPUs or year the steps that are left out are found no better.
const TimeRange kExperts{0.72, 0.84, 1.08, "published steps of mixtures of experts on H100"},
    kNewer{1, 1.64, 1.91, "published steps of dense models on H100 and newer GPUs"},
    kOlder{1, 1.33, 1.75, "published steps of dense models on A100 and V100"};
// dev/bench/plan_against_runs.sh (2026-11-28, docs/plan.md)
const TimeRange kMeasured{1, 1.11, 1.18,
                          "3 runs of this program, of 4 ranks or fewer, on a CPU whose speeds were measured"};

// Speed of memory that newer GPUs exceed; it is the same in any precision, and their names need not be known.
constexpr double kNewerCopyBytesPerSecond = 2e12;

}   // namespace

TimeRange time_range(const Options& options, const ModelConfig& config, const Machine& machine) {
    if (const double efficiency = options.plan.efficiency; efficiency > 0) {
        return {1 / efficiency, 1 / efficiency, 1 / efficiency, formatted("--efficiency %g", efficiency)};
    }
    if (!options.plan.machine.empty()) return kMeasured;
    TimeRange range = config.experts > 0                                          ? kExperts
                      : machine.copy_bytes_per_second >= kNewerCopyBytesPerSecond ? kNewer
                                                                                  : kOlder;
    if (!machine.measured) range.from += ", none of them on " + machine.name;
    return range;
}

Json to_json(const TimeRange& range) {
    return Json::object({{"least", range.least}, {"usual", range.usual}, {"most", range.most}, {"from", range.from}});
}
