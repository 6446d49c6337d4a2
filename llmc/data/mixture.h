// Sources of training data: the files of one pattern, or several sources with weights.
//
//   data/web/ or data/web/*train*.bin               the folder's training shards (data_files.h), or what matches
//   data/web/:0.7,data/code/*train*.bin:0.3         a mixture; a source is called as its folder is
//
// Weights are shares of samples, whatever they add up to. A schedule is a file of lines "STEP NAME:WEIGHT,...": from
// that step on these weights are in force, 0 for sources without one; # begins a comment. Before the first line, the
// weights of the list are in force.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/io/file.h"

// Sum of a mixture's weights. They are whole numbers, so that their sums over samples are exact.
inline constexpr std::int64_t kWeightSum = 1'000'000'000;

struct DataSource {
    std::string name;      // empty: the only one, not part of a mixture
    std::string pattern;   // or a folder
    std::int64_t weight = kWeightSum;
    std::string words = {};   // the weight as it was given

    // Returns the option that named it, and which source it is, for messages.
    std::string flag(const std::string& option) const { return name.empty() ? option : option + " " + name; }
};

// Splits a list "PATTERN:WEIGHT,...", and leaves names empty; no entries where it is none, but one pattern.
// Error(usage) where some have no weight, or all the weight 0.
std::vector<DataSource> weighted_list(const std::string& option, const std::string& list);

// Returns the sources behind an option. Error(usage) where two have the same name, too.
std::vector<DataSource> data_sources(const std::string& option, const std::string& list);

// From sample `first` on, the weights of the sources in their order.
struct MixturePhase {
    std::uint64_t first;
    std::vector<std::int64_t> weights;
};

// Reads the phases of a schedule for sources of these names; samples_before(step) counts the samples before a step.
// Error(io, bad_data) naming file and line.
std::vector<MixturePhase> read_data_schedule(const FileSystem& files, const std::string& path,
                                             const std::vector<std::string>& names,
                                             const std::function<std::uint64_t(int step)>& samples_before);
