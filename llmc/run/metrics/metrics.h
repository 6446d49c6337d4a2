// Writes the records of a run to its output folder: each line whole, by one call, as soon as it is known.
//
// metrics.jsonl: one JSON object per line, floats with 9 significant digits (enough to tell any two floats apart),
// `null` for a value that is unknown or not finite:
//   {"step":N,"loss":x,"grad_norm":x,"lr":x,"tokens_per_s":x,"mfu":x,"step_ms":x,"memory_bytes":x}
//       with several data-parallel ranks, "slowest_rank":r,"waiting":x before "memory_bytes": the rank that the
//       others waited for in the step before, and the share of that step (slowest_rank.h);
//       if ranks communicate, "exposed_ms":{"GROUP":x,...}: how long rank 0's compute stream waited for each group
//       (exposed_waits.h);
//       with NVML, "gpu_percent":n,"gpu_watts":x,"gpu_celsius":n (gpu_state.h);
//       with experts, "expert_fullest":x,"expert_emptiest":x,"expert_entropy":x,"aux_loss":x,"router_z_loss":x:
//       the load of the worst layer, and the router's losses with their factors (expert_load.h); with --capacity-factor
//       also "expert_dropped":x, the share of assignments that experts did not take; with --ep also
//       "expert_fullest_rank":x,"expert_fullest_rank_layer":n,"expert_fullest_rank_of":{"0":x,...}: rows of the rank
//       whose experts got most, relative to the mean of ranks, in the worst layer, which that is, and in each layer
//   {"step":N,"val_loss":x}       followed by "val_loss_of":{"NAME":x,...} for a mixture of data; then, where the bytes
//                                 of tokens are known, "val_bits_per_byte":x and "val_bits_per_byte_of":{"NAME":x,...}
//   {"step":N,"hellaswag":x,"hellaswag_sum":y}
//                                 shares of questions answered right, if evaluated: by loss relative to length, and by
//                                 the sum (llmc/run/evaluation/evaluate.h); also of the other question_sources, but
//                                 "lambada":x,"lambada_perplexity":y
//   {"step":N,"rewind_from":M,"loss":x,"grad_norm":x,"skipped_samples":K}
//                                 --spike-rewind: step M was an outlier, and the run goes on from the checkpoint of
//                                 step N with the samples after those of step M
// Steps count from 1; a validation with step N used the weights after step N.
//
// With --metrics-port the newest values can be had over HTTP (metrics_server.h).
// With --tensorboard the same values also go to an event file (tensorboard.h), under the same names.
//
// main.log, in llm.c's format: `s:N trl:x lr:x norm:x`, `s:N tel:x` and `s:N eval:x`. Its training steps count from 0,
// as llm.c's plotting scripts expect.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llmc/io/file.h"
#include "llmc/report/run_log.h"
#include "llmc/run/loop/step_phase.h"
#include "llmc/run/metrics/expert_load.h"
#include "llmc/run/metrics/gpu_state.h"
#include "llmc/run/metrics/tensorboard.h"

class MetricsServer;   // metrics_server.h

// The rank that the others waited for (slowest_rank.h).
struct Waiting {
    int rank;
    double share;   // share of the step that the other replicas waited for its replica, on average: 0 to 1
};

struct StepRecord {
    int step;
    float loss, grad_norm, lr;
    double tokens_per_s;
    std::optional<double> mfu;   // share of the peak, 0 to 1; none if the peak is unknown
    double step_ms;
    std::uint64_t memory_bytes;
    std::optional<Waiting> waiting = {};             // in the step before; none with one replica
    std::optional<GpuState> gpu = {};                // on rank 0; none without NVML
    std::map<std::string, double> exposed_ms = {};   // by group of ranks
    std::optional<ExpertLoad> experts = {};
};

// Shares of right answers that an evaluation found.
struct EvaluationRecord {
    std::string name;                             // one of question_sources (llmc/data/multiple_choice.h)
    double accuracy;                              // share of right answers, by loss relative to length
    std::optional<double> accuracy_by_sum = {};   // none for LAMBADA
    std::optional<double> perplexity = {};        // LAMBADA only
};

struct ValidationRecord {
    float loss;
    std::optional<double> bits_per_byte = {};
    // One for each source of a mixture, by its name.
    std::vector<std::pair<std::string, float>> loss_of = {};
    std::vector<std::pair<std::string, double>> bits_per_byte_of = {};
};

// A return of the run to an earlier checkpoint.
struct RewindRecord {
    int step, from;          // back to the state after `step`, from the state after `from`
    float loss, grad_norm;   // in step `from`
    std::uint64_t skipped_samples;
};

class Metrics {
public:
    // Makes the folder and opens the records; with an empty folder nothing is written. `last_step` 0 starts afresh; a
    // resumed run passes the step it continues from. Drops the lines of later steps, a torn last line, and, for
    // `last_step` itself, the lines of work that is still to be done, from `next` on.
    Metrics(FileSystem& files, const std::string& folder, int last_step = 0, StepPhase next = StepPhase::next_step,
            bool tensorboard = false);

    void step(const StepRecord& record);
    void validation(int step, const ValidationRecord& record);
    void evaluation(int step, const EvaluationRecord& record);
    // Drops lines as a resumed run does, but keeps earlier rewinds to the same step.
    void rewind(const RewindRecord& record, StepPhase next);

    // Warnings about records that were dropped when the run resumed, because no step of a run writes such.
    const std::vector<std::string>& warnings() const { return warnings_; }
    // The last step whose loss was recorded when the records were opened; 0: none, or a fresh run.
    int recorded() const { return recorded_; }

    // Shows every later line of metrics.jsonl to a server too, also where none is written.
    void show_to(MetricsServer& server) { server_ = &server; }

    // Throws Error(io) if the folder was removed or moved, before other code would create it again.
    void require_folder();
    // Adds a line to the run's report, with the step of the last record (llmc/report/run_log.h).
    void tell(const std::string& key, Json value);

    // Returns once all lines are on the disk. Call it before a checkpoint of their steps is complete, so that a resumed
    // run misses none.
    void sync();

private:
    void open(int last_step, StepPhase next, bool keep_rewinds);
    void write_metrics(const std::string& line);

    FileSystem* files_;
    std::string folder_;
    bool tensorboard_;
    std::unique_ptr<File> metrics_, main_log_;
    std::optional<EventFile> events_;
    std::optional<RunLog> told_;
    MetricsServer* server_ = nullptr;
    int step_ = 0, recorded_ = 0;
    std::vector<std::string> warnings_;
};

std::string to_json(const StepRecord& record);
std::string validation_json(int step, const ValidationRecord& record);
