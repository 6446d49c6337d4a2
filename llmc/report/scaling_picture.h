// Draws how the speed of training grows with the number of ranks, from what scripts/scaling.sh has measured.
#pragma once

#include <map>
#include <string>
#include <vector>

// Holds the speed of training on some number of ranks, measured or planned.
struct ScalingPoint {
    std::string scaling;   // "weak": a rank has the same tokens however many there are; "strong": a step has
    int ranks = 1;
    double tokens_per_second = 0;   // all ranks together
    double efficiency = 0;          // tokens per second and rank, over those of the fewest ranks
    double step_ms = 0;
    std::map<std::string, double> exposed_ms;   // each step's, by group of ranks
};

// Reads lines such as {"scaling":"weak","ranks":2,"tokens_per_s":9e5,"efficiency":0.9,"step_ms":36,
// "exposed_ms":{"dp":1.5}}. Throws Error(io), or Error(bad_data) with file and line.
std::vector<ScalingPoint> read_scaling(const std::string& path);

// Returns an SVG file with speed beside its ideal, efficiency, and exposed communication as a share of a step, over
// ranks. `points`: at least one.
std::string scaling_picture(const std::vector<ScalingPoint>& points);
