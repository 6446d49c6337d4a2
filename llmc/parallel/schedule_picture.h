// A pipeline's schedule for people: who does what when if every part of the work takes the same time and links none.
#pragma once

#include <string>

#include "llmc/parallel/schedule.h"

// A line for each stage, a column for each unit of time; and what the schedule costs: its makespan, the bubble both as
// overhead over the ideal time and as a share of the whole, and sets of activations that each stage keeps.
std::string schedule_text(const PipelineShape& shape);
std::string schedule_svg(const PipelineShape& shape);
