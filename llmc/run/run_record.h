// What a run was asked to do, kept in its output folder beside metrics.jsonl, so that the folder explains itself and
// --resume with --output-dir alone continues it.
//
// options.json, written at every start:
//   {"format": "train_gpt run", "version": 1,
//    "options": {"train-data": "data/local/train*.bin", "lr": "0.0003", ...},
//    "data": [{"option": "train-data", "shards": 2, "tokens": 99, "hash": "0123456789abcdef",
//              "manifests": {"data/local/manifest.json": "0123456789abcdef"}}, ...],
//    "starts": [{"after_step": 0, "time": "2026-01-31T12:00:00Z", "program": "0123456789abcdef", "precision": "bf16",
//                "device": "...", "processes": 8, "hosts": {"node1": 8}, "changed": {"lr": ["0.0003", "0.001"]}}, ...]}
// "options" has every one, as --print-config spells it. "program" is the hash (xxh3) of the executable. The hash of
// data is one of all shards' hashes in their order, so the same shards have the same hash wherever they lie; where no
// manifest tells a shard's hash, its name and its number of tokens take that place. "options" are those of the last
// start, "changed" is what each start gave differently.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/io/file.h"

struct OptionText {
    std::string name, value;     // the long name, without dashes
    bool of_one_start = false;   // of one start of the program and not of the run
    bool operator==(const OptionText&) const = default;
};

// The token files behind an option.
struct RecordedData {
    std::string option;
    std::uint64_t shards = 0, tokens = 0;
    std::string hash;
    std::vector<OptionText> manifests;   // path and hash
};

struct RunRecord {
    std::vector<OptionText> options;
    std::vector<RecordedData> data;
    std::vector<Json> starts;
};

// The options that were in force from a step on: those of the start after it.
struct OptionsOfStart {
    int after_step;
    std::vector<OptionText> options;
};
// In the order of the steps; starts whose steps a later one has made anew are left out. Error(bad_data) naming `path`
// where the record tells no such history.
std::vector<OptionsOfStart> history_of(const RunRecord& record, const std::string& path);

struct ChangedOption {
    std::string name, recorded, now;
};

// The options of the run that differ; those that the record does not know are left out.
std::vector<ChangedOption> changed_options(const std::vector<OptionText>& recorded, const std::vector<OptionText>& now);

// None where the folder has none. Error(bad_data) where it is not what it should be.
std::optional<RunRecord> read_run_record(const FileSystem& files, const std::string& folder);
void write_run_record(FileSystem& files, const std::string& folder, const RunRecord& record);

// Describes the files that --train-data or --val-data names; their manifests are read, the files only opened.
RecordedData describe_data(const FileSystem& files, const std::string& flag, const std::string& pattern);

// What "starts" says of this one. `hosts`: of every process.
struct ThisStart {
    int after_step;
    std::string precision, device;
    std::vector<std::string> hosts;
    std::vector<ChangedOption> changed;
};
Json describe_start(const ThisStart& start);
