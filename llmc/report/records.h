// What a run has recorded in its output folder (metrics.jsonl, llmc/run/metrics/metrics.h), as curves to draw.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "llmc/base/json.h"

// Over what curves are drawn. Tokens and hours are those of the steps: validation and checkpoints are left out.
enum class CurveAxis { steps, tokens, hours };

struct Point {
    double x, y;
};
using Points = std::vector<Point>;

struct Run {
    std::string name;                       // of its folder
    std::map<std::string, Points> series;   // by key of metrics.jsonl; of an object's members KEY/MEMBER
    double last_step = 0;

    const Points& of(const std::string& key) const;   // empty: there is none
};

// Reads a metrics.jsonl that may still grow.
class RunReader {
public:
    explicit RunReader(std::string path, CurveAxis axis = CurveAxis::steps);

    // Takes in the whole lines that were added since; all of them anew where the file has been written anew, as a run
    // that resumes or goes back does. Error(io), or Error(bad_data) with file and line.
    const Run& read();

private:
    void take(const std::string& line);
    void advance(const Json& row);

    std::string path_;
    CurveAxis axis_;
    Run run_;
    std::uint64_t file_ = 0, bytes_ = 0;   // which file (inode), and how much of it has been read
    int lines_ = 0;
    double x_ = 0;
};

// The whole lines of a file that may not be there, from byte `from` on, which moves behind them.
std::vector<std::string> whole_lines(const std::string& path, std::uint64_t& from);
