#include "llmc/train/options.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/parallel/schedule_picture.h"
#include "llmc/train/layout_options.h"
#include "llmc/train/named_data.h"
#include "llmc/train/version.h"

namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Values by name

template <class Value>
using Names = std::vector<std::pair<const char*, Value>>;

// The first name of a value is the one that is printed.
const Names<ScheduleKind> kSchedules{{"cosine", ScheduleKind::cosine},
                                     {"linear", ScheduleKind::linear},
                                     {"constant", ScheduleKind::constant},
                                     {"wsd", ScheduleKind::wsd}};
const Names<AttentionKind> kAttentions{
    {"auto", AttentionKind::auto_}, {"own", AttentionKind::own}, {"library", AttentionKind::library}};
const Names<DType> kGradDtypes{{"fp32", DType::fp32}, {"bf16", DType::bf16}};
const Names<Recompute> kRecomputes{
    {"none", Recompute::none},   {"gelu", Recompute::gelu}, {"gelu+norm", Recompute::gelu_norm},
    {"block", Recompute::block}, {"0", Recompute::none},    {"1", Recompute::gelu},
    {"2", Recompute::gelu_norm}, {"3", Recompute::block}};
const Names<InitMethod> kInits{
    {"auto", InitMethod::automatic}, {"mpi", InitMethod::mpi}, {"tcp", InitMethod::tcp}, {"fs", InitMethod::fs}};
const Names<PipelineKind> kPipelines{{"1f1b", PipelineKind::one_f_one_b},
                                     {"interleaved", PipelineKind::interleaved},
                                     {"zb", PipelineKind::zero_bubble},
                                     {"gpipe", PipelineKind::gpipe},
                                     {"naive", PipelineKind::naive}};
enum class Picture : std::uint8_t { none, text, svg };
const Names<Picture> kPictures{{"none", Picture::none}, {"text", Picture::text}, {"svg", Picture::svg}};
const Names<ContextMode> kContextModes{
    {"ring", ContextMode::ring}, {"ulysses", ContextMode::ulysses}, {"hybrid", ContextMode::hybrid}};
const Names<ExportFormat> kExportFormats{{"hf", ExportFormat::hugging_face}, {"llmc", ExportFormat::llmc}};
const Names<std::optional<DType>> kExportTypes{{"model", std::nullopt}, {"fp32", DType::fp32}, {"bf16", DType::bf16}};
const Names<bool> kSwitch{{"0", false}, {"1", true}, {"false", false}, {"true", true}};

template <class Value>
const char* name_in(const Names<Value>& names, Value value) {
    for (const auto& [name, v] : names) {
        if (v == value) return name;
    }
    return "?";
}

template <class Value>
std::string list_of(const Names<Value>& names) {
    std::string list;
    for (const auto& [name, value] : names) list += text(list.empty() ? "" : "|", name);
    return list;
}

[[noreturn]] void wrong_value(const std::string& flag, const std::string& value, const std::string& expected) {
    throw Error(ErrorKind::usage, text(flag, " ", value.empty() ? "(empty)" : value, ": expected ", expected),
                "`train_gpt --help` lists every option.");
}

// ---------------------------------------------------------------------------------------------------------------------
// Adding options: each remembers its default for --help and --print-config, and checks its value as it is read

class OptionGroup {
public:
    OptionGroup(CLI::App& app, std::string title) : app_(app), title_(std::move(title)) {}

    CLI::Option* string(const std::string& names, std::string& target, const std::string& help) {
        auto spell = [&target] { return target; };
        return add(names, "TEXT", spell, help, [&target](const std::string& value) { target = value; });
    }

    template <class Number>
    CLI::Option* number(const std::string& names, Number& target, Number low, Number high, const std::string& help) {
        const std::string expected =
            text(std::is_integral_v<Number> ? "an integer from " : "a number from ", low, " to ", high);
        const std::string flag = long_name(names);
        auto read = [&target, low, high, expected, flag](const std::string& value) {
            Number parsed{};
            auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), parsed);
            bool whole = code == std::errc{} && end == value.data() + value.size();
            if (!whole || !(parsed >= low && parsed <= high))
                wrong_value(flag, value, expected);   // nan fails here too
            target = parsed;
        };
        auto spell = [&target] { return shortest(target); };
        return add(names, std::is_integral_v<Number> ? "INT" : "FLOAT", spell, help, read);
    }

    template <class Value>
    CLI::Option* choice(const std::string& names, Value& target, const Names<Value>& values, const std::string& help) {
        const std::string flag = long_name(names);
        auto read = [&target, &values, flag](const std::string& given) {
            for (const auto& [name, value] : values) {
                if (given == name) {
                    target = value;
                    return;
                }
            }
            wrong_value(flag, given, "one of " + list_of(values));
        };
        auto spell = [&target, &values] { return std::string(name_in(values, target)); };
        return add(names, list_of(values), spell, help, read);
    }

    // 0 or 1; the bare flag means 1.
    CLI::Option* on_off(const std::string& names, bool& target, const std::string& help) {
        return choice(names, target, kSwitch, help)->expected(0, 1)->type_name("0|1");
    }

    // One that another program serves better; `instead` says which.
    void elsewhere(const std::string& names, const std::string& only, const std::string& help,
                   const std::string& instead) {
        const std::string flag = long_name(names);
        auto read = [only, flag, instead](const std::string& value) {
            if (value == only) return;
            throw Error(
                ErrorKind::usage,
                text(flag, " ", value, ": not part of this program", only.empty() ? "" : text(", expected ", only)),
                instead);
        };
        add(
            names, "", [only] { return only; }, help + " (not served)", read)
            ->configurable(!only.empty())
            ->group("");   // not shown
    }

private:
    // As few digits as read back to the same value: 0.0003, not 0.000300000014.
    template <class Number>
    static std::string shortest(Number value) {
        std::array<char, 32> digits;
        return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
    }

    // `spell`: the value that is set, which the option's default string follows.
    template <class Spell, class Read>
    CLI::Option* add(const std::string& names, const std::string& type, Spell spell, const std::string& help,
                     Read read) {
        CLI::App& app = app_;
        auto read_and_spell = [&app, flag = long_name(names), spell, read](const std::string& value) {
            read(value);
            app.get_option_no_throw(flag)->default_str(spell());
        };
        return app_.add_option_function<std::string>(names, read_and_spell, in_lines(help))
            ->group(title_)
            ->default_str(spell())
            ->type_name(type)
            ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);   // scripts override what they were given
    }
    // Lines of at most 90 characters, which with their margin fit 120 columns.
    static std::string in_lines(const std::string& words) {
        std::string lines;
        std::size_t begin = 0;   // of the line at hand
        while (words.size() - begin > 90) {
            const std::size_t end = words.rfind(' ', begin + 90);
            lines += words.substr(begin, end - begin) + "\n";
            begin = end + 1;
        }
        return lines + words.substr(begin);
    }
    static std::string long_name(const std::string& names) { return names.substr(0, names.find(',')); }

    CLI::App& app_;
    std::string title_;
};

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
    numerics.choice("--attention", o.attention, kAttentions, "whose attention: own kernels or the library's");
    numerics.choice("--grad-dtype", o.grad_dtype, kGradDtypes, "type in which gradients accumulate");
    numerics.on_off("--tf32,-f", o.tf32, "let fp32 builds multiply in TF32; bf16 builds ignore it");
    numerics.on_off("--master-weights,-w", o.master_weights,
                    "keep fp32 copies of bf16 weights; 0: stochastic rounding; fp32 builds have neither");
    numerics.number("--gelu-fusion", o.gelu_fusion, 0, 2,
                    "GELU as part of a matmul, llm.c's -ge; 0: no, 1: in forward, 2: in backward too");
    numerics.choice("--recompute,-r", o.recompute, kRecomputes, "what backward computes again instead of storing it")
        ->type_name("none|gelu|gelu+norm|block");
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

// ---------------------------------------------------------------------------------------------------------------------
// Checks across options

void check_total_batch(const Options& o) {
    const std::int64_t unit = o.tokens_per_micro_step();
    if (o.total_batch <= 0 || o.total_batch % unit == 0) return;
    const std::int64_t below = o.total_batch / unit * unit, above = below + unit;
    throw Error(ErrorKind::usage,
                text("--total-batch ", o.total_batch, ": expected a multiple of --micro-batch * --seq-len",
                     o.data_ranks() > 1 ? " * data-parallel ranks" : "", " = ", o.micro_batch, " * ", o.seq_len,
                     o.data_ranks() > 1 ? text(" * ", o.data_ranks()) : "", " = ", unit),
                below > 0 ? text("The nearest values that work are ", below, " and ", above, ".")
                          : text("The smallest value that works is ", above, "; or lower --micro-batch."));
}

void check_together(const Options& o) {
    const int own_sizes = (o.layers > 0) + (o.heads > 0) + (o.channels > 0);
    if (own_sizes != 0 && own_sizes != 3) {
        throw Error(ErrorKind::usage, text("--layers ", o.layers, " --heads ", o.heads, " --channels ", o.channels,
                                           ": expected all three of them or none"));
    }
    if (own_sizes == 3 && o.model != Options{}.model) {
        throw Error(ErrorKind::usage, text("--model ", o.model, " together with --layers, --heads and --channels"),
                    "Give either a model or sizes of your own.");
    }
    if (!o.tie_embeddings && !o.export_llmc.empty()) {
        throw Error(ErrorKind::usage, "--export-llmc together with --tie-embeddings 0",
                    "llm.c's files have no classifier of its own; checkpoints are Hugging Face folders.");
    }
    check_total_batch(o);
    check_layout(o);
    if (o.output_dir.empty() && (o.checkpoint_every > 0 || o.resume || o.keep_best)) {
        const char* flag = o.resume ? "--resume" : o.keep_best ? "--keep-best" : "--checkpoint-every";
        throw Error(ErrorKind::usage, text(flag, " without --output-dir"),
                    "Say with --output-dir where the checkpoints are.");
    }
    if (o.keep_best && o.val_every == 0) {
        throw Error(ErrorKind::usage, "--keep-best together with --val-every 0",
                    "The best state is that of the lowest validation loss.");
    }
    if (o.spike_rewind > 0 && (o.output_dir.empty() || (o.skip_loss_z <= 0 && o.skip_norm_z <= 0))) {
        throw Error(ErrorKind::usage,
                    text("--spike-rewind without ", o.output_dir.empty() ? "--output-dir" : "--skip-loss-z or --skip-norm-z"),
                    "It goes back to a checkpoint where one of these z-scores is too high.");
    }
    if (o.resume && o.overwrite) {
        throw Error(ErrorKind::usage, "--resume together with --overwrite",
                    "Give --resume to continue the run in --output-dir, --overwrite to remove it.");
    }
    if (o.max_steps == 0) wrong_value("--max-steps", "0", "-1 or an integer from 1 to 2147483647");
    if (o.max_steps > 0 && o.warmup > o.max_steps) {
        wrong_value("--warmup", text(o.warmup), text("at most --max-steps = ", o.max_steps));
    }
    if (o.val_max_batches == 0)
        wrong_value("--val-max-batches", "0", "-1 or at least 1 (--val-every 0 turns validation off)");
}

// Verbs work with a model that there is, on data that is named.
void set_defaults_of_verbs(Options& o) {
    o.model.clear();
    o.val_data.clear();
    o.val_max_batches = -1;
}

void check_verb(Verb verb, const Options& o) {
    if (o.model.empty()) {
        throw Error(ErrorKind::usage, text("train_gpt ", name_of(verb), " without --model"),
                    "Give a checkpoint, the output folder of a run, a Hugging Face folder or an llm.c model file.");
    }
    if (!o.generate.prompt.empty() && !o.generate.prompt_file.empty()) {
        throw Error(ErrorKind::usage, "--prompt together with --prompt-file", "Give one of them.");
    }
    if (verb == Verb::export_model && o.exported.output.empty()) {
        throw Error(ErrorKind::usage, "train_gpt export without --output", "Say where to write the model.");
    }
    if (verb != Verb::evaluate) {
        if (read_launch_environment().ranks <= 1) return;
        throw Error(ErrorKind::usage, text("train_gpt ", name_of(verb), " among several processes"),
                    "Start it as one process.");
    }
    if (o.val_data.empty() && !o.hellaswag) {
        throw Error(ErrorKind::usage, "train_gpt evaluate without --val-data and --hellaswag",
                    "Say what to measure the model on.");
    }
    if (o.val_max_batches == 0) wrong_value("--val-max-batches", "0", "-1 or at least 1");
    check_layout(o);
}

// ---------------------------------------------------------------------------------------------------------------------
// Messages for what the parser itself refuses

// Where the first unknown option is one that another verb takes.
void refuse_option_of_others(const CLI::App& app, Verb verb, const std::vector<std::string>& of_others) {
    const std::string flag = app.remaining().front().substr(0, app.remaining().front().find('='));
    if (std::find(of_others.begin(), of_others.end(), flag) == of_others.end()) return;
    throw Error(ErrorKind::usage, text(flag, ": not an option of `train_gpt ", name_of(verb), "`"),
                text("`", app.get_name(), " --help` lists its options."));
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); j++) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); i++) {
        std::size_t diagonal = std::exchange(row[0], i);
        for (std::size_t j = 1; j <= b.size(); j++) {
            std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
        }
    }
    return row[b.size()];
}

[[noreturn]] void unknown_option(const CLI::App& app, const std::string& given, const std::string& where) {
    std::string nearest;
    std::size_t distance = 4;
    for (const CLI::Option* option : app.get_options()) {
        std::string name = option->get_name();
        std::size_t d = edit_distance(given.substr(0, given.find('=')), name);
        if (d < distance) {
            distance = d;
            nearest = name;
        }
    }
    throw Error(ErrorKind::usage, text(where, given, ": unknown option"),
                nearest.empty() ? "`train_gpt --help` lists every option." : text("Did you mean ", nearest, "?"));
}

// An argument that belongs to no option.
[[noreturn]] void left_over(const CLI::App& app, const std::string& given) {
    std::error_code unknown;
    if (given.starts_with("-") || !std::filesystem::exists(given, unknown)) unknown_option(app, given, "");
    throw Error(ErrorKind::usage, text(given, ": this file follows no option"),
                "Was a pattern not quoted? The shell then puts all files it matches in its place, and an option takes "
                "one: write --train-data 'FOLDER/*train*.bin', with the quotes.");
}

// The parser says which key of a file it does not know, not where.
void look_for_unknown_keys(const CLI::App& app, const std::string& path) {
    std::ifstream file(path);
    std::string line;
    for (int number = 1; std::getline(file, line); number++) {
        const std::size_t begin = line.find_first_not_of(" \t"), equals = line.find('=');
        if (begin == std::string::npos || equals == std::string::npos || line.find_first_of("#;[") == begin) continue;
        const std::string key = line.substr(begin, line.find_last_not_of(" \t", equals - 1) + 1 - begin);
        const CLI::Option* option = app.get_option_no_throw((key.size() == 1 ? "-" : "--") + key);
        if (option != nullptr && !option->get_configurable()) {
            throw Error(ErrorKind::usage, text("--config ", path, ": line ", number, ": --", key,
                                               ": only on the command line"),
                        "Remove this line.");
        }
        if (option == nullptr) {
            unknown_option(app, "--" + key, text("--config ", path, ": line ", number, ": "));
        }
    }
}

}   // namespace

const char* name_of(ScheduleKind kind) { return name_in(kSchedules, kind); }
const char* name_of(AttentionKind kind) { return name_in(kAttentions, kind); }
const char* name_of(Recompute recompute) { return name_in(kRecomputes, recompute); }
const char* name_of(InitMethod method) { return name_in(kInits, method); }
const char* name_of(ContextMode mode) { return name_in(kContextModes, mode); }

void fit_to_ranks(Options& options, int dp) {
    options.dp = dp;
    check_total_batch(options);
    if (options.pp > 1) check_micro_batches(options);
}

std::vector<std::string> translate_llmc_flags(std::vector<std::string> arguments) {
    static constexpr std::array<std::pair<const char*, const char*>, 13> kTable{{
        {"-h", "--hellaswag"},
        {"-nk", "--keep-checkpoints"},
        {"-nm", "--major-checkpoint-every"},
        {"-ge", "--gelu-fusion"},
        {"-sl", "--skip-loss-z"},
        {"-sg", "--skip-norm-z"},
        {"-lg", "--log-gpu-every"},
        {"-pn", "--processes"},
        {"-pr", "--process-rank"},
        {"-pg", "--gpus-per-node"},
        {"-pi", "--init"},
        {"-pf", "--init-folder"},
        {"-ps", "--init-address"},
    }};
    if (!arguments.empty() && arguments.back() == "-h")
        arguments.back() = "--help";   // without a value it asks for help
    for (std::string& argument : arguments) {
        for (const auto& [letters, name] : kTable) {
            if (argument == letters) argument = name;
        }
    }
    return arguments;
}

// Gives switches that stand alone their value: the parser would give them their default.
static std::vector<std::string> complete_switches(const CLI::App& app, const std::vector<std::string>& arguments) {
    std::vector<std::string> result;
    for (std::size_t i = 0; i < arguments.size(); i++) {
        result.push_back(arguments[i]);
        const CLI::Option* option = app.get_option_no_throw(arguments[i]);
        bool is_switch = option != nullptr && option->get_expected_min() == 0 && option->get_expected_max() == 1;
        bool alone = i + 1 == arguments.size() || arguments[i + 1].starts_with("-");
        if (is_switch && alone && option->get_type_size() > 0) result.push_back("1");
    }
    return result;
}

// A device never ends, and what its first bytes are taken for is chance. Pipes are read: they come from other programs.
static void check_config_file(const std::vector<std::string>& arguments) {
    for (std::size_t i = 0; i < arguments.size(); i++) {
        std::string path;
        if (arguments[i] == "--config" && i + 1 < arguments.size()) path = arguments[i + 1];
        if (arguments[i].starts_with("--config=")) path = arguments[i].substr(std::string("--config=").size());
        std::error_code unknown;
        const std::filesystem::file_type type = std::filesystem::status(path, unknown).type();
        if (type != std::filesystem::file_type::character && type != std::filesystem::file_type::block &&
            type != std::filesystem::file_type::directory) {
            continue;
        }
        const char* what = type == std::filesystem::file_type::directory ? "folder" : "device";
        throw Error(ErrorKind::io, text("--config ", path, ": is a ", what, ", expected a file"),
                    "`train_gpt --print-config` writes one.");
    }
}

static void set(CLI::Option& option, const std::string& value) {
    option.add_result(value);
    option.run_callback();
}

// What nobody has given is as the run was started.
static void take_recorded(CLI::App& app, const RunRecord& record, const std::string& folder) {
    for (const auto& [name, value] : record.options) {
        CLI::Option* option = app.get_option_no_throw("--" + name);
        if (option == nullptr) {
            throw Error(ErrorKind::bad_data, text(folder, "/options.json: --", name, ": unknown option"),
                        "Resume with the program that began the run, or remove the file and give all options.");
        }
        if (option->count() == 0 && !belongs_to_one_start(name)) set(*option, value);
    }
}

static std::vector<OptionText> texts_of(const CLI::App& app) {
    std::vector<OptionText> texts;
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_configurable() && !option->get_single_name().starts_with("help") &&
            option->get_single_name() != "config") {
            texts.push_back({option->get_single_name(), option->get_default_str()});
        }
    }
    return texts;
}

CommandLine parse_command_line(std::vector<std::string> arguments) {
    CommandLine result;
    result.verb = take_verb(arguments);
    Options& o = result.options;
    if (!takes_options_of_training(result.verb)) set_defaults_of_verbs(o);
    CLI::App app("Pretrains GPT models.", "train_gpt");
    app.set_help_flag("--help", "print this and exit")->group("General");
    app.set_config("--config", "", "read options from this file, lines of name = value")->group("General");
    bool print_config = false;
    app.add_flag("--print-config", print_config, "print all options as a file for --config, and exit")
        ->group("General")
        ->configurable(false);
    app.set_version_flag("--version", version_text(), "print which version this is, and exit")->group("General");
    app.allow_config_extras(false);
    int llmc_val_batches = 0;
    std::string data_name;
    add_data_options(app, o, data_name);
    add_model_options(app, o);
    add_step_options(app, o);
    add_optimiser_options(app, o);
    add_validation_options(app, o, llmc_val_batches);
    add_output_options(app, o);
    add_numerics_options(app, o);
    Picture picture = Picture::none;
    std::string costs = "1,1,1,0";
    add_parallel_options(app, o, picture, costs);
    add_generate_options(app, o.generate);
    add_export_options(app, o.exported);
    const std::vector<std::string> of_others = keep_options_of(result.verb, app);

    check_config_file(arguments);
    arguments = complete_switches(app, translate_llmc_flags(std::move(arguments)));
    // A file given by --config may have it too: the command line wins.
    auto on_command_line = [&app, given = arguments](const char* name) {
        const CLI::Option* const option = app.get_option_no_throw(name);
        return std::ranges::any_of(given, [&](const std::string& argument) {
            return argument.starts_with("-") && app.get_option_no_throw(argument.substr(0, argument.find('='))) == option;
        });
    };
    std::reverse(arguments.begin(), arguments.end());   // the parser takes them from the back
    try {
        app.parse(arguments);
    } catch (const CLI::CallForHelp&) {
        result.print_and_exit = app.help();
        return result;
    } catch (const CLI::CallForVersion&) {
        result.print_and_exit = version_text() + "\n";
        return result;
    } catch (const CLI::ExtrasError&) {
        refuse_option_of_others(app, result.verb, of_others);
        left_over(app, app.remaining().front());
    } catch (const CLI::ConfigError& error) {
        look_for_unknown_keys(app, app["--config"]->as<std::string>());
        throw Error(
            ErrorKind::usage, text("--config ", app["--config"]->as<std::string>(), ": ", error.what()),
            "Each line is `name = value` with the long name of an option; `train_gpt --print-config` prints them all.");
    } catch (const CLI::FileError& error) {
        throw Error(ErrorKind::io, text("--config ", app["--config"]->as<std::string>(), ": ", error.what()));
    } catch (const CLI::ParseError& error) {
        throw Error(ErrorKind::usage, error.what(), "`train_gpt --help` lists every option.");
    }
    if (!takes_options_of_training(result.verb)) {
        check_verb(result.verb, o);
        if (result.verb == Verb::evaluate && app["--seq-len"]->count() == 0) o.seq_len = 0;
        result.shared = app.config_to_str(true, false);
        return result;
    }

    const bool counts_micro_batches =
        app["--val-max-micro-batches"]->count() > 0 && !on_command_line("--val-max-batches");
    if (app["--data"]->count() > 0) {
        const DataPatterns found = find_named_data(data_name);
        if (!on_command_line("--train-data")) set(*app.get_option_no_throw("--train-data"), found.train);
        if (!on_command_line("--val-data")) set(*app.get_option_no_throw("--val-data"), found.val);
    }
    if (o.resume && !o.output_dir.empty()) result.recorded = read_run_record(real_files(), o.output_dir);
    if (result.recorded) take_recorded(app, *result.recorded, o.output_dir);
    if (counts_micro_batches) {
        std::int64_t sequences = std::int64_t{llmc_val_batches} * o.micro_batch;
        set(*app.get_option_no_throw("--val-max-batches"),
            text(llmc_val_batches < 0 ? -1 : std::min<std::int64_t>(sequences, kMost)));
    }
    check_together(o);
    result.shared = app.config_to_str(true, false);
    result.texts = texts_of(app);
    if (picture != Picture::none) {
        const int ranks = o.startup.ranks > 0 ? o.startup.ranks : read_launch_environment().ranks;
        if (o.dp == 0) o.dp = static_cast<int>(std::max<std::int64_t>(1, ranks / (std::int64_t{o.pp} * o.cp * o.tp)));
        check_together(o);
        check_micro_batches(o);
        const PipelineShape shape = pipeline_shape(o);
        const DrawnCosts drawn = drawn_costs_from(costs);
        result.print_and_exit = picture == Picture::svg ? schedule_svg(shape, drawn) : schedule_text(shape, drawn);
    }
    if (print_config) result.print_and_exit = app.config_to_str(true, true);
    return result;
}
