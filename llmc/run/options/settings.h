// The tables that a run prints before it starts: its options, its device, its model and its data.
#pragma once

#include <string>
#include <vector>

#include "llmc/data/loader.h"
#include "llmc/model/config.h"
#include "llmc/run/metrics/peak.h"
#include "llmc/run/options/options.h"
#include "llmc/run/run_record.h"

struct RunFacts {
    std::string device_name;
    std::string precision;
    PeakFlops peak;
    AttentionKind attention;   // the one in use
    std::string weights;       // source of the weights, in words
    const ModelConfig& model;
    const TokenSet& train_tokens;
    const TokenSet* val_tokens;   // may be null
    int max_steps;
};

// `texts`: the run's options; those at their defaults are left out.
std::string settings_table(const Options& options, const std::vector<OptionText>& texts, const RunFacts& facts);

// Returns warnings about allowed but probably unintended options, one sentence each.
std::vector<std::string> option_warnings(const Options& options, const ModelConfig& model);
