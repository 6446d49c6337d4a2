#include "llmc/report/curves.h"

#include <algorithm>
#include <iterator>

#include "llmc/base/error.h"

namespace {

constexpr const char* kColors[] = {"#1f5fb4", "#d1495b", "#2e8b57", "#b8860b", "#7d3c98", "#17a2b8",
                                   "#555555", "#c0392b", "#8bc34a", "#f58518", "#9d755d", "#72b7b2",
                                   "#e377c2", "#2c3e50", "#a0a000", "#b279a2"};
constexpr double kLeft = 72, kRight = 776, kHeight = 240, kApart = 34;   // pixels

Scale y_scale(const CurvePanel& panel) {
    std::vector<double> values;
    for (const Curve& curve : panel.curves) {
        for (const Point& p : curve.points) values.push_back(p.y);
    }
    if (!panel.logarithmic || values.empty()) return scale_of(values, {.from_zero = true, .cuts_spikes = false});
    const auto [low, high] = std::ranges::minmax(values);
    return {low / 1.2, high * 1.2, true};
}

}   // namespace

std::string curves_picture(const std::vector<CurvePanel>& panels, const std::string& x_title,
                           const std::vector<Tick>& x_ticks) {
    std::vector<std::string> names;   // by color
    auto color_of = [&names](const std::string& name) {
        const auto index = std::ranges::find(names, name) - names.begin();
        if (index == std::ssize(names)) names.push_back(name);
        return kColors[static_cast<std::size_t>(index) % std::size(kColors)];
    };
    Legend legend(kLeft, kPictureWidth);
    for (const CurvePanel& panel : panels) {
        for (const Curve& curve : panel.curves) {
            const std::size_t before = names.size();
            const char* const color = color_of(curve.name);
            if (names.size() == before) continue;
            legend.add(text("<line class='mean' stroke='", color, "' x1='0' x2='26' y1='0' y2='0'/>"), curve.name);
        }
    }
    Scale x{x_ticks.front().value, x_ticks.back().value, true};
    if (x.high == x.low) x.high = 2 * x.low;   // one point stands at the left
    double top = legend.bottom() + 26;
    std::string svg;
    for (const CurvePanel& panel : panels) {
        Panel drawn({kLeft, kRight, top, top + kHeight}, x, y_scale(panel));
        drawn.axes(xml(panel.title), &panel == &panels.back() ? x_title : "", x_ticks);
        for (const Curve& curve : panel.curves) {
            drawn.line(curve.points, curve.ideal ? "mean ideal" : "mean", color_of(curve.name));
            if (!curve.ideal) drawn.dots(curve.points, color_of(curve.name));
        }
        svg += drawn.svg();
        top += kHeight + kApart;
    }
    return picture(top - kApart + 56, legend, svg);
}
