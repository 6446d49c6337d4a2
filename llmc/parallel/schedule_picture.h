// Draws a pipeline's schedule for people: what each stage does when, if work and links take the given times.
#pragma once

#include <string>

#include "llmc/parallel/schedule.h"

// Times to draw, in any unit: the same for every piece, and for a boundary on a link.
struct DrawnCosts {
    ActionCosts work = {};
    double transfer = 0;
};
// Parses "F,B,W,LINK": the first three must be above 0, all at most 1000. Throws Error(usage) otherwise.
DrawnCosts drawn_costs_from(const std::string& given);

// Returns a line for each stage, a column for each unit of time, rounded where costs are no multiples of one; and what
// the schedule costs: its makespan, the bubble both as overhead over the ideal time and as a share of the whole, and
// sets of activations that each stage keeps.
std::string schedule_text(const PipelineShape& shape, const DrawnCosts& costs = {});
std::string schedule_svg(const PipelineShape& shape, const DrawnCosts& costs = {});
