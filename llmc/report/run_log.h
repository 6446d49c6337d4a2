// What a run tells besides numbers, kept for its report: report.jsonl in its output folder, a JSON object a line.
//
//   {"step":N,"time":"2026-01-31T12:00:00Z","start":{"max_steps":M,"memory":{"parameters":BYTES,...}}}
//   {"step":N,"time":...,"warning":"..."}       {"step":N,"time":...,"sample":"..."}
//   {"step":N,"time":...,"rewind":M}            back to step N after step M (--spike-rewind)
//   {"step":N,"time":...,"end":"finished"}      or why it stopped; none: it still runs, or it was killed
// Lines are only added, so restarts and what came before them stay. A line that was torn by a kill is passed over.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/io/file.h"

inline constexpr const char* run_log_name = "report.jsonl";

// UTC, to the second.
std::string time_now();

class RunLog {
public:
    // `afresh`: what the file held is dropped.
    RunLog(FileSystem& files, const std::string& folder, bool afresh);
    // A line with the step, the time, and this.
    void add(int step, const std::string& key, Json value);

private:
    std::unique_ptr<File> file_;
};

// Of a folder; none where it has no such file.
std::vector<Json> read_run_log(const std::string& folder);
