// Reports each step of a run: measures its time, its waits and its speed, and writes its record and its line of
// progress.
#pragma once

#include "llmc/run/loop/outlier_detector.h"
#include "llmc/run/loop/step_batch.h"
#include "llmc/run/metrics/exposed_waits.h"
#include "llmc/run/metrics/peak.h"
#include "llmc/run/metrics/slowest_rank.h"

class StepReporter {
public:
    explicit StepReporter(const TrainerParts& parts);

    // The moments of a step, in this order, on every rank.
    void passes_begin();
    void passes_end() { slowest_rank_.passes_end(); }   // all are queued, the step's sums are not
    void step_ends(double began_s);                     // the host has waited for it; `began_s` as steady_seconds()
    void report(const StepBatch& batch, const StepResult& result, const ZScores& z, float lr);

    // Mean time of a step so far, without the run's first, which warms up; 0: none.
    double mean_s() const { return steps_ > 0 ? total_s_ / steps_ : 0; }

private:
    bool line_is_due(int step);

    const TrainerParts& parts_;
    PeakFlops peak_;   // per device
    ExposedWaits exposed_waits_;
    SlowestRank slowest_rank_;
    SlowestStreak slowest_streak_;
    GpuMonitor gpu_;
    double seconds_ = 0;   // time of the step
    double total_s_ = 0;   // time of `steps_` steps
    int steps_ = 0;
    int lines_ = 0;            // progress lines so far
    double last_line_s_ = 0;   // time of the last one
};
