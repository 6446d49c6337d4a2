// Plans a training run without a device: the run, its memory per device, its time and its cost.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "llmc/io/file.h"
#include "llmc/plan/deadline.h"
#include "llmc/plan/machine/machine.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/plan/scaling_law.h"
#include "llmc/plan/step_time.h"
#include "llmc/plan/time_range.h"

struct StageMemory {
    int stage;
    double bytes = 0;                                    // high-water mark
    std::vector<std::pair<std::string, double>> lines;   // by purpose, the largest first
};

// A limit that a bigger run on the same machine would come to.
struct Limit {
    std::string what;     // its name and figures
    double share;         // used up: 1 is the limit
    std::string relief;   // options that help
};

// Room on disk.
struct Storage {
    double checkpoint_bytes = 0;     // tensors of one
    std::uint64_t checkpoints = 0;   // kept at the same time, at most
    int token_bytes = 0;             // size of a token in tokenized data
};

// With the vocabulary's padding, and without, as exported; `active`: without the experts that a token does not go to.
struct ParameterCounts {
    double padded = 0, exported = 0, active_padded = 0, active_exported = 0;
};

struct Plan {
    PlannedRun run;
    Machine machine;
    ParameterCounts parameters;
    double tokens = 0, flops = 0;        // totals of the run
    std::vector<StageMemory> memory;     // first stage, fullest in between, last stage
    std::optional<int> fewest_devices;   // that hold the model in some layout
    bool replayed = false;               // `step` is of a replay, else of closed forms
    Storage storage;
    StepTime step;                     // the best case
    TimeRange range;                   // multiplies the times of `step`
    ScalingLaw::Optimum best;          // for the same FLOPs
    std::vector<DevicesTried> tried;   // numbers of GPUs, with --deadline; steps in the best case
    bool meets_deadline = false;       // at the late end of the range
    std::vector<std::string> warnings;
    std::vector<Limit> limits;   // the three nearest, the nearest first

    double devices() const { return run.mesh.size(); }
    double most_bytes() const;
    double allowed_bytes() const { return machine.allowed_bytes(); }   // per device
    bool fits() const { return most_bytes() <= allowed_bytes(); }
    double tokens_per_second() const { return static_cast<double>(run.options.tokens_per_step()) / step.seconds; }
    double mfu() const;
    double seconds() const { return tokens / tokens_per_second(); }
    double device_hours() const { return devices() * seconds() / 3600; }
    double energy_kwh() const {
        return 1e-3 * machine.watts * device_hours();
    }   // at most, of the devices; 0: not known
};

constexpr double kAllowedIdle = 0.2;   // share of the time for the bubble, and for communication, without a warning

// Returns the machine that the options name, with their overrides.
Machine planned_machine(const Options& options);
// Parses "20x" (per padded parameter), "20x-active" (per active one) or a number of tokens, which may end with M, B or
// T; empty: those of --max-steps, else 20x. Throws Error(usage), also for fewer tokens than a step has.
double planned_tokens(const Options& options, const ParameterCounts& parameters);

Plan make_plan(const Options& options);
// Returns the limits of memory (its largest line), of each link and of the bubble, which are allowed kAllowedIdle of
// the time each; the nearest first.
std::vector<Limit> all_limits(const Plan& plan);
// Returns a line whether --deadline is met, and one for each number of GPUs that was searched; empty without it.
std::string deadline_text(const Plan& plan);
// Returns three lines: whether it fits, time and money; the compute-optimal model; where the range of times is from.
std::string plan_headline(const Plan& plan);
// Returns what follows: layout, memory of the fullest rank, time, limits and warnings; with --verbose 1 all there is.
std::string plan_text(const Plan& plan);
std::string plan_json(const Plan& plan);
std::string plan_svg(const Plan& plan);   // memory as bars, a step of every stage as a time line

// ---- --compare: a run's measurements beside its plan

// Medians of all steps but the first, which warms up; of memory the largest.
struct MeasuredRun {
    int steps = 0;
    double step_seconds = 0, tokens_per_second = 0, memory_bytes = 0;
    std::map<std::string, double> exposed;   // seconds, by group of ranks (llmc/run/metrics/exposed_waits.h)
};
// Reads the folder's metrics.jsonl. Throws Error(io), or Error(bad_data) if it has fewer than two steps.
MeasuredRun measured_run(FileSystem& files, const std::string& folder);

std::string comparison_text(const Plan& plan, const MeasuredRun& measured);

// Runs `train_gpt plan`, which prints to stdout; returns the exit code.
int plan_run(const Options& options);
