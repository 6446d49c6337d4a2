#include "llmc/run/run_inputs.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "llmc/base/refuse.h"
#include "llmc/checkpoint/model_file.h"
#include "llmc/data/corpus/corpus_check.h"
#include "llmc/data/data_files.h"
#include "llmc/model/named_models.h"
#include "llmc/run/choices/matmul_choices.h"
#include "llmc/run/loop/checkpoint_keeper.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/part_options.h"
#include "llmc/tokenizer/text_ids.h"

namespace {

// Returns the model that the options describe, or `of_file`, the model of the file they name, after checking it.
ModelConfig choose_model(const Options& options, const ModelConfig* of_file,
                         const std::optional<Tokenizer>& tokenizer) {
    if (of_file != nullptr) {
        const std::int64_t vocabulary = of_file->vocab_size;
        refuse_if(
            options.vocab_size > 0 && options.vocab_size != vocabulary,
            text("--vocab-size ", options.vocab_size, ": the model in ", options.model, " has ", vocabulary, " ids"),
            "Leave --vocab-size out: the model says it.");
        ModelConfig config = *of_file;
        const bool is_rotary = of_file->positions == PositionKind::rotary;
        for (const ModelField& field : model_fields()) {
            const auto given = options.architecture.find(field.name);
            if (given == options.architecture.end()) continue;
            ModelConfig requested = *of_file;
            field.set(requested, given->second);
            if (field.of_training) field.set(config, given->second);
            const bool may_differ = field.of_training || (is_rotary && field.may_change);
            refuse_if(!may_differ && !field.same(requested, *of_file),
                      text("--", field.name, " ", field.value_of(requested), ": the model in ", options.model, " has ",
                           field.value_of(*of_file)),
                      text("Leave --", field.name, " out: the model says it."));
        }
        check_model_config(config);
        return config;
    }
    const std::int64_t vocab = options.vocab_size > 0 ? options.vocab_size
                               : tokenizer            ? static_cast<std::int64_t>(tokenizer->vocab_size())
                                                      : 0;
    return described_model(options, vocab);
}

// Logs what a model's rotary positions are from now on, where that is new.
void log_positions(const ModelConfig& before, const ModelConfig& now, const Log& log) {
    std::string changes;
    for (const ModelField& field : model_fields()) {
        if (!field.may_change || field.same(before, now)) continue;
        changes += text(changes.empty() ? "" : ", ", field.name, " ", field.value_of(now), " (until now ",
                        field.value_of(before), ")");
    }
    if (!changes.empty()) log.line("rotary positions change: %s", changes.c_str());
}

// Throws Error(usage) if the folder holds a run's checkpoints or records of steps.
void check_no_results(const std::string& folder, const std::vector<int>& saved) {
    const std::filesystem::path records = folder + "/metrics.jsonl";
    const bool has_records = std::filesystem::is_regular_file(records) && std::filesystem::file_size(records) > 0;
    if (saved.empty() && !has_records) return;
    throw Error(ErrorKind::usage,
                saved.empty() ? text("--output-dir ", folder, " holds the records of a run, in ", records.string())
                              : text("--output-dir ", folder, " holds checkpoints of a run, up to step ", saved.back()),
                "Continue it with --resume, give another folder, or remove the results with --overwrite.");
}

// Refuses a --model inside the folder whose results --overwrite removes.
void check_overwrite(const Options& options) {
    if (!options.overwrite || options.layers > 0 || is_descriptor(options.model)) return;
    const auto model = std::filesystem::weakly_canonical(options.model).string() + "/",
               folder = std::filesystem::weakly_canonical(options.output_dir).string() + "/";
    refuse_if(model.starts_with(folder),
              text("--model ", options.model, " lies in --output-dir ", options.output_dir,
                   ", whose results --overwrite removes"),
              "Give another output folder, or continue the run there with --resume.");
}

// Returns the checkpoint that --branch-from names; empty without the option. Collective.
std::string find_branch(const Options& options, World& world, const Log& log) {
    std::string from = options.branch_from;
    while (from.size() > 1 && from.ends_with('/')) from.pop_back();
    if (from.empty()) return "";
    const CheckpointRanks ranks = ranks_of(world);
    std::string damage;
    if (ranks.gather(real_files().exists(from + "/run.json") ? "one" : "")[0] == "one") {
        damage = find_damage(real_files(), from, CheckpointUse::resume, ranks);
    } else {
        std::vector<PassedOver> passed_over;
        const auto found = newest_checkpoint(real_files(), from, passed_over, ranks);
        warn_of(passed_over, log);
        if (!found) damage = "there is no checkpoint in it that can be used";
        if (found) from = found->path;
    }
    if (!damage.empty()) {
        throw Error(ErrorKind::bad_data, text("--branch-from ", options.branch_from, ": ", damage),
                    "Give a checkpoint (step_...) of a run, or its output folder.");
    }
    log.line("branching off from %s", from.c_str());
    return from;
}

// Removes the folder's results for --overwrite, after all checks. Records are truncated when they are opened.
void remove_results(const std::string& folder, const Log& log) {
    for (int step : list_checkpoints(real_files(), folder)) {
        remove_checkpoint(real_files(), folder, step);
        log.line("--overwrite: removed %s/%s", folder.c_str(), checkpoint_name(step).c_str());
    }
    real_files().remove_all(folder + "/" + kBestFolder);
    real_files().remove_all(folder + "/options.json");
}

// Takes the tokenizer in the folder of the model that the run starts from.
void take_tokenizer_of(const std::string& folder, const ModelConfig& config, RunModel& model, const Log& log) {
    for (const char* name : {"tokenizer.json", "tokenizer.bin"}) {
        const std::string path = folder + "/" + name;
        if (!std::filesystem::exists(path)) continue;
        try {
            Tokenizer tokenizer = Tokenizer::load(path);
            if (tokenizer.vocab_size() > config.vocab_size) return;
            if (const std::string eos = warning_of_unknown_eos(tokenizer); !eos.empty()) log.warning("%s", eos.c_str());
            model.tokenizer = std::move(tokenizer);
            model.tokenizer_file = path;
            return;
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::bad_data) throw;
            log.warning("checkpoints have no tokenizer, for that of --model cannot be used: %s",
                        error.message().c_str());
            return;
        }
    }
}

}   // namespace

std::string find_tokenizer_file(const std::string& flag, const std::string& data) {
    const std::vector<std::string> shards = find_data_files(flag, data_sources(flag, data)[0].pattern);
    if (shards.empty()) return "";
    const std::filesystem::path file = std::filesystem::path(shards.front()).parent_path() / "tokenizer.bin";
    return std::filesystem::exists(file) ? file.string() : std::string();
}

CheckpointRanks ranks_of(World& world) {
    return {world.rank(), world.ranks(), [&](const std::string& own) { return world.gather_text(own); }};
}

// All ranks verify the checkpoint together; the first one, which holds the folder's lock, lists the folder. Throws an
// Error if resuming, or starting afresh, would mix two runs.
std::string find_checkpoint(const Options& options, World& world, const Log& log, bool clears_away) {
    const std::string& folder = options.output_dir;
    std::vector<int> saved;
    if (world.is_first()) {
        saved = list_checkpoints(real_files(), folder);
        if (!options.resume && !options.overwrite) check_no_results(folder, saved);
        for (const std::string& of : {folder, folder + "/" + kBestFolder}) {
            if (!clears_away) break;
            for (const std::string& name : remove_unfinished_checkpoints(real_files(), of)) {
                log.line("removed %s/%s, which a killed run left unfinished", of.c_str(), name.c_str());
            }
        }
    }
    if (options.overwrite) return find_branch(options, world, log);
    std::vector<PassedOver> passed_over;
    std::optional<FoundCheckpoint> found = newest_checkpoint(real_files(), folder, passed_over, ranks_of(world));
    if (!found || !clears_away || !world.is_first()) {
        warn_of(passed_over, log);
    } else {
        set_aside(real_files(), folder, passed_over, log);
    }
    if (!found && !passed_over.empty()) {
        throw Error(ErrorKind::bad_data,
                    text("--resume: no checkpoint in ", folder, " can be used: ", passed_over.front().damage),
                    "Restore one from a copy, or start afresh in another folder.");
    }
    if (!found && !options.branch_from.empty()) return find_branch(options, world, log);
    if (found) {
        log.line("resuming from %s", found->path.c_str());
    } else if (options.resume) {
        log.line("nothing to resume in %s: starting afresh", folder.c_str());
    }
    return found ? found->path : "";
}

NamedPatterns named_patterns(const std::string& option, const std::string& list) {
    NamedPatterns data;
    for (const DataSource& source : data_sources(option, list)) data.emplace_back(source.flag(option), source.pattern);
    return data;
}

NamedPatterns data_of_run(const Options& options) {
    NamedPatterns data;
    if (!options.overfit_single_batch) data = named_patterns("--train-data", options.train_data);
    if (options.val_every > 0 || options.overfit_single_batch) {
        std::ranges::copy(named_patterns("--val-data", options.val_data), std::back_inserter(data));
    }
    return data;
}

void check_names(const Options& options) {
    for (const auto& [flag, pattern] : data_of_run(options)) {
        for (const std::string& path : data_files(flag, pattern)) refuse_device(path, flag, true);
    }
    check_overwrite(options);
}

RunModel find_model(Options& options, const std::string& checkpoint, World& world, const Log& log) {
    RunModel model;
    model.tokenizer_file = find_tokenizer_file("--train-data", options.train_data);
    if (!model.tokenizer_file.empty()) {   // the folder may also have a tokenizer file that can encode
        model.tokenizer =
            Tokenizer::load(options.sample_prompt.empty() ? model.tokenizer_file : model.tokenizer_folder());
    }
    std::optional<ModelConfig> of_file, before;
    if (!checkpoint.empty()) before = hugging_face_model_config(real_files(), checkpoint);
    if (options.layers == 0 && !is_descriptor(options.model)) {
        if (checkpoint.empty()) {
            model.weights = find_weights(real_files(), options.model, log, ranks_of(world), "", options.ignore_tensors);
        }
        of_file = before = model.weights ? model.weights->config() : *before;
    }
    if (of_file && model.tokenizer_file.empty()) take_tokenizer_of(options.model, *of_file, model, log);
    model.config = choose_model(options, of_file ? &*of_file : nullptr, model.tokenizer);
    const bool is_named = !before && options.layers == 0 && options.arch.empty();
    const std::int64_t published = is_named ? published_vocabulary(options.model) : 0;
    if (published > 0 && published != model.config.vocab_size) {
        log.line("vocabulary: %lld, %s; %s was published with %lld, which `train_gpt plan` takes",
                 static_cast<long long>(model.config.vocab_size),
                 options.vocab_size > 0 ? "as --vocab-size says"
                 : model.tokenizer      ? "the data's"
                                        : "GPT-2's, for no tokenizer is beside --train-data",
                 options.model.c_str(), static_cast<long long>(published));
    }
    if (before && before->positions == PositionKind::rotary && model.config.positions == PositionKind::rotary) {
        const ModelConfig now = continued_model(*before, options);   // also of a run whose model options describe
        for (const ModelField& field : model_fields()) {
            if (field.may_change) field.set(model.config, field.get(now));
        }
        log_positions(*before, now, log);
    }
    const std::string beyond = beyond_llmc(model.config);
    refuse_if(!options.export_llmc.empty() && !beyond.empty(), text("--export-llmc: the model has ", beyond),
              "llm.c's files hold no such model; checkpoints do.");
    check_model_fits(options, model.config);
    return model;
}

std::uint64_t check_data(const Options& options, const ModelConfig& config, const std::string& checkpoint,
                         const NamedPatterns& data, std::uint64_t max_hashed_bytes) {
    CorpusExpectation expected;
    for (const auto& [flag, pattern] : data) expected.data.push_back({flag, pattern});
    expected.vocab_size = config.vocab_size;
    expected.larger_is_meant = options.vocab_size > 0;
    const bool is_described = checkpoint.empty() && (options.layers > 0 || is_descriptor(options.model));
    if (is_described && options.vocab_size == 0 && find_tokenizer_file("--train-data", options.train_data).empty()) {
        expected.why_that_size =
            text(", GPT-2's, because no tokenizer.bin is beside --train-data ", options.train_data);
    }
    expected.model_folders = {options.layers > 0 || !checkpoint.empty() ? "" : options.model, checkpoint};
    const bool hashes = own_rank(options.startup) == 0;   // the other ranks would read the same bytes again
    expected.max_hashed_bytes = hashes ? max_hashed_bytes : 0;
    const std::uint64_t not_hashed = check_corpora(real_files(), expected);
    return hashes ? not_hashed : 0;
}

std::optional<RunState> resume(RunInputs& inputs, const std::optional<RunRecord>& recorded, const Options& options,
                               Step& step, World& world, const Log& log) {
    if (inputs.checkpoint.empty()) return std::nullopt;
    RunState state;
    std::vector<std::string> types;
    const auto load = [&](const std::string& checkpoint) {
        state = load_training_state(real_files(), checkpoint, tensors_of(step), step.stage().stream(),
                                    options.optimizer, options.reset_optimizer);
        if (!options.reset_optimizer) types = about_types(real_files(), checkpoint, tensors_of(step));
    };
    inputs.checkpoint = read_while_there(real_files(), inputs.checkpoint, ranks_of(world), load,
                                         [&] { return find_checkpoint(options, world, log, false); });
    check_same_run(state, recorded, options, inputs);
    for (const std::string& words :
         step.sync().about_resumed(real_files(), inputs.checkpoint, state.step, options.reset_optimizer)) {
        log.line("%s", words.c_str());
    }
    for (const std::string& words : types) log.line("%s", words.c_str());
    if (state.loader.T != options.seq_len) {
        log.line("--seq-len %d: samples had %lld tokens until now: a new epoch begins", options.seq_len,
                 static_cast<long long>(state.loader.T));
    }
    const std::string why_not =
        restore_matmul_choices(real_files(), inputs.checkpoint + "/" + kMatmulChoicesFile, step.stage().matmul());
    if (!why_not.empty()) log.warning("matmul algorithms are chosen anew: %s", why_not.c_str());
    return state;
}

std::string RunInputs::origin() const {
    return !checkpoint.empty() ? checkpoint : weights ? weights->description() : "random";
}

void try_outputs(const Options& options) {
    if (!options.export_llmc.empty()) try_output_file(real_files(), "--export-llmc", options.export_llmc);
    if (!options.trace.empty()) try_output_file(real_files(), "--trace", options.trace);
}

RunInputs find_inputs(Options& options, World& world, const StopSignals& signals, const Log& log) {
    check_names(options);
    if (world.is_first()) try_outputs(options);
    std::unique_ptr<FolderLock> lock;
    std::string checkpoint;
    auto look_into_folder = [&] {
        if (options.output_dir.empty()) return;
        if (world.is_first()) lock = std::make_unique<FolderLock>(options.output_dir);
        checkpoint = find_checkpoint(options, world, log, true);
        checkpoint = world.from_first(checkpoint);   // the others wait until the first one has checked the folder
    };
    const bool continues = options.resume || !options.branch_from.empty();
    if (continues) look_into_folder();   // before find_model, because a checkpoint makes --model unnecessary
    RunModel model = find_model(options, checkpoint, world, log);
    if (!continues) look_into_folder();
    if (const std::string file = options.output_dir + "/lock"; !options.output_dir.empty()) {
        world.require_same(file + ", in the folder where all ranks write checkpoints,",
                           real_files().exists(file) ? read_whole(real_files(), file) : "nothing");
        if (!lock) lock = std::make_unique<FolderLock>(options.output_dir, FolderLock::As::other);
    }
    if (const std::uint64_t not_hashed =
            check_data(options, model.config, checkpoint, data_of_run(options), CorpusExpectation{}.max_hashed_bytes)) {
        log.line("%.1f GiB of shards were not hashed; `train_gpt check` and `tokenize --verify FOLDER` do",
                 static_cast<double>(not_hashed) / (1ull << 30));
    }
    auto open_tokens = [&](const char* flag, const std::string& pattern) {
        signals.leave_if_received();   // reads every id, which can take a while
        TokenSet tokens(real_files(), flag, pattern, options.seq_len, model.config.vocab_size);
        apply_tokenizer(tokens, options, model.tokenizer);
        return tokens;
    };
    std::optional<TokenSet> val_tokens;
    if (options.val_every > 0) {
        val_tokens.emplace(open_tokens("--val-data", options.val_data));
        if (!val_tokens->knows_text_bytes()) {
            log.line("validation without bits per byte: there is no tokenizer beside the data or the model");
        }
    }
    TokenSet train_tokens = options.overfit_single_batch ? open_tokens("--val-data", options.val_data)
                                                         : open_tokens("--train-data", options.train_data);
    const int max_steps = steps_of_run(options, train_tokens);
    const auto samples = static_cast<std::uint64_t>(options.tokens_per_step() / options.seq_len);
    if (samples > train_tokens.windows() && !options.overfit_single_batch) {
        log.warning("a step takes %llu samples, --train-data has %llu: they are repeated within a step",
                    static_cast<unsigned long long>(samples), static_cast<unsigned long long>(train_tokens.windows()));
    }
    std::vector<RecordedData> data;
    for (const auto& [flag, pattern] : data_of_run(options)) {
        data.push_back(describe_data(real_files(), flag, pattern));
    }
    if (options.overwrite && world.is_first()) remove_results(options.output_dir, log);
    return {std::move(model),        std::move(lock), std::move(checkpoint), std::move(val_tokens),
            std::move(train_tokens), max_steps,       std::move(data)};
}

int steps_of_run(const Options& options, const TokenSet& train_tokens) {
    if (options.max_steps > 0) return options.max_steps;
    const auto tokens = static_cast<std::int64_t>(train_tokens.windows()) * options.seq_len;
    const auto steps = static_cast<std::uint64_t>(options.tokens_by_step().steps_within(tokens));
    refuse_if(steps == 0,
              text("one epoch of --train-data has ", train_tokens.windows(),
                   " samples of --seq-len tokens, a step takes ", options.tokens_per_step() / options.seq_len),
              "Lower --total-batch, or give --max-steps.");
    refuse_if(static_cast<std::uint64_t>(options.warmup) > steps,
              text("--warmup ", options.warmup, ": expected at most the ", steps, " steps of one epoch"));
    return static_cast<int>(std::min<std::uint64_t>(steps, INT32_MAX));
}

void apply_tokenizer(TokenSet& tokens, const Options& options, const std::optional<Tokenizer>& tokenizer) {
    if (tokenizer) tokens.tell_text_bytes(tokenizer->text_bytes());
    if (!options.document_mask) return;
    refuse_if(
        !tokenizer, "--document-mask 1: there is no tokenizer beside the token files or the model",
        "Its tokenizer.bin says which token begins a document; `tokenize` and data/*.sh leave it beside the data.");
    tokens.tell_documents_apart({static_cast<std::int32_t>(tokenizer->end_of_text()), options.boundary_loss});
}

std::vector<MixturePhase> phases_of(const Options& options, const TokenSet& tokens) {
    if (options.data_schedule.empty()) return {};
    refuse_if(!tokens.is_mixture(), text("--data-schedule ", options.data_schedule, ": --train-data is one source"),
              "Give a mixture, as in --data web:0.7,code:0.3.");
    std::vector<std::string> names;
    for (const TokenSet::Source& source : tokens.sources()) names.push_back(source.data.name);
    return read_data_schedule(real_files(), options.data_schedule, names,
                              [&options, tokens = options.tokens_by_step()](int step) {
                                  return static_cast<std::uint64_t>(tokens.sum(0, step - 1) / options.seq_len);
                              });
}

void check_same_run(const RunState& state, const std::optional<RunRecord>& recorded, const Options& options,
                    const RunInputs& now) {
    const std::string by = text(", by ", now.checkpoint, "/run.json");
    refuse_if(state.seed != options.seed,
              text("--seed ", options.seed, ": the run to resume was started with --seed ", state.seed, by),
              "The order of samples follows from the seed: give the same one.");
    const bool is_mixture = !state.loader.sources.empty() || now.train_tokens.is_mixture();   // the loader checks
    const bool same_length = state.loader.T == now.train_tokens.T();
    refuse_if(!is_mixture && same_length && state.windows != now.train_tokens.windows(),
              text("the run to resume had ", state.windows, " samples an epoch, --train-data with --seq-len ",
                   options.seq_len, " has ", now.train_tokens.windows(), by),
              "Resume with the same data and sequence length.");
    if (!recorded) return;
    const std::string trained_on = now.data.front().option.substr(0, now.data.front().option.find(' '));
    for (const RecordedData& was : recorded->data) {
        const auto is = std::ranges::find(now.data, was.option, &RecordedData::option);
        if (!was.option.starts_with(trained_on) || is == now.data.end()) continue;
        refuse_if(
            is->hash != was.hash,
            text("--", is->option, ": ", is->shards, " file(s) of ", is->tokens, " tokens with the hash ", is->hash,
                 "; the run to resume had ", was.shards, " of ", was.tokens, " with the hash ", was.hash),
            "Resume with the same data. They may lie elsewhere, but must be the same files.");
    }
}
