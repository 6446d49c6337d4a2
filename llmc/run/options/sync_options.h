// Checks how and when ranks bring their updates together: --local-steps and --outer-..., --grad-compression and its own
// options, --staleness. Refuses what does not go together, and says what the rest means.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "llmc/model/config.h"
#include "llmc/run/options/options.h"

// Each throws Error(usage) and says what works. check_sync: options among each other. check_sync_ranks: with the number
// of ranks that share a step (`dp`). check_sync_fits: with the model.
void check_sync(const Options& options);
void check_sync_ranks(const Options& options);
void check_sync_fits(const Options& options, const ModelConfig& config);

// Returns true if gradients travel in every step, as they are: what predictions of time count.
bool is_predicted(const Options& options);
// Refuses other options where a run is to be predicted: by `plan`, or by the search of --layout auto.
void check_predicted(const Options& options, bool plan, bool layout);

// Returns rows for the table of settings: names and values. `steps`: of the run.
std::vector<std::pair<std::string, std::string>> sync_in_words(const Options& options, const ModelConfig& model,
                                                               int steps);

// Returns the bytes that gradients take with --grad-compression topk, over those without, but for rounding up.
double topk_share(const Options& options);

// Returns warnings about options that send no fewer bytes than the default (`options` must have `dp`), and about a
// model of which nothing is compressed.
std::vector<std::string> sync_warnings(const Options& options);
std::vector<std::string> sync_warnings(const Options& options, const ModelConfig& model);
