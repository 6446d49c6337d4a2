// The command line: what a run is asked to do, parsed and checked.
//
// Long names, with llm.c's letters beside them, so that its scripts carry over. Its two-letter flags (`-nk`, `-sl` ...)
// and `-h` are translated by one table before parsing, because the parser knows only one-letter names and -h as help.
// `--config FILE` reads `name = value` lines (the command line wins), `--print-config` writes them.
//
// Every value is checked where it is read: Error(usage) names the flag, the value and what is expected. Defaults are
// llm.c's, except:
//   --train-data, --val-data  what data/tinyshakespeare.sh leaves
//   --model            d12 (llm.c: gpt2_124M_bf16.bin, a file one would have to download first)
//   --tf32             0 (llm.c: 1), so that a build for fp32 computes in fp32
//   --gelu-fusion      2 (llm.c: 0, and 2 on an H100)
//   --val-max-batches  80 sequences, which is llm.c's 20 batches of 4, the same for every micro-batch size and layout
// With --resume, what neither the command line nor --config says is as the output folder's options.json has it.
// What other programs serve is listed by name and refused, never ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llmc/base/dtype.h"
#include "llmc/kernels/attention.h"
#include "llmc/model/activations.h"
#include "llmc/parallel/schedule.h"
#include "llmc/process/startup.h"
#include "llmc/train/run_record.h"
#include "llmc/train/schedule.h"
#include "llmc/train/verbs.h"

// What context-parallel ranks exchange: keys and values around a ring, heads for tokens (Ulysses), or both.
enum class ContextMode : std::uint8_t { ring, ulysses, hybrid };

struct OptimizerOptions {
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    float weight_decay = 0.0f;
    float grad_clip = 1.0f;   // largest norm of all gradients; 0: no clipping
    bool master_weights = true;
    std::uint64_t seed = 42;   // of stochastic rounding; and of the weights, the sample order and samples
};

struct Options : OptimizerOptions {
    // data
    std::string train_data = "data/tinyshakespeare/*train*.bin";   // pattern
    std::string val_data = "data/tinyshakespeare/*val*.bin";       // pattern
    bool overfit_single_batch = false;

    // model
    std::string model = "d12";                 // descriptor, llm.c model file or folder
    int layers = 0, heads = 0, channels = 0;   // all three: a model of one's own sizes; 0: as the descriptor says
    int vocab_size = 0;                        // 0: as the data's tokenizer or the model file says, else GPT-2's
    bool tie_embeddings = true;                // the classifier is the token embedding

    // shape of a step
    int micro_batch = 4;            // B, sequences
    int seq_len = 1024;             // T, tokens; 0: the model's positions, where `evaluate` is not told
    std::int64_t total_batch = 0;   // tokens per step; 0: micro_batch * seq_len, no accumulation
    int max_steps = -1;             // -1: one epoch
    int stop_after = 0;             // end after this many completed steps of the run; 0: do not
    int time_limit = 0;             // seconds from the program's begin until it saves and stops; 0: none

    // optimiser and schedule
    ScheduleKind schedule = ScheduleKind::cosine;
    float lr = 3e-4f;
    int warmup = 0;                                 // steps
    float final_lr_frac = 1.0f;                     // final learning rate over lr
    float skip_loss_z = 0.0f, skip_norm_z = 0.0f;   // skip the update above this z-score; 0: never
    int spike_rewind = 0;   // above it, back to the last checkpoint instead, so often without a newer one; 0: never

    // validation and sampling
    int val_every = 20;         // steps; 0: never
    int val_max_batches = 80;   // sequences; -1: all
    int sample_every = 20;      // steps; 0: never
    int log_every = 0;          // steps between lines of progress, where they go to no terminal; 0: few enough to read
    int sample_tokens = 64;
    float temperature = 1.0f;   // 0: always the likeliest token
    bool hellaswag = false;     // multiple-choice evaluation with every validation but the first
    std::string hellaswag_data = "data/hellaswag/hellaswag_val.bin";

    // output
    std::string output_dir;           // empty: write nothing
    int checkpoint_every = 0;         // steps; 0: never, but the end of a run is saved, also where it is cut short
    int keep_checkpoints = 0;         // 0: all
    int major_checkpoint_every = 0;   // checkpoints of these steps are always kept; 0: none
    bool resume = false;
    bool overwrite = false;    // a folder of another run's results is emptied
    bool keep_best = false;    // also save what has the lowest validation loss
    int max_bad_steps = 10;    // stop after so many steps in a row whose loss or norm is not finite; 0: never
    bool tensorboard = false;  // event files for TensorBoard in the output folder too
    std::string trace;         // Chrome trace of a step; empty: none
    std::string export_llmc;   // llm.c model file to write at the end; empty: none

    // numerics and memory
    AttentionKind attention = AttentionKind::auto_;
    DType grad_dtype = DType::fp32;
    bool tf32 = false;
    bool print_memory = false;   // llmc/train/memory_plan.h
    std::optional<Recompute> recompute;   // none: auto, until recompute_that_fits (llmc/train/memory_plan.h) has chosen
    int gelu_fusion = 2;          // 0: none, 1: in forward, 2: in backward too
    int matmul_tries = 1;         // MatmulOptions::tries, where tp == 1
    int zero = 0;                 // ZeRO stage
    int pp = 1, cp = 1, tp = 1;   // ranks of pipeline, context and tensor parallelism
    PipelineKind pp_schedule = PipelineKind::one_f_one_b;
    int pp_chunks = 1;               // of a pipeline stage
    int pp_warmup = 0;               // PipelineShape::warmup
    int tp_chunks = 4;               // of rows, whose collectives hide behind each other's matmuls
    bool sequence_parallel = true;   // tp ranks share the rows of the residual region
    int dp = 0;                      // ranks of data parallelism; 0: not said, until fit_to_ranks has set it

    ContextMode cp_mode = ContextMode::ring;
    int cp_ulysses = 0;   // cp ranks of a Ulysses group; 0: as the mode says

    // many processes
    StartupOptions startup;
    bool check_collectives = false;
    int check_replicas = 0;         // compare what ranks must hold alike every so many steps; 0: never
    double peer_timeout_s = 30;     // a rank that is silent for so long counts as lost
    double stall_timeout_s = 600;   // and so does the one that others wait for when nothing advances; 0: never

    GenerateOptions generate;
    ExportOptions exported;

    int data_ranks() const { return dp > 0 ? dp : 1; }
    int ulysses() const { return cp_ulysses > 0 ? cp_ulysses : cp_mode == ContextMode::ulysses ? cp : 1; }
    // of all ranks together
    std::int64_t tokens_per_micro_step() const { return std::int64_t{micro_batch} * seq_len * data_ranks(); }
    std::int64_t tokens_per_step() const { return total_batch > 0 ? total_batch : tokens_per_micro_step(); }
    int micro_steps() const { return static_cast<int>(tokens_per_step() / tokens_per_micro_step()); }
};

struct CommandLine {
    Verb verb = Verb::train;
    Options options;
    std::string print_and_exit;   // the help or the configuration, where that was asked for
    std::string shared;           // the configuration as it must be on every rank
    std::vector<OptionText> texts;       // every option that --print-config prints
    std::optional<RunRecord> recorded;   // of the run that --resume continues; options it has and nobody gave are its
};

// `arguments` without the program's name.
CommandLine parse_command_line(std::vector<std::string> arguments);

// Once it is known how many ranks see different samples: sets `dp`. Error(usage) where they cannot share a step.
void fit_to_ranks(Options& options, int dp);

// llm.c's flags that are not one letter, in today's names.
std::vector<std::string> translate_llmc_flags(std::vector<std::string> arguments);

const char* name_of(ScheduleKind kind);
const char* name_of(AttentionKind kind);
const char* name_of(std::optional<Recompute> recompute);
const char* name_of(ContextMode mode);
const char* name_of(InitMethod method);
