#include <algorithm>

#include "llmc/base/log.h"
#include "llmc/parallel/schedule_picture.h"
#include "llmc/plan/plan.h"
#include "llmc/run/options/layout_options.h"

namespace {

constexpr const char* kColors[] = {"#4c78a8", "#f58518", "#54a24b", "#e45756",
                                   "#72b7b2", "#b279a2", "#9d755d", "#bab0ac"};

// Draws a bar per stage, with its parts by size, and a line at the device's memory.
std::string memory_bars(const Plan& plan, int width) {
    const double most = std::max(plan.most_bytes(), plan.machine.memory_bytes), scale = (width - 160) / most;
    std::string svg;
    int y = 10;
    for (const StageMemory& stage : plan.memory) {
        double x = 80;
        svg += formatted("<text x=\"8\" y=\"%d\">stage %d</text>\n", y + 14, stage.stage);
        for (std::size_t i = 0; i < stage.lines.size(); i++) {
            const auto& [name, bytes] = stage.lines[i];
            svg += formatted(
                "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"20\" fill=\"%s\"><title>%s: %.2f "
                "GiB</title></rect>\n",
                x, y, bytes * scale, kColors[i % std::size(kColors)], name.c_str(), bytes / (1 << 30));
            x += bytes * scale;
        }
        svg += formatted("<text x=\"%.1f\" y=\"%d\">%.1f GiB</text>\n", x + 4, y + 14, stage.bytes / (1 << 30));
        y += 26;
    }
    const double limit = 80 + plan.machine.memory_bytes * scale;
    svg += formatted("<line x1=\"%.1f\" y1=\"4\" x2=\"%.1f\" y2=\"%d\" stroke=\"black\" stroke-dasharray=\"4\"/>\n",
                     limit, limit, y);
    return svg;
}

}   // namespace

std::string plan_svg(const Plan& plan) {
    constexpr int width = 1000;
    const int bars = 26 * static_cast<int>(plan.memory.size()) + 20;
    const int height = bars + 60 + 40 * plan.run.mesh.pp;
    // each part of backward is as long as forward, plus another forward if blocks are recomputed
    const double again = plan.run.options.recompute == Recompute::block ? 1 : 0;
    const DrawnCosts drawn{{.forward = 1, .input = 1 + again, .weight = 1}, 0};
    return formatted(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
               "font-size=\"12\">\n",
               width, height) +
           memory_bars(plan, width) + formatted("<g transform=\"translate(0 %d)\">\n", bars) +
           schedule_svg(pipeline_shape(plan.run.options), drawn) + "</g>\n</svg>\n";
}
