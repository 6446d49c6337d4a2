// What each part of the program is told of the command line's options.
#pragma once

#include <memory>
#include <optional>

#include "llmc/process/world.h"
#include "llmc/run/evaluation/evaluate.h"
#include "llmc/run/evaluation/sampler.h"
#include "llmc/run/options.h"

WorldOptions world_options(const Options& options);
// The model that the options describe without weights. `vocab_size` 0: as the model has it by itself.
ModelConfig described_model(const Options& options, std::int64_t vocab_size);
// Of any rank. Error(usage) where there are too few layers for a pipeline.
StageOptions stage_options(const Options& options, const ModelConfig& config, const MeshShape& mesh,
                           const MeshCoordinates& at);

// Null where the run has none.
std::unique_ptr<Sampler> make_sampler(const Options& options, Step& step, Arena& arena,
                                      const std::optional<Tokenizer>& tokenizer);
// --hellaswag and --eval, in the order of question_sources. Error(usage) where --eval is no such list.
struct AskedEvaluation {
    const NamedSource* source;
    std::string file;
};
std::vector<AskedEvaluation> asked_evaluations(const Options& options);
// `tokenizer`: the folder of the model's; empty: it is not known. Error(bad_data) where the questions are of another,
// or other questions than were asked for.
std::vector<std::unique_ptr<Evaluation>> make_evaluations(const Options& options, Step& step, Arena& arena,
                                                          const std::string& tokenizer);
