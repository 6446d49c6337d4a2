// A pipeline's schedule for people: who does what when if the parts of the work and the links take so long.
#pragma once

#include <string>

#include "llmc/parallel/schedule.h"

// What to draw, in any unit of time: of every piece the same, and of a boundary on a link.
struct DrawnCosts {
    ActionCosts work = {};
    double transfer = 0;
};
// "F,B,W,LINK", of which the first three must be above 0, all at most 1000. Error(usage) where it is not that.
DrawnCosts drawn_costs_from(const std::string& given);

// A line for each stage, a column for each unit of time, rounded where costs are no multiples of one; and what the
// schedule costs: its makespan, the bubble both as overhead over the ideal time and as a share of the whole, and sets
// of activations that each stage keeps.
std::string schedule_text(const PipelineShape& shape, const DrawnCosts& costs = {});
std::string schedule_svg(const PipelineShape& shape, const DrawnCosts& costs = {});
