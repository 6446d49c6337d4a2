#include "llmc/report/scaling_picture.h"

#include <algorithm>
#include <sstream>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/io/file.h"
#include "llmc/report/curves.h"

namespace {

double above_zero(const Json& row, const char* name) {
    const double value = row.at(name).as_number();
    if (!(value > 0)) throw JsonError(text(name, ": expected a number above 0"));
    return value;
}

ScalingPoint point_from(const Json& row) {
    ScalingPoint point;
    point.scaling = row.at("scaling").as_text();
    point.ranks = static_cast<int>(row.at("ranks").as_whole(1 << 24));
    if (point.ranks == 0) throw JsonError("ranks: expected 1 or more");
    point.tokens_per_second = above_zero(row, "tokens_per_s");
    point.efficiency = above_zero(row, "efficiency");
    point.step_ms = above_zero(row, "step_ms");
    for (const auto& [group, ms] : row.at("exposed_ms").members()) point.exposed_ms[group] = ms.as_number();
    return point;
}

// Adds a point to the curve of that name and kind, which is made where there is none.
void add(std::vector<Curve>& curves, const std::string& name, const Point& point, bool ideal = false) {
    auto found =
        std::ranges::find_if(curves, [&](const Curve& curve) { return curve.name == name && curve.ideal == ideal; });
    if (found == curves.end()) found = curves.insert(curves.end(), Curve{name, {}, ideal});
    found->points.push_back(point);
}

}   // namespace

std::vector<ScalingPoint> read_scaling(const std::string& path) {
    std::vector<ScalingPoint> points;
    std::istringstream lines(read_whole(real_files(), path));
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
        number++;
        try {
            points.push_back(point_from(parse_json(line)));
        } catch (const JsonError& error) {
            throw Error(ErrorKind::bad_data, text(path, ":", number, ": ", error.what()),
                        "Write it anew with scripts/scaling.sh.");
        }
    }
    if (points.empty()) throw Error(ErrorKind::bad_data, text(path, " is empty"), "scripts/scaling.sh writes it.");
    std::ranges::stable_sort(points, {}, &ScalingPoint::ranks);
    return points;
}

std::string scaling_picture(const std::vector<ScalingPoint>& points) {
    CurvePanel speed{"tokens per second; dashed: at an efficiency of 100%", true, {}},
        efficiency{"efficiency, %", false, {}}, exposed{"exposed communication, % of a step", false, {}};
    std::vector<Tick> ticks;
    for (const ScalingPoint& point : points) {
        const double ranks = point.ranks;
        if (ticks.empty() || ticks.back().value != ranks) ticks.push_back({ranks, number(ranks)});
        add(speed.curves, point.scaling, {ranks, point.tokens_per_second});
        add(speed.curves, point.scaling, {ranks, point.tokens_per_second / point.efficiency}, true);
        add(efficiency.curves, point.scaling, {ranks, 100 * point.efficiency});
        for (const auto& [group, ms] : point.exposed_ms) {
            add(exposed.curves, text(point.scaling, ": ", group), {ranks, 100 * ms / point.step_ms});
        }
    }
    std::vector<CurvePanel> panels{speed, efficiency};
    if (!exposed.curves.empty()) panels.push_back(exposed);
    return curves_picture(panels, "ranks", ticks);
}
