// The parts that the training loop works with; main owns them.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/log.h"
#include "llmc/data/loader.h"
#include "llmc/process/world.h"
#include "llmc/run/evaluation/evaluate.h"
#include "llmc/run/evaluation/sampler.h"
#include "llmc/run/metrics/metrics.h"
#include "llmc/run/options/options.h"
#include "llmc/run/step/step.h"
#include "llmc/run/stopping/agreement.h"

struct TrainerParts {
    const Options& options;
    const Log& log;
    Arena& arena;
    Step& step;
    const TokenSet& train_tokens;
    const TokenSet* val_tokens;   // null: no validation
    FileSystem& files;
    Metrics& metrics;
    Agreement& agreement;
    Sampler* sampler;                                              // null: no sampling
    const std::vector<std::unique_ptr<Evaluation>>* evaluations;   // null: none
    std::string tokenizer_file;                                    // copied into checkpoints; empty: none
    int max_steps;                                                 // steps of the whole run
    double peak_flops_per_s;                                       // per device; 0: unknown
    TrainingGroups groups = {};
    World* world = nullptr;                // all ranks and their watchdog; null: one rank
    std::vector<std::string> hosts = {};   // names by rank, for messages; empty: not known

    // The last step of this start.
    int last_step() const { return options.stop_after > 0 ? std::min(options.stop_after, max_steps) : max_steps; }
};
