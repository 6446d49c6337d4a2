// Draws named curves over a logarithmic axis, in panels below one another: bandwidths over sizes, speeds over ranks.
#pragma once

#include <string>
#include <vector>

#include "llmc/report/plot.h"

struct Curve {
    std::string name;   // gives the color: equal names have the same one in all panels
    Points points;
    bool ideal = false;   // dashed, without dots, not in the legend
};

struct CurvePanel {
    std::string title;
    bool logarithmic;   // y, whose values must then be above 0; else y begins at 0
    std::vector<Curve> curves;
};

// Returns an SVG file. `x_ticks`: at least one, in rising order, above 0; the axis of x reaches from the first to the
// last.
std::string curves_picture(const std::vector<CurvePanel>& panels, const std::string& x_title,
                           const std::vector<Tick>& x_ticks);
