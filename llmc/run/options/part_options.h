// Converts the command line's options to those of each part of the program.
#pragma once

#include <memory>
#include <optional>

#include "llmc/base/log.h"
#include "llmc/process/world.h"
#include "llmc/run/evaluation/evaluate.h"
#include "llmc/run/evaluation/sampler.h"
#include "llmc/run/options/options.h"

WorldOptions world_options(const Options& options);
// Returns the model that the options describe without weights. `vocab_size` 0: keeps the model's own.
ModelConfig described_model(const Options& options, std::int64_t vocab_size);
// Returns the model with which training goes on from `model`: a rotary one gets as many positions as --seq-len, if
// those are more, and the frequencies that are asked for. A scaling that the model does not have yet begins with its
// defaults, llama3 with the model's positions as the original ones. Throws Error(usage) for scaling without a factor.
ModelConfig continued_model(const ModelConfig& model, const Options& options);
MatmulOptions matmul_options(const Options& options);
// Returns the options of any rank's stage. Throws Error(usage) if a pipeline has too few layers.
StageOptions stage_options(const Options& options, const ModelConfig& config, const MeshShape& mesh,
                           const MeshCoordinates& at);

// Returns null if the run writes no samples.
std::unique_ptr<Sampler> make_sampler(const Options& options, Step& step, Arena& arena,
                                      const std::optional<Tokenizer>& tokenizer);
// An evaluation of --hellaswag or --evaluate.
struct AskedEvaluation {
    const NamedSource* source;
    std::string file;
};
std::vector<AskedEvaluation> asked_evaluations(const Options& options);
struct AskedQuestions {
    const NamedSource* source;   // as the file says
    std::string file;
    std::vector<Question> questions;
};
// Reads the questions of all asked evaluations. `tokenizer`: folder of the model's tokenizer; empty: unknown. Throws
// Error(bad_data) for questions of another tokenizer, or other questions than asked for; warns of files without a hash,
// and of contexts without the tokens that the model's tokenizer puts in front of a text.
std::vector<AskedQuestions> read_asked_questions(const Options& options, std::int64_t vocab_size,
                                                 const std::string& tokenizer, const Log& log);
// Warns of questions that lose a part of their context; with --strict throws Error(usage) for them.
std::vector<std::unique_ptr<Evaluation>> make_evaluations(std::vector<AskedQuestions> asked, const Options& options,
                                                          Step& step, Arena& arena, const Log& log);
