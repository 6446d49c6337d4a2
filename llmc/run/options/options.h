// The values of all options of a run. Their names, ranges and help texts are in llmc/cli/option_table.cpp, the names of
// their values in option_names.h.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "llmc/base/dtype.h"
#include "llmc/model/config.h"
#include "llmc/model/memory/recompute.h"
#include "llmc/model/stage/stage_options.h"
#include "llmc/optim/batch_schedule.h"
#include "llmc/optim/lr_schedule.h"
#include "llmc/optim/optimizer_options.h"
#include "llmc/parallel/schedule.h"
#include "llmc/process/startup.h"

// The exchange between context-parallel ranks: keys and values around a ring, heads for tokens (Ulysses), or both.
enum class ContextMode : std::uint8_t { ring, ulysses, hybrid };

// Options of `generate` only.
struct GenerateOptions {
    std::string prompt, prompt_file;   // at most one of them; neither: starts with an end-of-text token
    std::string tokenizer;             // empty: the model's own
    int tokens = 100;
    int top_k = 0;   // 0: all
    float top_p = 1.0f;
    bool stop_at_end = true;   // stops at the tokenizer's end-of-text token
};

// Options of `export` only.
enum class ExportFormat { hugging_face, llmc };
struct ExportOptions {
    ExportFormat to = ExportFormat::hugging_face;
    std::string output;           // a folder, or llm.c's model file
    std::optional<DType> dtype;   // none: the type in the model's file
};

// Options of `plan` only.
struct PlanOptions {
    std::string gpu = "H100", machine;    // a name from the table; a file, which wins
    std::string link_intra, link_inter;   // "GB/s,us"; empty: the machine's
    std::string tokens;                   // to train on; or as planned_tokens (llmc/plan/plan.h) has it
    double price = 0;                     // per GPU-hour
    double gpu_memory = 0;                // GiB of a device; 0: the machine's
    double efficiency = 0;                // share of the best case's speed; 0: not known
    double deadline = 0;                  // seconds in which the run must end; 0: none
    bool search = false, json = false, verbose = false;
    std::set<std::string> kept;   // options that were given: --search keeps theirs
    std::string svg;              // file for the picture
    std::string compare;          // folder of a run
};

// Selects a checkpoint's weights, or their average.
enum class WhichWeights : std::uint8_t { model, ema };
inline const char* state_of(WhichWeights weights) { return weights == WhichWeights::ema ? "ema" : ""; }

inline constexpr std::int64_t kMostTokensOfStep = std::int64_t{1} << 40;

struct Options : OptimizerOptions, StageChoices {
    // data
    std::string train_data = "data/tinyshakespeare/*train*.bin";   // pattern, or PATTERN:WEIGHT,... (mixture.h)
    std::string val_data = "data/tinyshakespeare/*val*.bin";       // as train_data
    std::string data_schedule;                                     // file with the mixture's phases; empty: none
    bool overfit_single_batch = false;
    bool boundary_loss = true;      // the last token of a document has a loss
    int samples_of = 0;             // step whose samples `data` shows
    std::int64_t inspect_at = -1;   // token from which on `data` shows text; -1: none

    // model
    std::string model = "d12";   // descriptor, llm.c model file or folder
    WhichWeights weights = WhichWeights::model;
    std::string ignore_tensors;                // patterns of tensor names in the model's files that may be ignored
    int layers = 0, heads = 0, channels = 0;   // sizes of a custom model, all three; 0: those of the descriptor
    int vocab_size = 0;                        // 0: from the data's tokenizer or the model file, else GPT-2's
    std::string arch;                          // config.json of a model with random weights
    ModelChoices architecture = {};            // model fields given by name (model_fields)

    // shape of a step
    int micro_batch = 4;            // B, sequences
    int seq_len = 1024;             // T, tokens; 0: as many as the model's positions (only `evaluate` has this default)
    std::string seq_len_schedule;   // steps with shorter sequences; each sample is cut into several
    std::int64_t total_batch = 0;   // tokens per step; 0: micro_batch * seq_len, no accumulation
    std::string batch_schedule;     // tokens of later steps (batch_schedule.h)
    int max_steps = -1;             // -1: one epoch
    int stop_after = 0;             // stops after this many steps of the run; 0: does not
    int time_limit = 0;             // seconds after the program's start at which it saves and stops; 0: none

    // optimiser and schedule
    ScheduleKind schedule = ScheduleKind::cosine;
    int warmup = 0;   // steps
    LrScaling lr_scaling = LrScaling::sqrt;
    std::int64_t lr_batch = 0;                      // tokens per step for which lr is given; 0: tokens_per_step()
    float final_lr_frac = 1.0f;                     // final learning rate over lr
    int decay_steps = 0;                            // for wsd; 0: a fifth of all steps
    float skip_loss_z = 0.0f, skip_norm_z = 0.0f;   // skip the update above this z-score; 0: never
    int spike_rewind = 0;                           // times that outliers may rewind to the same checkpoint; 0: never

    // validation and sampling
    int val_every = 20;         // steps; 0: never
    int val_max_batches = 80;   // sequences; -1: all
    int sample_every = 20;      // steps; 0: never
    int log_every = 0;          // steps between lines of progress that go to no terminal; 0: a readable number
    int sample_tokens = 64;
    int sample_count = 1;
    std::string sample_prompt;   // empty: starts with an end-of-text token
    float temperature = 1.0f;    // 0: always the likeliest token
    bool hellaswag = false;      // evaluates it with every validation but the first
    std::string hellaswag_data = "data/hellaswag/hellaswag_val.bin";
    bool strict = false;       // questions longer than seq_len are refused
    std::string evaluations;   // more of question_sources: NAME or NAME=FILE

    // output
    std::string output_dir;           // empty: write nothing
    int checkpoint_every = 0;         // steps; 0: only the end of a run, also an early one
    int keep_checkpoints = 0;         // 0: all
    int major_checkpoint_every = 0;   // checkpoints of its multiples are always kept; 0: none
    bool resume = false;
    std::string branch_from;        // checkpoint to continue from if output_dir has none; empty: none
    bool reset_optimizer = false;   // starts the optimizer anew when resuming
    bool overwrite = false;         // removes another run's results from the folder
    bool keep_best = false;         // also saves the state with the lowest validation loss
    int max_bad_steps = 10;         // stops after this many steps in a row whose loss or norm is not finite; 0: never
    bool tensorboard = false;       // also writes an event file for TensorBoard
    std::string trace;              // Chrome trace of a step; empty: none
    std::string export_llmc;        // llm.c model file to write at the end; empty: none

    // watching: serves the newest metrics over HTTP
    int metrics_port = 0;   // 0: does not
    std::string metrics_host = "localhost";

    // numerics and memory
    bool tf32 = false;
    bool print_memory = false;            // llmc/plan/memory_plan.h
    std::optional<Recompute> recompute;   // none: auto, until recompute_that_fits (llmc/plan/memory_plan.h) has chosen
    int matmul_tries = 0;                 // MatmulOptions::tries
    int zero = 0;                         // ZeRO stage
    int zero_group = 0;                   // ranks per ZeRO group, or replica of local steps; 0: all of dp x cp
    int pp = 1, cp = 1, tp = 1;           // ranks of pipeline, context and tensor parallelism
    int ep = 1;                           // ranks that share the experts
    PipelineOptions pipeline;
    int comm_sms = 16;   // most multiprocessors for communication
    int left_sms = -1;   // matmuls leave so many, once settled (multiprocessors_left); -1: comm_sms
    int dp = 0;          // ranks of data parallelism; 0: unknown until fit_to_ranks sets it

    ContextMode cp_mode = ContextMode::ring;
    int cp_ulysses = 0;   // cp ranks per Ulysses group; 0: by the mode

    // many processes
    StartupOptions startup;
    bool check_collectives = false;
    int check_replicas = 0;         // compares replicated tensors every so many steps; 0: never
    double peer_timeout_s = 30;     // a rank silent for this long counts as lost
    double stall_timeout_s = 600;   // so does a rank that others wait for this long without any progress; 0: never

    GenerateOptions generate;
    ExportOptions exported;
    PlanOptions plan;
    std::string write_machine;   // `check`: the file

    int data_ranks() const { return dp > 0 ? dp : 1; }
    int ulysses() const { return cp_ulysses > 0 ? cp_ulysses : cp_mode == ContextMode::ulysses ? cp : 1; }
    // summed over all ranks
    std::int64_t tokens_per_micro_step() const { return std::int64_t{micro_batch} * seq_len * data_ranks(); }
    std::int64_t tokens_per_step() const {   // in the first step
        return total_batch > 0 ? total_batch : tokens_per_micro_step();
    }
    ByStep tokens_by_step() const { return {tokens_per_step(), "--batch-schedule", batch_schedule}; }
    ByStep seq_len_by_step() const { return {seq_len, "--seq-len-schedule", seq_len_schedule, 1}; }
    // Returns the lengths of --seq-len-schedule, into which sequences are cut.
    std::vector<std::int64_t> shorter_lengths() const;
    // Returns options with sequences cut to `length`, and as many tokens per micro-batch.
    Options with_seq_len(std::int64_t length) const;
    std::int64_t tokens_of_lr() const { return lr_batch > 0 ? lr_batch : tokens_per_step(); }
    // Returns options whose steps all have `tokens` tokens.
    Options with_batch(std::int64_t tokens) const;
    // Micro-batches per rank in the first step.
    int micro_steps() const { return static_cast<int>(tokens_per_step() / tokens_per_micro_step()); }
};

inline Options Options::with_batch(std::int64_t tokens) const {
    Options with = *this;
    with.total_batch = tokens;
    with.batch_schedule.clear();
    return with;
}

inline std::vector<std::int64_t> Options::shorter_lengths() const {
    std::vector<std::int64_t> lengths = seq_len_by_step().values();
    std::erase(lengths, std::int64_t{seq_len});
    return lengths;
}

inline Options Options::with_seq_len(std::int64_t length) const {
    Options with = *this;
    with.micro_batch = static_cast<int>(std::int64_t{micro_batch} * seq_len / length);
    with.seq_len = static_cast<int>(length);
    with.seq_len_schedule.clear();
    return with;
}
