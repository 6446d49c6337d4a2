// The parts of a run's report that are not numbers: report.jsonl in its output folder, one JSON object per line.
//
//   {"step":N,"time":"2026-01-31T12:00:00Z","start":{"max_steps":M,"memory":{"parameters":BYTES,...}}}
//   {"step":N,"time":...,"warning":"..."}       {"step":N,"time":...,"sample":"..."}
//   {"step":N,"time":...,"rewind":M}            back to step N after step M (--spike-rewind)
//   {"step":N,"time":...,"end":"finished"}      or why it stopped; none: it still runs, or it was killed
// Lines are only appended, so restarts and earlier lines stay. read_run_log() skips a line torn by a kill.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/io/file.h"

inline constexpr const char* run_log_name = "report.jsonl";

// Returns the time in UTC, to the second.
std::string time_now();

class RunLog {
public:
    // `afresh`: empties the file first.
    RunLog(FileSystem& files, const std::string& folder, bool afresh);
    // Appends a line with the step, the time and `key`: `value`.
    void add(int step, const std::string& key, Json value);

private:
    std::unique_ptr<File> file_;
};

// Returns the lines of a folder's log; none if the file is missing.
std::vector<Json> read_run_log(const std::string& folder);
