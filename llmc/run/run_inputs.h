// What a run starts from, found and checked before anything is put on the device: the tokenizer beside the data, the
// weights, the model, the checkpoint to continue from, the token files, the number of steps.
//
// What must hold: data, tokenizer and model belong together (llmc/data/corpus_check.h); a fresh run never begins in a
// folder that holds another run's checkpoints; all ranks continue from the same checkpoint.
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
#include "llmc/run/options.h"
#include "llmc/run/run_record.h"
#include "llmc/run/stopping/stop_signals.h"
#include "llmc/run/training_state.h"
#include "llmc/tokenizer/tokenizer.h"

struct RunModel {
    std::string tokenizer_file{};              // beside the data, else of --model's folder; empty: there is none
    std::optional<Tokenizer> tokenizer{};      // of that file
    std::unique_ptr<WeightSource> weights{};   // null: a random start
    ModelConfig config{};

    std::string tokenizer_folder() const { return std::filesystem::path(tokenizer_file).parent_path().string(); }
};

struct RunInputs : RunModel {
    std::unique_ptr<FolderLock> lock;   // of the output folder
    std::string checkpoint;             // its folder; empty: a fresh start
    std::optional<TokenSet> val_tokens;
    TokenSet train_tokens;
    int max_steps;                    // of the whole run
    std::vector<RecordedData> data;   // what train_tokens and val_tokens are, for options.json

    const TokenSet* validation() const { return val_tokens ? &*val_tokens : nullptr; }
    std::string origin() const;   // of the weights, in words
};

// Collective; --model's path may change, as in find_model. Errors name the option and the file: usage, bad_data, io;
// resumable where a signal to stop has come.
RunInputs find_inputs(Options& options, World& world, const StopSignals& signals, const Log& log);

// The parts of find_inputs that `train_gpt check` looks at one by one.

// The one that --model names, whose run's folder it makes a checkpoint's; where `checkpoint` is continued, that one's,
// and nothing else is opened. Collective.
RunModel find_model(Options& options, const std::string& checkpoint, World& world, const Log& log);
// An option, with the source's name in a mixture, and its pattern.
using NamedPatterns = std::vector<std::pair<std::string, std::string>>;
// That data belong to the model, of which `checkpoint` may be one. The first rank hashes so many bytes of them; returns
// how many it did not.
std::uint64_t check_data(const Options& options, const ModelConfig& config, const std::string& checkpoint,
                         const NamedPatterns& data, std::uint64_t max_hashed_bytes);
CheckpointRanks ranks_of(World& world);
// The checkpoint to continue from; empty: none. `clears_away`: also removes what a killed run has left unfinished.
// Collective.
std::string find_checkpoint(const Options& options, World& world, const Log& log, bool clears_away);
// The tokenizer that lies beside the (first) data of an option, as the tokenize tool leaves it there; empty: none.
std::string find_tokenizer_file(const std::string& flag, const std::string& data);
// Before all else: that files match the patterns, and that --overwrite removes nothing that the run needs.
void check_names(const Options& options);
// The files that the run writes at its end, or in the midst of it: that they can be written.
void try_outputs(const Options& options);
NamedPatterns named_patterns(const std::string& option, const std::string& list);
NamedPatterns data_of_run(const Options& options);

// The state of the run that is continued, after which model and optimizer are as they were then; none: a fresh start.
std::optional<RunState> resume(const RunInputs& inputs, const std::optional<RunRecord>& recorded,
                               const Options& options, Step& step, const Log& log);

// How many steps the run has: --max-steps, or one epoch. Error(usage) where that is less than one step or than
// --warmup.
int steps_of_run(const Options& options, const TokenSet& train_tokens);

// What --document-mask asks of these tokens, which this tokenizer has made, if it is known.
void apply_document_mask(TokenSet& tokens, const Options& options, const std::optional<Tokenizer>& tokenizer);

// What --data-schedule says of the mixture.
std::vector<MixturePhase> phases_of(const Options& options, const TokenSet& tokens);

// Error(usage) where a run that is to be resumed had another seed or other training data: its state knows the seed and
// the number of samples, its record (none: an older program's run) the data themselves. That the model is the same is
// load_training_state's to check, against the checkpoint.
void check_same_run(const RunState& state, const std::optional<RunRecord>& recorded, const Options& options,
                    const RunInputs& now);
