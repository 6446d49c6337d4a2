// Searches the layouts of the same devices for the fastest one that fits. It lists every layout that divides, orders
// them by a closed form with an estimate of the pipeline, counts memory in that order, and gives those that fit the
// simulator's time. If steps can be recorded, it replays the best ones, except those whose matmuls alone make them
// slower than the best so far.
//
// It varies --tp within a node, --cp (powers of two that leave a rank kLeastContext tokens of a sequence) with
// --cp-mode (ring, ulysses, or hybrid with groups of powers of two), --pp, --dp, --ep (divisors of the experts),
// --zero, --recompute (none or block), and in pipelines --pp-schedule (1f1b, zb, interleaved) with --pp-chunks (powers
// of two); the caller sets all else. gpipe and naive are never faster than 1f1b. With micro_batch kAutoMicroBatch each
// layout has the fastest of powers of two that fits.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/plan/machine/machine.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/plan/step_recording.h"
#include "llmc/plan/step_time.h"

constexpr int kAutoMicroBatch = 0;   // value of Options::micro_batch that leaves it open
constexpr int kLeastContext = 512;   // tokens of a sequence for each --cp rank

struct Candidate {
    PlannedRun run;
    StepTime time;
    double formula = 0;      // seconds by the closed form, with the simulator only if it fits
    double least = 0;        // lower bound of the seconds (least_seconds)
    double bytes = 0;        // on the fullest rank; 0: not counted, because enough faster ones fit
    bool replayed = false;   // `time` is of a replay, else of the closed form
    bool fits(const Machine& machine) const { return bytes > 0 && bytes <= machine.allowed_bytes(); }
};

// Returns the layout as options: --cp, its mode, --ep and those of the pipeline's schedule only where they are not the
// default.
std::string layout_text(const Options& options);

// Gives `to` the layout of `from`: what the search varies.
void take_layout(Options& to, const Options& from);

// Returns true if `other` has the values of all of a layout's options that were given in `options`.
bool keeps_given(const Options& options, const Options& other, const std::function<bool(const char*)>& is_given);

struct SearchEffort {
    int wanted = 32;                // layouts that fit, after which it stops counting
    int replays = 8;                // replays of the fastest among them
    std::size_t counts_all = 512;   // layouts whose memory it counts before it leaves out those that take more
};

// Returns the layouts: those that fit, fastest first; then those that do not fit, fastest first, or if none fits the
// one that takes the least memory; then those that were not counted. `is_allowed` empty: all are allowed. Throws
// Error(usage) if no layout of so many ranks is possible, and without --total-batch.
std::vector<Candidate> search_layouts(const Options& options, const Machine& machine, int ranks,
                                      const std::function<bool(const Options&)>& is_allowed = {},
                                      const SearchEffort& effort = {});

// Returns the values of --total-batch next to the given one that data parallelism can share out among all ranks, as a
// sentence; empty if the given one can be, but for a power of two that --tp, --pp or --cp may take.
std::string batches_for_all(const Options& options, int ranks);

// Returns the fewest devices (--cp times a power of two, at most `most`) that hold the run in some layout of --tp,
// --pp, --zero 3 and --recompute block; nothing if none do. Each layout has the largest divisor of --ep that divides a
// stage's ranks. Micro-batches keep their size; a step has --pp of them per data-parallel rank.
std::optional<int> fewest_devices(const Options& options, const Machine& machine, int most);

// Returns a line per candidate, with the reason why it loses against the first.
std::string search_text(const std::vector<Candidate>& candidates, const Machine& machine, std::size_t most = 16);
