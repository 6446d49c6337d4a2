// Finds and checks all inputs of a run before anything is put on the device: the tokenizer beside the data, the
// weights, the model, the checkpoint to continue from, the token files, the number of steps.
//
// Afterwards data, tokenizer and model belong together (llmc/data/corpus/corpus_check.h), a fresh run is not in a
// folder with another run's checkpoints, and all ranks continue from the same checkpoint.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "llmc/base/log.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/data/loader.h"
#include "llmc/io/folder_lock.h"
#include "llmc/model/config.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/process/world.h"
#include "llmc/run/options/options.h"
#include "llmc/run/run_record.h"
#include "llmc/run/stopping/stop_signals.h"
#include "llmc/run/training_state.h"
#include "llmc/tokenizer/tokenizer.h"

struct RunModel {
    std::string tokenizer_file{};              // beside the data, else in the folder of --model; empty: there is none
    std::optional<Tokenizer> tokenizer{};      // loaded from that file
    std::unique_ptr<WeightSource> weights{};   // null: random weights, or a checkpoint's
    ModelConfig config{};

    std::string tokenizer_folder() const { return std::filesystem::path(tokenizer_file).parent_path().string(); }
};

struct RunInputs : RunModel {
    std::unique_ptr<FolderLock> lock;   // lock of the output folder
    std::string checkpoint;             // folder of the checkpoint; empty: a fresh start
    std::optional<TokenSet> val_tokens;
    TokenSet train_tokens;
    int max_steps;                    // steps of the whole run
    std::vector<RecordedData> data;   // describes the data for options.json

    const TokenSet* validation() const { return val_tokens ? &*val_tokens : nullptr; }
    std::string origin() const;   // source of the weights, in words
};

// Finds all inputs of a run. Collective. find_model may replace --model in `options`. Throws Errors that name the
// option and the file: usage, bad_data, io; resumable after a request to stop.
RunInputs find_inputs(Options& options, World& world, const StopSignals& signals, const Log& log);

// The following are the parts of find_inputs; `train_gpt check` calls them one by one.

// Finds the model of --model. A run's folder in --model is replaced by its newest checkpoint. With a `checkpoint` to
// continue from, reads the model of that and opens nothing else. Collective.
RunModel find_model(Options& options, const std::string& checkpoint, World& world, const Log& log);
// Pairs of an option (with the source's name for a mixture) and its pattern.
using NamedPatterns = std::vector<std::pair<std::string, std::string>>;
// Checks that the data belong to the model (`checkpoint` may hold it). The first rank hashes up to `max_hashed_bytes`;
// returns how many bytes it did not hash.
std::uint64_t check_data(const Options& options, const ModelConfig& config, const std::string& checkpoint,
                         const NamedPatterns& data, std::uint64_t max_hashed_bytes);
CheckpointRanks ranks_of(World& world);
// Returns the checkpoint to continue from; empty: none. `clears_away`: also removes what a killed run left unfinished.
// Collective.
std::string find_checkpoint(const Options& options, World& world, const Log& log, bool clears_away);
// Returns the tokenizer file beside the (first) data of an option, where the tokenize tool leaves it; empty: none.
std::string find_tokenizer_file(const std::string& flag, const std::string& data);
// Checks first that files match the patterns, and that --overwrite removes nothing that the run needs.
void check_names(const Options& options);
// Checks that the files which the run will write later can be written.
void try_outputs(const Options& options);
NamedPatterns named_patterns(const std::string& option, const std::string& list);
NamedPatterns data_of_run(const Options& options);

// Restores model and optimizer from the checkpoint to continue from, and returns the rest of its state; none: a fresh
// start. A checkpoint of --branch-from that its run has pruned since is replaced by that run's next. Collective.
std::optional<RunState> resume(RunInputs& inputs, const std::optional<RunRecord>& recorded, const Options& options,
                               Step& step, World& world, const Log& log);

// Returns the number of steps: --max-steps, or one epoch. Throws Error(usage) if that is less than one step or less
// than --warmup.
int steps_of_run(const Options& options, const TokenSet& train_tokens);

// Tells the tokens the bytes of their ids and, with --document-mask, where documents begin. `tokenizer`: the one that
// made them, if known.
void apply_tokenizer(TokenSet& tokens, const Options& options, const std::optional<Tokenizer>& tokenizer);

// Reads the phases of the mixture from --data-schedule.
std::vector<MixturePhase> phases_of(const Options& options, const TokenSet& tokens);

// Throws Error(usage) if the resumed run had another seed or other training data. The state has the seed and the number
// of samples; the record (none: it was removed) describes the data. load_training_state checks the model against
// the checkpoint.
void check_same_run(const RunState& state, const std::optional<RunRecord>& recorded, const Options& options,
                    const RunInputs& now);
