// Runs the training loop: steps of accumulated micro-batches, validation, sampling, records, and stopping.
//
// Steps count from 1. A step takes the next samples of the loader (its tokens / T), in order: micro-batch i of B
// sequences takes samples [i B, (i + 1) B) of them; of N data-parallel ranks, rank r takes samples [(i N + r) B, (i N +
// r + 1) B), so that a step has the same samples under every layout. Loss and gradients are means over all tokens of
// the step, of all ranks. Validation and sample number N use the weights after step N; both also come after the last
// step, validation also before the first, and never twice for one step.
//
// If --seq-len-schedule has a shorter T' for a step, each of its samples becomes T / T' sequences: a micro-batch of B x
// T tokens has B T / T' sequences, for that step alone.
//
// Checkpoints are written beside the run, which waits only for the copy to host memory. A failed save gives a warning,
// and the run goes on: the next one is due as usual, and the run fails only if its last save failed. The end of the
// run, a request to stop and the next save wait for a save that is being written.
//
// With --spike-rewind an outlier takes the run back to its newest checkpoint that verifies: model, optimizer, windows
// of past values and counters are restored, but the loader stays behind the samples of the outlier. So the run goes on
// bit for bit like one that is resumed from that checkpoint and skips as many samples. A run that is killed later, and
// resumed from there, meets the same outlier and goes back again.
//
// All ranks act upon a signal to stop, to any of them, after the same step, or within validation or evaluation after
// the same micro-batch. The resumed run does the work that then remains after the step.
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

// The parts that the trainer works with; main owns them.
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
    std::string tokenizer_file;                                    // copied into checkpoints; empty: none
    int max_steps;                                                 // steps of the whole run
    double peak_flops_per_s;                                       // per device; 0: unknown
    TrainingGroups groups = {};
    World* world = nullptr;   // all ranks and their watchdog; null: one rank
};

enum class RunEnd {
    finished,         // all steps done
    stop_requested,   // --stop-after
    signal,           // a request to stop (stop_signals.h)
    bad_steps,        // --max-bad-steps in a row were not finite, or --spike-rewind led to no newer checkpoint
};

inline const char* words_of_end(RunEnd end) {
    return end == RunEnd::finished         ? "finished"
           : end == RunEnd::stop_requested ? "stopped after the steps it was asked for"
           : end == RunEnd::signal         ? "stopped by a signal or its time limit"
                                           : "stopped: too many bad steps";
}

// Subfolder of the output folder with the state of the lowest validation loss (--keep-best).
inline constexpr const char* kBestFolder = "best";

class Trainer {
public:
    explicit Trainer(const TrainerParts& parts);

    // Continues after a step of an earlier run. load_training_state must have restored parameters and optimizer.
    void restore(const RunState& state);

    RunEnd run();

    // Gathers the tensors for checkpoints; also usable for another file of the same tensors.
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
    bool rewind();   // false: went back to this checkpoint too often
    void train_step();
    void take_batch_of_tokens(std::int64_t tokens);
    void cut_sequences(int length);   // sets the stage's sequences
    void choose_algorithms();
    void agree_on_algorithms();
    // Micro-batches past this step's last one are the next step's.
    void read_micro_batch(int micro_step, const MicroBatch& to);
    double targets_of_step(std::int64_t tokens);
    void say_pairs();
    Pipeline::Read reader();
    void read_ahead();
    int end_of_run() const;   // the last step of this start
    bool is_outlier(const StepResult& result);
    std::string samples_of_step() const;
    std::string first_bad_tensor();
    void report_step(const StepResult& result, float lr, double seconds);
    bool line_is_due(int last);   // for the current step's line of progress
    bool validate();
    bool evaluate();
    bool write_sample();
    bool save_checkpoint();
    RunState state_now(AfterStep next) const;
    bool link_checkpoint(AfterStep next);   // to the best state, if this step's; false: failed
    void remove_older_checkpoints();
    void save_best();
    // Starts a save beside the following steps, which then calls `remove_older` on the first rank. No other save may be
    // active.
    void begin_save(const std::string& folder, AfterStep next, std::function<void()> remove_older);
    void check_replicas();
    void end_save();       // waits for the active save, and reports its outcome
    void settle_saves();   // at the run's end: waits for the active save; throws if the last one failed
    // True if `work` is due after the current step. Before the first step only validation is.
    bool is_due(AfterStep work) const;

    const Options& options_;
    TrainerParts parts_;
    Schedule learning_rates_;
    ByStep tokens_, lengths_;       // per step; per sequence
    int length_ = 0;                // tokens per sequence in the current step
    std::int64_t pairs_ = 0;        // this step's unmasked pairs of query and key on this rank, with --document-mask
    PipelineSchedule schedule_;     // for the current step
    PeakFlops peak_;                // per device
    std::uint64_t sequences_ = 0;   // in the current step
    int step_ = 0;                  // completed steps
    int saved_step_ = 0;            // last step that is in a checkpoint
    int best_step_ = 0;             // last step that this start saved as the best
    int bad_steps_ = 0;             // steps in a row whose loss or gradient norm is not finite
    std::optional<double> best_val_loss_;
    AfterStep next_ = AfterStep::validation;
    Loader loader_;
    std::optional<LoaderState> ahead_;   // loader state at the start of the step that was read ahead
    Agreement agreement_;
    ExposedWaits exposed_waits_;
    SlowestRank slowest_rank_;
    GpuMonitor gpu_;
    Gatherer gatherer_;            // for checkpoints
    std::string matmul_choices_;   // agreed on by all ranks
    std::optional<HostTensors> host_tensors_;
    std::optional<CheckpointWriter> save_;   // the active save
    std::string save_folder_;                // its folder
    std::exception_ptr save_failure_;        // error of the last save
    std::optional<Validation> validation_;
    OutlierDetector loss_outliers_, norm_outliers_;
    double loss_z_ = 0, norm_z_ = 0;     // scores of the last step
    std::optional<StepResult> spike_;    // the last step, if the run must go back from it
    int rewound_to_ = 0, rewinds_ = 0;   // last checkpoint gone back to, and how often
    Timing timing_;
    int lines_ = 0;            // progress lines so far
    double last_line_s_ = 0;   // time of the last one
};
