// A plan of a training run: what it is, what it takes of devices, how long and how much, before there is a device.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "llmc/io/file.h"
#include "llmc/plan/machine.h"
#include "llmc/plan/memory_plan.h"
#include "llmc/plan/scaling_law.h"
#include "llmc/plan/step_time.h"

struct StageMemory {
    int stage;
    double bytes = 0;                                    // the most at once
    std::vector<std::pair<std::string, double>> lines;   // by what it is for, the largest first
};

struct Plan {
    PlannedRun run;
    Machine machine;
    double parameters = 0, exported = 0;   // padding counted, and not
    double tokens = 0, flops = 0;          // of the whole run
    std::vector<StageMemory> memory;       // of the first stage, one in the middle, the last
    std::optional<int> fewest_devices;     // that hold the model with some layout
    StepTime step;
    ScalingLaw::Optimum best;   // for as many FLOPs
    std::vector<std::string> warnings;

    double devices() const { return run.mesh.size(); }
    double most_bytes() const;
    bool fits() const { return most_bytes() <= 0.9 * machine.memory_bytes; }
    double tokens_per_second() const { return static_cast<double>(run.options.tokens_per_step()) / step.seconds; }
    double mfu() const;
    double seconds() const { return tokens / tokens_per_second(); }
    double device_hours() const { return devices() * seconds() / 3600; }
};

// The machine that the options name, with what they change of it.
Machine planned_machine(const Options& options);
// "20x" or a number of tokens; empty: those of --max-steps, else 20x. Error(usage).
double planned_tokens(const Options& options, double parameters);

Plan make_plan(const Options& options);
std::string plan_text(const Plan& plan);
std::string plan_json(const Plan& plan);
std::string plan_svg(const Plan& plan);   // memory as bars, a step of every stage as a time line

// ---- --compare: what a run has measured beside what its plan says

// The medians of all steps but the first, which warms up; of memory the most.
struct MeasuredRun {
    int steps = 0;
    double step_seconds = 0, tokens_per_second = 0, memory_bytes = 0;
    std::map<std::string, double> exposed;   // seconds, by group of ranks (llmc/run/metrics/exposed_waits.h)
};
// From the folder's metrics.jsonl. Error(io), Error(bad_data) where there are no two steps in it.
MeasuredRun measured_run(FileSystem& files, const std::string& folder);

std::string comparison_text(const Plan& plan, const MeasuredRun& measured);

// `train_gpt plan`: prints. The exit code.
int plan_run(const Options& options);
