#include "llmc/cli/option_table.h"

#include <limits>

#include "llmc/cli/option_group.h"

namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Values by name

const Names<DType> kGradDtypes{{"fp32", DType::fp32}, {"bf16", DType::bf16}};
const Names<PipelineKind> kPipelines{{"1f1b", PipelineKind::one_f_one_b},
                                     {"interleaved", PipelineKind::interleaved},
                                     {"zb", PipelineKind::zero_bubble},
                                     {"gpipe", PipelineKind::gpipe},
                                     {"naive", PipelineKind::naive}};
const Names<Picture> kPictures{{"none", Picture::none}, {"text", Picture::text}, {"svg", Picture::svg}};
const Names<ExportFormat> kExportFormats{{"hf", ExportFormat::hugging_face}, {"llmc", ExportFormat::llmc}};
const Names<std::optional<DType>> kExportTypes{{"model", std::nullopt}, {"fp32", DType::fp32}, {"bf16", DType::bf16}};

// ---------------------------------------------------------------------------------------------------------------------
// The options

constexpr int kMost = std::numeric_limits<int>::max();

// `name` receives --data, which stands for two patterns.
void add_data_options(CLI::App& app, Options& o, std::string& name) {
    OptionGroup data(app, "Data");
    data.string("--data", name,
                "what data/NAME.sh has prepared (local, tinyshakespeare, ...), or a folder: stands for --train-data "
                "'FOLDER/*train*.bin' --val-data 'FOLDER/*val*.bin' where those are not given")
        ->configurable(false);   // files say the patterns
    data.string("--train-data,-i", o.train_data, "token files to train on, a pattern (quote it)");
    data.string("--val-data,-j", o.val_data,
                "token files to validate on, a pattern (quote it); not read with --val-every 0");
    data.on_off(
        "--overfit-single-batch,-a", o.overfit_single_batch,
        "train on the first batch of the validation data only, to see the loss go to zero; --train-data is not read");
}

void add_model_options(CLI::App& app, Options& o) {
    OptionGroup model(app, "Model");
    model.string(
        "--model,-e", o.model,
        "a size (d12, gpt2:124M, gpt3:350M, gpt3:c768), an llm.c model file, a Hugging Face folder, a checkpoint "
        "or a run's output folder (its newest checkpoint)");
    model.number("--layers", o.layers, 0, 10000, "transformer blocks; with --heads and --channels instead of --model");
    model.number("--heads", o.heads, 0, 10000, "attention heads of a block");
    model.number("--channels", o.channels, 0, 1 << 20, "width of the residual stream");
    model.number("--vocab-size", o.vocab_size, 0, 1 << 24,
                 "token ids the model knows; 0: as the data's tokenizer or the model file says, else GPT-2's 50257");
    model.on_off(
        "--tie-embeddings", o.tie_embeddings,
        "the classifier is the token embedding, as in GPT-2; 0: a tensor of its own. A model file says it itself");
}

void add_step_options(CLI::App& app, Options& o) {
    OptionGroup step(app, "Shape of a step");
    step.number("--micro-batch,-b", o.micro_batch, 1, 1 << 20, "sequences computed at once, B");
    step.number("--seq-len,-t", o.seq_len, 1, 1 << 24, "tokens of a sequence, T");
    step.number<std::int64_t>("--total-batch,-d", o.total_batch, -1, std::int64_t{1} << 40,
                              "tokens per step, a multiple of B*T; -1 or 0: B*T, no accumulation");
    step.number("--max-steps,-x", o.max_steps, -1, kMost, "steps of the whole run; -1: one epoch");
    step.number("--stop-after", o.stop_after, 0, kMost, "end early after this step, the schedule unchanged; 0: do not");
    step.number("--time-limit", o.time_limit, 0, kMost,
                "so many seconds after the program began, save after the step at hand and end with exit code 75; 0: none");
}

void add_optimiser_options(CLI::App& app, Options& o) {
    OptionGroup optimiser(app, "Optimiser and schedule");
    optimiser.choice(
        "--schedule,-k", o.schedule, kSchedules,
        "the learning rate after the warm-up, with q = --final-lr-frac and x from 0 to 1 until the last step. "
        "cosine: lr (q + (1 - q) (1 + cos(pi x)) / 2); linear: lr (1 - (1 - q) x); wsd: lr until 80% of all "
        "steps, then lr (q + (1 - q) (1 - sqrt(y))), y from 0 to 1 over the last 20%; constant: lr in every "
        "step, --warmup and --final-lr-frac are ignored");
    optimiser.number("--lr,-l", o.lr, 0.0f, 10.0f, "highest learning rate");
    optimiser.number("--warmup,-u", o.warmup, 0, kMost, "steps over which the learning rate rises: lr step / warmup");
    optimiser.number("--final-lr-frac,-q", o.final_lr_frac, 0.0f, 1.0f,
                     "learning rate at the end, as a fraction of --lr; 1 (llm.c's default): it never falls");
    optimiser.number("--weight-decay,-c", o.weight_decay, 0.0f, 10.0f,
                     "decay of the weight matrices, AdamW's: w -= lr decay w; biases and norms have none");
    optimiser.number("--beta1", o.beta1, 0.0f, 0.999999f, "AdamW: decay of the first moment");
    optimiser.number("--beta2", o.beta2, 0.0f, 0.999999f, "AdamW: decay of the second moment");
    optimiser.number("--eps", o.eps, 1e-20f, 1.0f, "AdamW: added to the root of the second moment");
    optimiser.number("--grad-clip", o.grad_clip, 0.0f, 1e9f, "largest norm of all gradients together; 0: no clipping");
    optimiser.number("--skip-loss-z", o.skip_loss_z, 0.0f, 1e9f,
                     "skip updates whose loss has a z-score above this; 0: never");
    optimiser.number("--skip-norm-z", o.skip_norm_z, 0.0f, 1e9f, "the same for the gradient norm");
    optimiser.number("--spike-rewind", o.spike_rewind, 0, kMost,
                     "above those z-scores go back to the last checkpoint and pass over the samples since, at most so "
                     "often from one checkpoint, then stop with exit code 65; 0: never");
    optimiser.number("--max-bad-steps", o.max_bad_steps, 0, kMost,
                     "stop, with exit code 65, after so many steps in a row whose loss or gradient norm is not finite; "
                     "0: never");
    optimiser.number<std::uint64_t>("--seed", o.seed, 0, std::numeric_limits<std::uint64_t>::max(),
                                    "of the initial weights, the sample order and stochastic rounding");
}

// `llmc_val_batches` receives -m, which counts batches of B sequences where --val-max-batches counts sequences.
void add_validation_options(CLI::App& app, Options& o, int& llmc_val_batches) {
    OptionGroup validation(app, "Validation and sampling");
    validation.number("--val-every,-v", o.val_every, 0, kMost,
                      "validate every this many steps, and first and last; 0: never");
    validation.number("--val-max-batches", o.val_max_batches, -1, kMost, "sequences of a validation; -1: all");
    validation
        .number("--val-max-micro-batches,-m", llmc_val_batches, -1, kMost,
                "the same in units of --micro-batch sequences, llm.c's -m; over all ranks together, where llm.c counts "
                "those of every rank; --val-max-batches wins; -1: all")
        ->configurable(false);   // files say it in sequences
    validation.number("--sample-every,-s", o.sample_every, 0, kMost,
                      "let the model write every this many steps; 0: never");
    validation.number("--sample-tokens,-g", o.sample_tokens, 1, 1 << 20, "tokens of a sample, with --sample-every");
    validation.number("--temperature", o.temperature, 0.0f, 100.0f,
                      "of samples; 0: always the likeliest token, whatever --seed is");
    validation.on_off(
        "--hellaswag", o.hellaswag,
        "answer multiple-choice questions with every validation but the first, llm.c's -h; none with --val-every 0");
    validation.string("--hellaswag-data", o.hellaswag_data, "the questions, in llm.c's format");
}

void add_output_options(CLI::App& app, Options& o) {
    OptionGroup output(app, "Output");
    output.string("--output-dir,-o", o.output_dir,
                  "folder of metrics.jsonl, main.log and checkpoints; empty: write none");
    output.on_off("--tensorboard", o.tensorboard,
                  "also write what metrics.jsonl has as an event file for TensorBoard, into --output-dir");
    output.number("--log-every", o.log_every, 0, kMost,
                  "print a line every this many steps, and first and last; 0: the first ten, then one in five seconds; "
                  "a terminal shows each step, in place");
    output.number("--checkpoint-every,-n", o.checkpoint_every, 0, kMost,
                  "save every this many steps; in any case after the last one, and where the run is cut short");
    output.number("--keep-checkpoints", o.keep_checkpoints, 0, kMost,
                  "the newest so many of --checkpoint-every, llm.c's -nk; 0: all");
    output.number("--major-checkpoint-every", o.major_checkpoint_every, 0, kMost,
                  "checkpoints of every this many steps are kept for good, llm.c's -nm");
    output.on_off("--keep-best", o.keep_best, "save the state of the lowest validation loss too, in the folder best");
    output.on_off("--resume,-y", o.resume,
                  "continue from the newest checkpoint in --output-dir, if there is one; options that are not given "
                  "are those of its options.json");
    output.on_off("--overwrite", o.overwrite, "begin anew where --output-dir holds results, which are removed");
    output.string("--export-llmc", o.export_llmc, "write the final weights to this file, in llm.c's format");
    output.elsewhere("--log-gpu-every", "-1", "print the GPU's state every this many steps, llm.c's -lg",
                     "Leave -lg out, and run `nvidia-smi dmon -s puct` beside it: clocks, power, temperature, use.");
    output.string(
        "--trace", o.trace,
        "write the second step of the run to this file, as a Chrome trace on a virtual clock (build without a GPU)");
}

void add_numerics_options(CLI::App& app, Options& o) {
    OptionGroup numerics(app, "Numerics and memory");
    numerics.choice("--attention", o.attention, kAttentions,
                    "whose attention: own kernels or the library's; own-sm90: kernels for H100 and H200, not yet "
                    "run on one");
    numerics.choice("--grad-dtype", o.grad_dtype, kGradDtypes, "type in which gradients accumulate");
    numerics.on_off("--tf32,-f", o.tf32, "let fp32 builds multiply in TF32; bf16 builds ignore it");
    numerics.on_off("--master-weights,-w", o.master_weights,
                    "keep fp32 copies of bf16 weights; 0: stochastic rounding; fp32 builds have neither");
    numerics.number("--gelu-fusion", o.gelu_fusion, 0, 2,
                    "GELU as part of a matmul, llm.c's -ge; 0: no, 1: in forward, 2: in backward too");
    numerics.number("--matmul-tries", o.matmul_tries, 1, 64,
                    "cuBLASLt algorithms timed for each matmul, the fastest kept; 1: its first, untimed, as always with --tp");
    numerics
        .choice("--recompute,-r", o.recompute, kRecomputes,
                "what backward computes again instead of storing it; auto: the least with which nine tenths of every "
                "device's memory suffice")
        ->type_name("auto|none|gelu|gelu+norm|block");
    numerics
        .on_off("--print-memory", o.print_memory,
                "print what one of --processes ranks, or of --dp replicas, will take of its device, and exit; no device "
                "of theirs is needed")
        ->configurable(false);
}

void add_parallel_options(CLI::App& app, Options& o, Picture& picture, std::string& costs) {
    OptionGroup parallel(app, "Many devices");
    parallel.number("--zero,-z", o.zero, 0, 3,
                    "ZeRO stage: what data-parallel ranks share out; one rank shares nothing");
    parallel.number("--dp", o.dp, 0, kMost, "ranks of data parallelism; 0: what the number of processes leaves");
    parallel.number("--tp", o.tp, 1, 1 << 16, "ranks of tensor parallelism, which share every matrix; inside a node");
    parallel.number("--tp-chunks", o.tp_chunks, 1, 1 << 10,
                    "chunks of rows in which tp ranks communicate forward, each behind the next one's matmul");
    parallel.on_off("--sequence-parallel", o.sequence_parallel,
                    "tp ranks share the rows of layernorms and residual streams too");
    parallel.number("--pp", o.pp, 1, 1 << 12, "ranks of pipeline parallelism: each has some of the layers");
    parallel.choice("--pp-schedule", o.pp_schedule, kPipelines,
                    "in which order a pipeline stage works on its micro-batches");
    parallel.number("--pp-chunks", o.pp_chunks, 1, 1 << 10,
                    "pieces of the model that each stage has, for --pp-schedule interleaved");
    parallel.number("--pp-warmup", o.pp_warmup, 0, 1 << 10,
                    "micro-batches more that a pipeline keeps between two neighbours, which hides slow links");
    parallel
        .string("--schedule-costs", costs,
                "for --print-schedule: what forward, gradients of inputs, of weights and a link take, in any unit")
        ->configurable(false);
    parallel
        .choice("--print-schedule", picture, kPictures,
                "print the order of work of --pp stages (of --dp replicas), its bubble and what it keeps, as text or "
                "svg, and exit")
        ->configurable(false);
    parallel.number("--cp", o.cp, 1, 1 << 16, "ranks of context parallelism, which share each sequence");
    parallel.choice("--cp-mode", o.cp_mode, kContextModes,
                    "keys and values travel a ring, heads are exchanged for tokens, or both: rings of such groups");
    parallel.number("--cp-ulysses", o.cp_ulysses, 0, 1 << 16,
                    "for --cp-mode hybrid: ranks of a group that exchanges heads; 0: as the mode says");
    StartupOptions& start = o.startup;
    parallel.choice("--init", start.method, kInits,
                    "how processes find each other, llm.c's -pi; auto: as they were started");
    parallel.string("--init-address", start.address,
                    "HOST:PORT of rank 0 for --init tcp, llm.c's -ps; empty: MASTER_ADDR and MASTER_PORT");
    parallel.string("--init-folder", start.folder, "a folder that all processes see, for --init fs, llm.c's -pf");
    parallel.number("--init-timeout", start.timeout_seconds, 1.0, 1e6, "seconds to wait for the other processes");
    parallel.number("--processes", start.ranks, -1, 1 << 24, "how many there are, llm.c's -pn; -1: ask the launcher");
    parallel.number("--process-rank", start.rank, -1, 1 << 24, "which this one is, llm.c's -pr; -1: ask the launcher")
        ->configurable(false);
    parallel.number("--gpus-per-node", start.gpus_per_node, 0, 1 << 16,
                    "process r of a node drives GPU r modulo this, llm.c's -pg; 0: ask the launcher");
    parallel.number("--peer-timeout", o.peer_timeout_s, 0.1, 1e6,
                    "seconds after which a silent process counts as lost; all others end with exit code 75");
    parallel.number(
        "--stall-timeout", o.stall_timeout_s, 0.0, 1e6,
        "the same for the one that the others wait for, when nothing advances for so long and none starts up "
        "or writes a checkpoint; 0: never");
    parallel.on_off("--check-collectives", o.check_collectives,
                    "debug: stop and say so when ranks call their collectives in different orders");
    parallel.number("--check-replicas", o.check_replicas, 0, 1000000000,
                    "compare every so many steps, and before each checkpoint, what ranks must hold alike, and stop "
                    "naming a rank and a tensor that differ; 0: never");
}

void add_generate_options(CLI::App& app, GenerateOptions& g) {
    OptionGroup writing(app, "Writing");
    writing.string("--prompt", g.prompt, "the text to go on from; empty: what follows an end-of-text token");
    writing.string("--prompt-file", g.prompt_file, "read it from this file, or from standard input (-)");
    writing.string("--tokenizer", g.tokenizer,
                   "bytes, or a file or folder, as for tokenize; empty: the one that lies beside the model");
    writing.number("--tokens", g.tokens, 1, kMost, "most tokens to write");
    writing.number("--top-k", g.top_k, 0, kMost, "draw from the so many likeliest tokens; 0: from all");
    writing.number("--top-p", g.top_p, 0.0f, 1.0f,
                   "draw from the likeliest tokens whose probabilities add up to this; 1: from all");
    writing.on_off("--stop-at-end", g.stop_at_end, "stop at the end-of-text token; 0: write on");
}

void add_export_options(CLI::App& app, ExportOptions& e) {
    OptionGroup output(app, "Export");
    output.choice("--to", e.to, kExportFormats, "whose format: a Hugging Face folder, or llm.c's model file");
    output.string("--output", e.output, "the folder or file to write; there must be none yet");
    output.choice("--dtype", e.dtype, kExportTypes,
                  "type of the weights, rounded to nearest; model: the one they have");
}

}   // namespace

void add_options(CLI::App& app, Options& o, OptionsBeside& beside) {
    add_data_options(app, o, beside.data_name);
    add_model_options(app, o);
    add_step_options(app, o);
    add_optimiser_options(app, o);
    add_validation_options(app, o, beside.llmc_val_batches);
    add_output_options(app, o);
    add_numerics_options(app, o);
    add_parallel_options(app, o, beside.picture, beside.costs);
    add_generate_options(app, o.generate);
    add_export_options(app, o.exported);
}
