// The records of a run in its output folder, each line written as soon as it is known, whole, by one call.
//
// metrics.jsonl, one JSON object a line, floats with 9 significant digits (enough to tell any two floats apart),
// `null` for what is not known or not finite:
//   {"step":N,"loss":x,"grad_norm":x,"lr":x,"tokens_per_s":x,"mfu":x,"step_ms":x,"memory_bytes":x}
//       with "slowest_rank":r,"waiting":x before "memory_bytes" where several data-parallel ranks train: who was waited
//       for in the step before, for which share of it (slowest_rank.h); "exposed_ms":{"GROUP":x,...} where ranks
//       communicate: how long rank 0's compute stream stood for each group of them (exposed_waits.h);
//       "gpu_percent":n,"gpu_watts":x,"gpu_celsius":n where NVML is there (gpu_state.h); and of a mixture of experts
//       "expert_fullest":x,"expert_emptiest":x,"expert_entropy":x,"expert_dropped":0,"aux_loss":x,"router_z_loss":x:
//       the load of the worst layer and the router's losses, with their factors (expert_load.h); none is ever dropped
//   {"step":N,"val_loss":x}       with "val_loss_of":{"NAME":x,...} behind it where the data are a mixture
//   {"step":N,"hellaswag":x}      share of questions answered right, where asked for; "mmlu", "arc", "piqa" too, and
//                                 "lambada" with "lambada_perplexity":x behind it
//   {"step":N,"rewind_from":M,"loss":x,"grad_norm":x,"skipped_samples":K}     --spike-rewind: step M was an outlier,
//   and
//                                 the run goes on from the checkpoint of step N with the samples after those of step M
// Steps count from 1; a validation named N was made with the weights after step N.
//
// With --tensorboard the same values are in an event file too (tensorboard.h), under the names that they have here.
//
// main.log, llm.c's: `s:N trl:x lr:x norm:x`, `s:N tel:x` and `s:N eval:x`. There a training step counts from 0, so
// that its plotting scripts see what they expect.
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
#include "llmc/run/after_step.h"
#include "llmc/run/metrics/expert_load.h"
#include "llmc/run/metrics/gpu_state.h"
#include "llmc/run/metrics/tensorboard.h"

// Who was waited for (slowest_rank.h).
struct Waiting {
    int rank;
    double share;   // of the step that the other replicas waited for its one, on average: 0 to 1
};

struct StepRecord {
    int step;
    float loss, grad_norm, lr;
    double tokens_per_s;
    std::optional<double> mfu;   // of the peak, 0 to 1; none where the peak is unknown
    double step_ms;
    std::uint64_t memory_bytes;
    std::optional<Waiting> waiting = {};             // in the step before; none where one replica trains
    std::optional<GpuState> gpu = {};                // of rank 0; none without NVML
    std::map<std::string, double> exposed_ms = {};   // by group of ranks
    std::optional<ExpertLoad> experts = {};
};

// A run that has gone back to an earlier checkpoint.
struct RewindRecord {
    int step, from;          // to the state after `step`, from the one after `from`
    float loss, grad_norm;   // of `from`
    std::uint64_t skipped_samples;
};

class Metrics {
public:
    // With an empty folder nothing is written. Makes the folder. Lines of steps after `last_step` are dropped, as is a
    // last line that was torn: 0 starts afresh, a resumed run passes the step it continues from. Of that step, lines of
    // what is yet to be done, from `next` on, are dropped too.
    Metrics(FileSystem& files, const std::string& folder, int last_step = 0, AfterStep next = AfterStep::next_step,
            bool tensorboard = false);

    void step(const StepRecord& record);
    void validation(int step, float loss, const std::vector<std::pair<std::string, float>>& by_source = {});
    // `name`: of question_sources (llmc/data/multiple_choice.h).
    void evaluation(int step, const std::string& name, double accuracy, std::optional<double> perplexity = {});
    // Drops lines as a resumed run does, but for earlier rewinds to the same step, which that comes to by itself.
    void rewind(const RewindRecord& record, AfterStep next);

    // Error(io) where the folder was removed or moved, before anything else would make it anew.
    void require_folder();
    // For the run's report, with the step of the last record (llmc/report/run_log.h).
    void tell(const std::string& key, Json value);

    // Returns once all lines are on the disk: before a checkpoint of their steps is, or a resumed run could miss some.
    void sync();

private:
    void open(int last_step, AfterStep next, bool keep_rewinds);

    FileSystem* files_;
    std::string folder_;
    bool tensorboard_;
    std::unique_ptr<File> metrics_, main_log_;
    std::optional<EventFile> events_;
    std::optional<RunLog> told_;
    int step_ = 0;
};

std::string to_json(const StepRecord& record);
std::string validation_json(int step, float loss, const std::vector<std::pair<std::string, float>>& by_source = {});
