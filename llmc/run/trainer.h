// The training loop: steps of accumulated micro-batches, validation, sampling, records, and stopping.
//
// Steps count from 1. A step takes the next samples of the loader, its tokens / T, in order: micro-batch i of B
// sequences takes samples [i B, (i + 1) B) of them; of several data-parallel ranks, rank r of N takes samples [(i N +
// r) B, (i N + r + 1) B), so that a step is made of the same samples under every layout. Loss and gradients are means
// over all tokens of the step, of all ranks. Validation number N and sample number N are made with the weights after
// step N; both also before the first step's (validation) and after the last one, never twice for one step.
//
// Where --seq-len-schedule has a shorter T', each sample of the step is T / T' sequences of it: a micro-batch of B x T
// tokens is one of B T / T' sequences, for that step alone.
//
// Checkpoints are written beside the run, which waits for the copy to host memory. One that cannot be written is told,
// and the run goes on: the next one is due as ever, and the run fails only where its last one has failed. The end of
// the run, a request to stop and the next save wait for the one under way.
//
// With --spike-rewind an outlier takes the run back to its newest checkpoint that verifies: model, optimizer, windows
// of past values and counters are as they were there, but the loader stands behind the samples of the outlier. So the
// run goes on as one that is resumed from that checkpoint and passes over as many samples, to the bit. One that is
// killed later, and resumed from there, comes to the same outlier and goes back again.
//
// A signal to stop, to any rank, is acted upon by all of them after the same step, or in the midst of validation or
// evaluation after the same micro-batch; what then remains to be done after the step is left to the run that resumes.
#pragma once

#include <functional>
#include <optional>

#include "llmc/base/log.h"
#include "llmc/data/loader.h"
#include "llmc/process/world.h"
#include "llmc/run/evaluation/evaluate.h"
#include "llmc/run/evaluation/sampler.h"
#include "llmc/run/evaluation/validation.h"
#include "llmc/run/metrics/exposed_waits.h"
#include "llmc/run/metrics/metrics.h"
#include "llmc/run/metrics/peak.h"
#include "llmc/run/metrics/slowest_rank.h"
#include "llmc/run/options.h"
#include "llmc/run/step.h"
#include "llmc/run/stopping/guard.h"
#include "llmc/run/stopping/stop_signals.h"
#include "llmc/run/training_state.h"

// What the trainer works with, made by main.
struct TrainerParts {
    const Options& options;
    const Log& log;
    Arena& arena;
    Step& step;
    const TokenSet& train_tokens;
    const TokenSet* val_tokens;   // null: no validation
    FileSystem& files;
    Metrics& metrics;
    const StopSignals& signals;
    Sampler* sampler;                                              // null: no sampling
    const std::vector<std::unique_ptr<Evaluation>>* evaluations;   // null: none
    std::string tokenizer_file;                                    // goes into checkpoints; empty: none
    int max_steps;                                                 // of the whole run
    double peak_flops_per_s;                                       // of one device; 0: not known
    TrainingGroups groups = {};
    World* world = nullptr;   // all ranks and their watchdog; null: this one alone
};

enum class RunEnd {
    finished,         // all steps done
    stop_requested,   // --stop-after
    signal,           // a request to stop (stop_signals.h)
    bad_steps,        // --max-bad-steps in a row were not finite, or --spike-rewind has led to no newer checkpoint
};

inline const char* words_of_end(RunEnd end) {
    return end == RunEnd::finished         ? "finished"
           : end == RunEnd::stop_requested ? "stopped after the steps it was asked for"
           : end == RunEnd::signal         ? "stopped by a signal or its time limit"
                                           : "stopped: too many bad steps";
}

// In the output folder: the state of the lowest validation loss, with --keep-best.
inline constexpr const char* kBestFolder = "best";

class Trainer {
public:
    explicit Trainer(const TrainerParts& parts);

    // Continues after a step of an earlier run; parameters and optimizer have been restored by load_training_state.
    void restore(const RunState& state);

    RunEnd run();

    // What checkpoints are gathered with, for another file of the same tensors.
    const Gatherer& gatherer() const { return gatherer_; }

private:
    struct Timing {
        double total_s = 0;   // without the first step, which warms up
        int steps = 0;
        double mean_s() const { return steps > 0 ? total_s / steps : 0; }
    };

    RunEnd run_steps();
    void follow_step();
    RunEnd end_at_signal();
    RunEnd end_at_bad_steps();
    bool rewind();   // false: too often from this checkpoint
    void train_step();
    void take_batch_of_tokens(std::int64_t tokens);
    void cut_sequences(int length);   // of the model, from now on
    void choose_algorithms();
    void agree_on_algorithms();
    // Those of the next step follow on those of this one.
    void read_micro_batch(int micro_step, const MicroBatch& to);
    double targets_of_step(std::int64_t tokens);
    void say_pairs();
    Pipeline::Read reader();
    void read_ahead();
    int end_of_run() const;   // the last step
    bool is_outlier(const StepResult& result);
    std::string samples_of_step() const;
    std::string first_bad_tensor();
    void report_step(const StepResult& result, float lr, double seconds);
    bool line_is_due(int last);   // of progress, after the step at hand
    bool validate();
    bool evaluate();
    bool write_sample();
    bool save_checkpoint();
    RunState state_now(AfterStep next) const;
    bool link_checkpoint(AfterStep next);   // to the best state, which this step's is; false: it cannot be
    void remove_older_checkpoints();
    void save_best();
    // Saves beside the steps that follow, then calls `remove_older` on the first rank. Not while another is under way.
    void begin_save(const std::string& folder, AfterStep next, std::function<void()> remove_older);
    void check_replicas();
    void end_save();       // waits for the one under way, and tells what became of it
    void settle_saves();   // before the run ends: no save is under way, and the last one has not failed
    // After the step at hand; of what has an interval, only validation is also made before the first step.
    bool is_due(AfterStep work) const;

    const Options& options_;
    TrainerParts parts_;
    Schedule learning_rates_;
    ByStep tokens_, lengths_;       // of a step, of its sequences
    int length_ = 0;                // those of the step at hand
    std::int64_t pairs_ = 0;        // of queries and keys that are not masked in it, of this rank, where documents are
    PipelineSchedule schedule_;     // of the step at hand
    PeakFlops peak_;                // of one device
    std::uint64_t sequences_ = 0;   // of the step at hand
    int step_ = 0;                  // completed steps
    int saved_step_ = 0;            // the last one that is in a checkpoint
    int best_step_ = 0;             // the last one whose state was saved as the best by this start of the run
    int bad_steps_ = 0;             // in a row: loss or gradient norm not finite
    std::optional<double> best_val_loss_;
    AfterStep next_ = AfterStep::validation;
    Loader loader_;
    std::optional<LoaderState> ahead_;   // where the loader was when the next step was read ahead
    Agreement agreement_;
    ExposedWaits exposed_waits_;
    SlowestRank slowest_rank_;
    GpuMonitor gpu_;
    Gatherer gatherer_;            // of checkpoints
    std::string matmul_choices_;   // of all ranks
    std::optional<HostTensors> host_tensors_;
    std::optional<CheckpointWriter> save_;   // under way
    std::string save_folder_;                // where
    std::exception_ptr save_failure_;        // of the last save
    std::optional<Validation> validation_;
    OutlierDetector loss_outliers_, norm_outliers_;
    double loss_z_ = 0, norm_z_ = 0;     // of the last step
    std::optional<StepResult> spike_;    // the last step was one to go back from
    int rewound_to_ = 0, rewinds_ = 0;   // the last checkpoint gone back to, and how often
    Timing timing_;
    int lines_ = 0;            // of progress so far
    double last_line_s_ = 0;   // when the last one was due
};
