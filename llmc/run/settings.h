// The tables that a run prints before it starts: what was asked for, on what it runs, and what follows from that.
#pragma once

#include <string>
#include <vector>

#include "llmc/data/loader.h"
#include "llmc/model/config.h"
#include "llmc/run/metrics/peak.h"
#include "llmc/run/options.h"

struct RunFacts {
    std::string device_name;
    std::string precision;
    PeakFlops peak;
    AttentionKind attention;   // that runs
    std::string weights;       // where they come from
    const ModelConfig& model;
    const TokenSet& train_tokens;
    const TokenSet* val_tokens;   // or null
    int max_steps;
};

std::string settings_table(const Options& options, const RunFacts& facts);

// What is allowed but probably not meant: one sentence each.
std::vector<std::string> doubts(const Options& options, const ModelConfig& model);
