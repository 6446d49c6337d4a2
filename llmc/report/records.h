// Reads a run's metrics.jsonl (llmc/run/metrics/metrics.h) as curves to draw.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "llmc/base/json.h"

// The x axis of curves. Tokens and hours are those of the steps: validation and checkpoints are left out.
enum class CurveAxis { steps, tokens, hours };

struct Point {
    double x, y;
};
using Points = std::vector<Point>;

struct Run {
    std::string name;                       // the name of its folder
    std::map<std::string, Points> series;   // by key of metrics.jsonl; members of an object are KEY/MEMBER
    double last_step = 0;

    const Points& of(const std::string& key) const;   // empty if there is none
};

// Reads a metrics.jsonl that may still grow.
class RunReader {
public:
    explicit RunReader(std::string path, CurveAxis axis = CurveAxis::steps);

    // Reads the whole lines added since the last call; reads all of them again if the file was replaced or has become
    // shorter, as when a run resumes or rewinds. Throws Error(io), or Error(bad_data) with file and line.
    const Run& read();

private:
    void take(const std::string& line);
    void advance(const Json& row);

    std::string path_;
    CurveAxis axis_;
    Run run_;
    std::uint64_t file_ = 0, bytes_ = 0;   // the inode, and how many bytes have been read
    int lines_ = 0;
    double x_ = 0;
};

// Calls `take` with each whole line of a regular file from byte `from` on, after moving `from` behind it. The file may
// be missing, and of any size: a megabyte of it is read at a time. A line has at most 1 MiB.
void for_whole_lines(const std::string& path, std::uint64_t& from, const std::function<void(const std::string&)>& take);
