// Which layout of the same devices is the fastest that fits: every one that divides, its time by closed forms, memory
// counted in the order of time, and, where steps can be recorded, the best replayed, but for those that matmuls alone
// make slower than the best so far.
//
// What varies: --tp within a node, --pp, --dp, --zero and --recompute none or block; all else is the caller's.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/plan/machine.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/plan/step_time.h"

struct Candidate {
    PlannedRun run;
    StepTime time;
    double formula = 0;      // seconds, by closed forms
    double least = 0;        // seconds that it takes at least
    double bytes = 0;        // of the fullest rank; 0: not counted, for faster ones fit
    bool replayed = false;   // time: else a closed form's
    bool fits(const Machine& machine) const { return bytes > 0 && bytes <= 0.9 * machine.memory_bytes; }
    std::string layout() const;   // as options
};

// Fitting ones first, the fastest first; then those that do not fit, then those that were not counted. `wanted`:
// fitting ones that are counted, of which `replays` are replayed. Error(usage) where no layout of so many ranks is
// possible.
// `is_allowed`: empty: all are.
std::vector<Candidate> search_layouts(const Options& options, const Machine& machine, int ranks, int wanted = 6,
                                      int replays = 4, const std::function<bool(const Options&)>& is_allowed = {});

// The fewest devices, a power of two of them, of which some layout (of --pp, --tp, --zero, --recompute block) holds the
// run with the options' micro-batches, tokens of a step as far as they must grow for so many ranks; none up to `most`.
std::optional<int> fewest_devices(const Options& options, const Machine& machine, int most);

// A line each, with the reason why it loses against the first.
std::string search_text(const std::vector<Candidate>& candidates, const Machine& machine, std::size_t most = 16);
