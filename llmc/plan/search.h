// Searches the layouts of the same devices for the fastest one that fits. It lists every layout that divides, orders
// them by closed-form time, counts memory in that order, and, if steps can be recorded, replays the best ones, except
// those whose matmuls alone make them slower than the best so far.
//
// It varies --tp within a node, --pp, --dp, --zero, and --recompute (none or block); the caller sets all else.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/plan/machine/machine.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/plan/step_time.h"

struct Candidate {
    PlannedRun run;
    StepTime time;
    double formula = 0;      // seconds by the closed form
    double least = 0;        // lower bound of the seconds (least_seconds)
    double bytes = 0;        // on the fullest rank; 0: not counted, because enough faster ones fit
    bool replayed = false;   // `time` is of a replay, else of the closed form
    bool fits(const Machine& machine) const { return bytes > 0 && bytes <= 0.9 * machine.memory_bytes; }
    std::string layout() const;   // the layout as options
};

// Returns the layouts: those that fit, fastest first; then those that do not fit; then those that were not counted.
// Stops counting after `wanted` that fit, and replays `replays` of these. `is_allowed` empty: all are allowed. Throws
// Error(usage) if no layout of so many ranks is possible.
std::vector<Candidate> search_layouts(const Options& options, const Machine& machine, int ranks, int wanted = 6,
                                      int replays = 4, const std::function<bool(const Options&)>& is_allowed = {});

// Returns the fewest devices (--cp times a power of two, at most `most`) that hold the run in some layout of --tp,
// --pp,
// --zero 3 and --recompute block; nothing if none do. Each layout has the largest divisor of --ep that divides a
// stage's ranks. Micro-batches keep their size; a step has --pp of them per data-parallel rank.
std::optional<int> fewest_devices(const Options& options, const Machine& machine, int most);

// Returns a line per candidate, with the reason why it loses against the first.
std::string search_text(const std::vector<Candidate>& candidates, const Machine& machine, std::size_t most = 16);
