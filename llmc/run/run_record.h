// Records a run's options in its output folder, beside metrics.jsonl, so that the folder explains itself and --resume
// with --output-dir alone continues it.
//
// options.json, written at every start:
//   {"format": "train_gpt run", "version": 1,
//    "options": {"train-data": "data/local/train*.bin", "lr": "0.0003", ...},
//    "data": [{"option": "train-data", "shards": 2, "tokens": 99, "hash": "0123456789abcdef",
//              "manifests": {"data/local/manifest.json": "0123456789abcdef"}}, ...],
//    "starts": [{"after_step": 0, "time": "2026-01-31T12:00:00Z", "program": "0123456789abcdef", "precision": "bf16",
//                "device": "...", "processes": 8, "hosts": {"node1": 8}, "changed": {"lr": ["0.0003", "0.001"]}}, ...]}
// "options" has every option of the last start, as --print-config prints it. "program" is the hash (xxh3) of the
// executable. "hash" of data hashes all shards' hashes in their order, so the same shards have the same hash in any
// folder; a shard without a hash in a manifest counts by its name and number of tokens. "changed" has the options that
// each start gave differently: [before, since].
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/io/file.h"

struct OptionText {
    std::string name, value;     // long name, without dashes
    bool of_one_start = false;   // belongs to one start of the program, not to the run
    bool is_default = false;     // not kept in files
    bool operator==(const OptionText&) const = default;
};

// The token files of an option.
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

// The options that were in force from a step on: those of the start after it, and how many processes it had.
struct OptionsOfStart {
    int after_step, processes;
    std::vector<OptionText> options;
};
// In the order of the steps; starts whose steps a later one has made anew are left out. Error(bad_data) naming `path`
// where the record tells no such history.
std::vector<OptionsOfStart> history_of(const RunRecord& record, const std::string& path);

struct ChangedOption {
    std::string name, recorded, now;
};

// Returns the run's options that differ; none where nothing is recorded yet.
std::vector<ChangedOption> changed_options(const std::vector<OptionText>& recorded, const std::vector<OptionText>& now);

// Returns nothing if the folder has no record. Throws Error(bad_data) if it is malformed.
std::optional<RunRecord> read_run_record(const FileSystem& files, const std::string& folder);
void write_run_record(FileSystem& files, const std::string& folder, const RunRecord& record);

// Describes the files that --train-data or --val-data names. Reads manifests beside the files; of the files themselves
// only the headers.
RecordedData describe_data(const FileSystem& files, const std::string& flag, const std::string& pattern);

// Entry of "starts" for this start. `hosts`: one per process.
struct ThisStart {
    int after_step;
    std::string precision, device;
    std::vector<std::string> hosts;
    std::vector<ChangedOption> changed;
};
Json describe_start(const ThisStart& start);
