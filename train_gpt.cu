// train_gpt: pretrains GPT models. `train_gpt --help` lists every option, the README shows how to begin.
//
// An index of the program: options -> processes and devices -> data and model -> training loop -> exit code. The parts
// are in
//   llmc/train/options.h   the command line          llmc/data/loader.h   token files and the sample order
//   llmc/train/trainer.h   the training loop         llmc/model/gpt.h     forward and backward
//   llmc/train/training_state.h, llmc/io/checkpoint.h   saving and resuming
//   llmc/parallel/world.h  this process among the others
// Exit codes are those of ErrorKind (llmc/base/error.h), and 0.

#include <cuda_runtime.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>

#include "llmc/base/arena.h"
#include "llmc/base/exit_code.h"
#include "llmc/base/log.h"
#include "llmc/base/stream.h"
#include "llmc/data/corpus_check.h"
#include "llmc/data/tokenizer.h"
#include "llmc/io/checkpoint.h"
#include "llmc/io/folder_lock.h"
#include "llmc/model/gpt.h"
#include "llmc/model/weight_source.h"
#include "llmc/train/attention_of_run.h"
#include "llmc/train/matmul_choices.h"
#include "llmc/train/model_export.h"
#include "llmc/train/settings.h"
#include "llmc/train/trainer.h"

namespace {

cudaDeviceProp properties_of_device() {
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    return properties;
}

// Bytes of the device that are taken, by whomever.
std::size_t device_bytes_taken() {
    std::size_t free_bytes = 0, total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return total_bytes - free_bytes;
}

// The tokenizer that lies beside the data, as the tokenize tool leaves it there; empty: none.
std::string find_tokenizer_file(const Options& options) {
    const std::vector<std::string> shards = glob_files(options.train_data);
    if (shards.empty()) return "";
    const std::filesystem::path file = std::filesystem::path(shards.front()).parent_path() / "tokenizer.bin";
    return std::filesystem::exists(file) ? file.string() : std::string();
}

// The model that the options describe; `weights` where they name a file.
ModelConfig choose_model(const Options& options, const WeightSource* weights,
                         const std::optional<Tokenizer>& tokenizer) {
    if (weights != nullptr) {
        const std::int64_t own = weights->config().vocab_size;
        if (options.vocab_size > 0 && options.vocab_size != own) {
            throw Error(
                ErrorKind::usage,
                text("--vocab-size ", options.vocab_size, ": the model in ", options.model, " has ", own, " ids"),
                "Leave --vocab-size out: the model says it.");
        }
        return weights->config();
    }
    const std::int64_t gpt2_vocabulary = 50257;
    const std::int64_t vocab = options.vocab_size > 0 ? options.vocab_size
                               : tokenizer            ? static_cast<std::int64_t>(tokenizer->vocab_size())
                                                      : gpt2_vocabulary;
    if (options.layers > 0) {
        return custom_model_config(options.layers, options.heads, options.channels, options.seq_len, vocab);
    }
    ModelConfig config = model_config(options.model);
    config.vocab_size = vocab;
    config.padded_vocab_size = padded_vocab(vocab);
    check_model_config(config);
    return config;
}

// Refuses data that was not made for this model. `resumed` is a checkpoint's folder, or empty.
void check_data(const Options& options, const ModelConfig& config, const std::string& resumed, const Log& log) {
    CorpusExpectation expected;
    if (!options.overfit_single_batch) expected.data.push_back({"--train-data", options.train_data});
    if (options.val_every > 0 || options.overfit_single_batch) {
        expected.data.push_back({"--val-data", options.val_data});
    }
    expected.vocab_size = config.vocab_size;
    expected.larger_is_meant = options.vocab_size > 0;
    expected.model_folders = {options.layers > 0 ? "" : options.model, resumed};
    const bool hashes = own_rank(options.startup) == 0;   // the others would read the same bytes again
    if (!hashes) expected.max_hashed_bytes = 0;
    const std::uint64_t not_hashed = check_corpora(real_files(), expected);
    if (hashes && not_hashed > 0) {
        log.line("%.1f GiB of shards were not hashed; `tokenize --verify FOLDER` does",
                 static_cast<double>(not_hashed) / (1ull << 30));
    }
}

// The folder of the checkpoint to continue from, where --resume asks for one and there is one; else empty. Error where
// going on, or starting afresh, would mix two runs up. For the first rank alone; it holds the folder's lock.
std::string find_checkpoint(const Options& options, const Log& log) {
    const std::string& folder = options.output_dir;
    const std::vector<int> saved = list_checkpoints(real_files(), folder);
    if (!options.resume && !saved.empty()) {
        throw Error(ErrorKind::usage,
                    text("--output-dir ", folder, " holds checkpoints of a run, up to step ", saved.back()),
                    "Continue it with --resume, or give another folder.");
    }
    for (const std::string& name : remove_unfinished_checkpoints(real_files(), folder)) {
        log.line("removed %s/%s, which a killed run left unfinished", folder.c_str(), name.c_str());
    }
    std::vector<std::string> skipped;
    std::optional<FoundCheckpoint> found = newest_checkpoint(real_files(), folder, skipped);
    for (const std::string& reason : skipped) log.warning("checkpoint passed over: %s", reason.c_str());
    if (!found && !saved.empty()) {
        throw Error(ErrorKind::bad_data, text("--resume: no checkpoint in ", folder, " can be used: ", skipped.front()),
                    "Restore one from a copy, or start afresh in another folder.");
    }
    if (found) {
        log.line("resuming from %s", found->path.c_str());
    } else if (options.resume) {
        log.line("nothing to resume in %s: starting afresh", folder.c_str());
    }
    return found ? found->path : "";
}

WorldOptions world_options(const Options& options) {
    WorldOptions result;
    result.startup = options.startup;
    result.dp = options.dp;
    result.control.silence_seconds = options.peer_timeout_s;
    result.control.stall_seconds = options.stall_timeout_s;
    result.check_collectives = options.check_collectives;
    return result;
}

GptOptions model_options(const Options& options, const World& world) {
    GptOptions result;
    const bool shares = world.mesh().zero_ranks() > 1;   // one rank alone keeps everything
    result.place = {world.mesh(), world.at(), shares ? options.zero : 0};
    result.B = options.micro_batch;
    result.T = options.seq_len;
    result.attention = options.attention;
    result.recompute = options.recompute;
    result.gelu_fusion = options.gelu_fusion;
    result.matmul.allow_tf32 = options.tf32;
    return result;
}

OptimizerOptions optimizer_options(const Options& o) {
    OptimizerOptions result;
    result.beta1 = o.beta1;
    result.beta2 = o.beta2;
    result.eps = o.eps;
    result.weight_decay = o.weight_decay;
    result.grad_clip = o.grad_clip;
    result.master_weights = o.master_weights;
    result.grad_dtype = o.grad_dtype;
    result.seed = o.seed;
    return result;
}

int train(Options options, World& world, const StopSignals& signals) {
    fit_to_ranks(options, world.mesh().dp);
    const Log log(world.is_first());
    open_device(world.place().local_rank);
    const cudaDeviceProp device = properties_of_device();
    Communicator* group = world.group(MeshAxis::zero);
    FileSystem& files = real_files();

    const std::string tokenizer_file = find_tokenizer_file(options);
    std::optional<Tokenizer> tokenizer;
    if (!tokenizer_file.empty()) tokenizer = Tokenizer::load(tokenizer_file);
    std::unique_ptr<WeightSource> weights;   // null: a random start
    if (options.layers == 0 && !is_descriptor(options.model)) weights = open_weights(files, options.model);
    const ModelConfig config = choose_model(options, weights.get(), tokenizer);
    std::optional<FolderLock> lock;
    std::string checkpoint;   // its folder; empty: a fresh start
    if (world.is_first() && !options.output_dir.empty()) {
        lock.emplace(options.output_dir);
        checkpoint = find_checkpoint(options, log);
    }
    checkpoint = world.from_first(checkpoint);
    check_data(options, config, checkpoint, log);
    auto open_tokens = [&](const char* flag, const std::string& pattern) {
        signals.leave_if_received();   // every id is looked at, which can take a while
        return TokenSet(files, flag, pattern, options.seq_len, config.vocab_size);
    };
    std::optional<TokenSet> val_tokens;
    if (options.val_every > 0) val_tokens.emplace(open_tokens("--val-data", options.val_data));
    const TokenSet train_tokens = options.overfit_single_batch ? open_tokens("--val-data", options.val_data)
                                                               : open_tokens("--train-data", options.train_data);
    const int max_steps = steps_of_run(options, train_tokens);

    OwnedStream stream;
    const std::size_t taken_before = device_bytes_taken();
    Arena arena;
    Gpt model(config, model_options(options, world), arena, stream.get());
    if (weights) {
        load_parameters(model.parameters(), *weights, stream.get());
    } else {
        model.initialize(options.seed);
    }
    signals.leave_if_received();
    auto optimizer = Optimizer::make(model, optimizer_options(options), arena, group);
    std::optional<Sampler> sampler;
    if (options.sample_every > 0) {
        sampler.emplace(model, arena, tokenizer,
                        SamplerOptions{options.sample_tokens, options.temperature, options.seed});
    }
    std::optional<Evaluation> evaluation;
    if (options.hellaswag) {
        evaluation.emplace(model, arena, read_questions(files, options.hellaswag_data, config.vocab_size));
    }
    const PeakFlops peak = peak_flops(device.name, options.tf32, model.matmul(), stream.get());
    std::optional<RunState> state;
    if (!checkpoint.empty()) {
        state = load_training_state(files, checkpoint, model, *optimizer);
        check_same_run(*state, options, train_tokens);
        const std::string why_not =
            restore_matmul_choices(files, checkpoint + "/" + kMatmulChoicesFile, model.matmul());
        if (!why_not.empty()) log.warning("matmul algorithms are chosen anew: %s", why_not.c_str());
    }
    const std::string another_attention =
        settle_attention(model, options.attention, state ? state->attention : AttentionKind::auto_, world);
    if (!another_attention.empty()) log.warning("another attention than before: %s", another_attention.c_str());
    signals.leave_if_received();
    Metrics metrics(files, world.is_first() ? options.output_dir : "", state ? state->step : 0);
    const TokenSet* validation = val_tokens ? &*val_tokens : nullptr;
    Trainer trainer({options, log, arena, model, *optimizer, train_tokens, validation, files, metrics, signals,
                     sampler ? &*sampler : nullptr, evaluation ? &*evaluation : nullptr, tokenizer_file, max_steps,
                     peak.per_second, group, &world});
    if (state) trainer.restore(*state);

    const std::string origin = !checkpoint.empty() ? checkpoint : weights ? weights->description() : "random";
    log.block(settings_table(options, {device.name, precision_name, peak, model.attention(), origin, config,
                                       train_tokens, validation, max_steps}));
    log.line("device memory:");
    log.block(arena.table());
    if (group) log.line("%s", memory_by_formula(model, *optimizer, optimizer_options(options)).c_str());
    auto mebibytes_taken = [&] { return static_cast<double>(device_bytes_taken() - taken_before) / (1 << 20); };
    log.line("  the device reports %.2f MiB", mebibytes_taken());
    if (std::string doubt = doubts(options, config); !doubt.empty()) log.warning("%s", doubt.c_str());

    const RunEnd end = trainer.run();
    log.line("device memory at the end: the table %.2f MiB, the device reports %.2f MiB",
             static_cast<double>(arena.bytes()) / (1 << 20), mebibytes_taken());
    if (!options.export_llmc.empty()) {
        save_llmc_model(files, options.export_llmc, model, WholeTensors(group, arena, stream.get()));
    }
    return end == RunEnd::signal ? static_cast<int>(ErrorKind::resumable) : 0;
}

// Among several processes errors say whose they are; what all of them find alike, before they have met, only one says.
std::string whose(const StartupOptions& startup) {
    const int ranks = startup.ranks > 0 ? startup.ranks : read_launch_environment().ranks;
    return ranks > 1 ? text("rank ", own_rank(startup), ": ") : "";
}

}   // namespace

int main(int argc, char** argv) {
    const StopSignals signals;   // from the start, so that none finds the program unprepared
    std::string who;
    try {
        const CommandLine command_line = parse_command_line({argv + 1, argv + argc});
        const Options& options = command_line.options;
        if (!command_line.print_and_exit.empty()) {
            if (own_rank(options.startup) == 0) std::fputs(command_line.print_and_exit.c_str(), stdout);
            return 0;
        }
        who = whose(options.startup);
        World world(world_options(options));
        return world.guarded([&] {
            world.require_same("the command line", command_line.shared);
            return train(options, world, signals);
        });
    } catch (const std::exception& error) {
        const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
        std::fflush(stdout);
        std::fprintf(stderr, "train_gpt: %s%s%s\n", who.c_str(),
                     exit_code_of(error) == static_cast<int>(ErrorKind::resumable) ? "" : "error: ",
                     no_memory ? "this machine has too little memory for what was asked" : error.what());
        return exit_code_of(error);
    }
}
