#include "llmc/report/layout_picture.h"

#include <algorithm>
#include <cstdlib>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/report/plot.h"

namespace {

constexpr int kMostRows = 32;   // rows drawn; the others look the same
constexpr int kMostRanks = 1 << 20;

int number_of(const Json& options, const char* name) {
    const Json* value = options.find(name);
    return value && value->is_text() ? std::clamp(std::atoi(value->as_text().c_str()), 0, kMostRanks) : 0;
}

std::string text_of(const Json& json, const char* name) {
    const Json* value = json.find(name);
    return value && value->is_text() ? value->as_text() : "";
}

struct Layout {
    int processes = 1, pp = 1, dp = 1, cp = 1, tp = 1;

    // Ranks are numbered as in llmc/mesh/mesh.h: tp fastest, then cp, dp, pp.
    int rank(int stage, int row, int of_tp) const { return (stage * dp * cp + row) * tp + of_tp; }
};

Layout layout_of(const Json& options, const Json& start) {
    Layout layout;
    layout.pp = std::max(number_of(options, "pp"), 1);
    layout.cp = std::max(number_of(options, "cp"), 1);
    layout.tp = std::max(number_of(options, "tp"), 1);
    if (const Json* processes = start.find("processes"))
        layout.processes = static_cast<int>(processes->as_whole(kMostRanks));
    const std::int64_t of_replica = std::int64_t{layout.pp} * layout.cp * layout.tp;   // each below 2^20
    if (of_replica > layout.processes) {
        throw JsonError(text("--pp ", layout.pp, ", --cp ", layout.cp, " and --tp ", layout.tp, " are more than the ",
                             layout.processes, " processes of the start"));
    }
    layout.dp = layout.processes / static_cast<int>(of_replica);
    return layout;
}

std::string picture(const Layout& layout) {
    constexpr int cell = 30, left = 84, top = 24, apart = 12;
    const int rows = layout.dp * layout.cp, drawn = std::min(rows, kMostRows);
    const int stage_width = std::max(layout.tp * cell, 52) + apart, width = left + layout.pp * stage_width,
              height = top + drawn * cell + (drawn < rows ? 24 : 6);
    std::string svg = text("<svg role='img' class='layout' width='", width, "' height='", height, "' viewBox='0 0 ",
                           width, " ", height, "'>\n");
    for (int stage = 0; stage < layout.pp; stage++) {
        const int x = left + stage * stage_width;
        svg += text("<text x='", x, "' y='16'>", layout.pp > 1 ? text("stage ", stage) : "", "</text>\n<g class='c",
                    stage % 6, "'>\n");
        for (int row = 0; row < drawn; row++) {
            for (int t = 0; t < layout.tp; t++) {
                const int cell_left = x + t * cell, y = top + row * cell, rank = layout.rank(stage, row, t);
                svg += text("<g><title>rank ", rank, ": stage ", stage, ", replica ", row / layout.cp, ", part ",
                            row % layout.cp, " of the sequence, tensor-parallel rank ", t,
                            "</title><rect class='cell' x='", cell_left, "' y='", y, "' width='", cell - 3,
                            "' height='", cell - 3, "'/><text x='", cell_left + (cell - 3) / 2, "' y='", y + 19,
                            "' text-anchor='middle'>", rank, "</text></g>\n");
            }
        }
        svg += "</g>\n";
    }
    for (int row = 0; row < drawn; row++) {
        svg += text("<text x='0' y='", top + row * cell + 19, "'>dp ", row / layout.cp,
                    layout.cp > 1 ? text(" cp ", row % layout.cp) : "", "</text>\n");
    }
    if (drawn < rows) svg += text("<text x='0' y='", height - 6, "'>and ", rows - drawn, " rows more</text>\n");
    return svg + "</svg>\n";
}

std::string words(const Layout& layout, const Json& options, const Json& start) {
    std::string result = text(layout.processes, layout.processes == 1 ? " process" : " processes", " on ",
                              text_of(start, "device"), ", ", text_of(start, "precision"));
    if (layout.processes == 1) return result;
    result += text(": pipeline ", layout.pp, " x data ", layout.dp, " x context ", layout.cp, " x tensor ", layout.tp);
    if (number_of(options, "zero") > 0) result += text(", ZeRO ", number_of(options, "zero"));
    if (layout.pp > 1) result += text(", schedule ", text_of(options, "pp-schedule"));
    return result;
}

}   // namespace

std::string layout_section(const Json& record) {
    const Json *options = record.find("options"), *starts = record.find("starts");
    if (!options || !starts || !starts->is_array() || starts->elements().empty()) return "";
    const Json& start = starts->elements().back();
    const Layout layout = layout_of(*options, start);
    return text("<h3>Layout</h3>\n<p>", xml(words(layout, *options, start)), "</p>\n",
                layout.processes > 1 ? text("<div class='wide'>", picture(layout), "</div>\n") : "");
}
