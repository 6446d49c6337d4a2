// loss_curve RUN... [NAME=LOSS ...] [-y loss,lr,norm,tokens/s] [-x steps|tokens|hours] -o OUT.svg
//
// Draws runs (their output folders, or metrics.jsonl files) in one SVG picture, a color each: a panel for every
// quantity of -y, one below the other, over the axis of -x. Single steps are faint, their running mean is a line,
// validation losses are dots, and a dashed level stands for every NAME=LOSS given (a bigram model's, say). Tokens and
// hours are those of the steps: validation and checkpoints between them are left out. What is a file or folder is a
// run, also where its name has a "=".

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/exit_code.h"
#include "llmc/base/json.h"
#include "llmc/base/printable.h"
#include "llmc/io/file.h"

namespace {

struct Quantity {
    const char *name, *key, *title;   // of -y, of metrics.jsonl, in the picture
    bool from_zero, smooth;           // its axis begins at 0; it has a running mean
};
constexpr Quantity kQuantities[] = {{"loss", "loss", "loss (nats per token)", false, true},
                                    {"lr", "lr", "learning rate", true, false},
                                    {"norm", "grad_norm", "gradient norm", true, true},
                                    {"tokens/s", "tokens_per_s", "tokens per second", true, true}};

enum class Axis { steps, tokens, hours };

struct Point {
    double x, y;
};

struct Level {
    std::string name;
    double loss;
};

struct Run {
    std::string name;
    std::vector<Point> steps[std::size(kQuantities)], validation;
};

// A run is called as its folder.
std::string name_of(const std::string& metrics) {
    const std::filesystem::path path = std::filesystem::absolute(metrics).lexically_normal();
    return path.filename() == "metrics.jsonl" ? path.parent_path().filename().string() : path.stem().string();
}

// How far the axis goes with a step.
double advance(const Json& row, Axis axis, const std::string& where) {
    if (axis == Axis::steps) return 0;
    const Json *speed = row.find("tokens_per_s"), *time = row.find("step_ms");
    if (speed == nullptr || time == nullptr || !speed->is_number() || !time->is_number()) {
        throw Error(ErrorKind::bad_data,
                    text(where, ": no tokens_per_s and step_ms, from which tokens and hours follow"),
                    "Draw it with -x steps.");
    }
    const double seconds = time->as_number() / 1000;
    return axis == Axis::hours ? seconds / 3600 : speed->as_number() * seconds;
}

Run read_metrics(const std::string& path, Axis axis) {
    refuse_device(path);
    std::ifstream file(path);
    if (!file)
        throw Error(ErrorKind::io, text("cannot open ", path), "Give the metrics.jsonl of a run (--output-dir).");
    Run run;
    run.name = name_of(path);
    std::string line;
    double x = 0;
    for (int number = 1; std::getline(file, line); number++) {
        const Json row = [&] {
            try {
                return parse_json(line);
            } catch (const JsonSyntaxError&) {
                return Json();
            }
        }();
        const Json* step = row.find("step");
        if (step == nullptr || !step->is_number()) {
            throw Error(ErrorKind::bad_data,
                        text(path, ":", number, ": not a JSON object with a \"step\": ", line.substr(0, 200)));
        }
        if (row.find("rewind_from") != nullptr) continue;   // what it tells of is no step of the run any more
        if (row.find("loss") != nullptr) x += advance(row, axis, text(path, ":", number));
        auto add = [&](const char* key, std::vector<Point>& points) {
            const Json* value = row.find(key);
            if (value == nullptr || !value->is_number()) return;   // null: it was not finite
            points.push_back({axis == Axis::steps ? step->as_number() : x, value->as_number()});
        };
        for (std::size_t i = 0; i < std::size(kQuantities); i++) add(kQuantities[i].key, run.steps[i]);
        add("val_loss", run.validation);
    }
    return run;
}

Level parse_level(const std::string& argument) {
    std::size_t equals = argument.rfind('=');
    char* end = nullptr;
    double loss = equals == std::string::npos ? 0 : std::strtod(argument.c_str() + equals + 1, &end);
    if (equals == std::string::npos || end == argument.c_str() + equals + 1 || *end != '\0') {
        throw Error(ErrorKind::usage, text("'", argument, "' is no level"),
                    "Write NAME=LOSS, for example bigram=2.41.");
    }
    return {argument.substr(0, equals), loss};
}

// As a part of an XML text: no character of it is markup, none is one that XML cannot hold.
std::string xml(const std::string& text) {
    std::string result;
    for (char c : printable(text)) {
        switch (c) {
            case '<': result += "&lt;"; break;
            case '>': result += "&gt;"; break;
            case '&': result += "&amp;"; break;
            case '\'': result += "&apos;"; break;
            default: result += c;
        }
    }
    return result;
}

// Mean over a window centred on each point, wide enough to smooth the noise of single batches. It shrinks towards the
// begin, where curves are steep; the last points have none to their right, and are not left alone with their noise.
std::vector<Point> running_mean(const std::vector<Point>& points) {
    std::vector<double> sums{0};   // of all points before
    for (const Point& p : points) sums.push_back(sums.back() + p.y);
    const std::size_t reach = points.size() / 60;
    std::vector<Point> result;
    for (std::size_t i = 0; i < points.size(); i++) {
        const std::size_t before = std::min(reach, i), after = std::min(before, points.size() - 1 - i);
        const double sum = sums[i + after + 1] - sums[i - before];
        result.push_back({points[i].x, sum / static_cast<double>(before + after + 1)});
    }
    return result;
}

// A step of 1, 2 or 5 times a power of ten that gives about `wanted` ticks.
double tick_step(double range, int wanted) {
    double rough = range / wanted, power = std::pow(10.0, std::floor(std::log10(rough)));
    for (double factor : {1.0, 2.0, 5.0}) {
        if (rough <= factor * power) return factor * power;
    }
    return 10 * power;
}

// As few characters as tell it: 0.0003, 2.5, 468k, 1.2M, 10B.
std::string number(double value) {
    const char* unit = "";
    for (const char* next : {"k", "M", "B", "T"}) {
        if (std::abs(value) < (*unit ? 1000 : 10000)) break;
        value /= 1000;
        unit = next;
    }
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.5g%s", value, unit);
    return buffer;
}

constexpr double kWidth = 800, kLeft = 72, kRight = 776;   // of the picture and of its panels, in pixels

// What the colors stand for, in lines above the panels, where it covers nothing.
class Legend {
public:
    // `mark` is 26 wide; no label is so long that it reaches beyond a line.
    void add(const std::string& mark, std::string label) {
        if (label.size() > 90) label = label.substr(0, 87) + "...";
        const double width = 34 + 7.2 * static_cast<double>(label.size()) + 18;
        if (x_ > kLeft && x_ + width > kWidth) x_ = kLeft, y_ += 20;
        svg_ += text("<g transform='translate(", x_, ",", y_, ")'>", mark, "<text x='34' y='4'>", xml(label),
                     "</text></g>\n");
        x_ += width;
    }
    double bottom() const { return y_ + 12; }
    const std::string& svg() const { return svg_; }

private:
    double x_ = kLeft, y_ = 18;
    std::string svg_;
};

// One quantity over the axis: x from 0 to `last`, y from `low` to `high`; what is above that is drawn at the edge.
class Panel {
public:
    Panel(double top, double bottom, double last, double low, double high)
        : top_(top), bottom_(bottom), last_(last), low_(low), high_(high) {}

    double x(double at) const { return kLeft + (kRight - kLeft) * at / last_; }
    double y(double value) const {
        return bottom_ - (bottom_ - top_) * (std::clamp(value, low_, high_) - low_) / (high_ - low_);
    }

    // `x_title`: empty where the panel below says it.
    void axes(const std::string& title, const std::string& x_title) {
        double step = tick_step(last_, 6);
        for (int i = 0; i * step <= last_ * 1.0001; i++) {
            const double at = x(i * step);
            svg_ += text("<line class='grid' x1='", at, "' x2='", at, "' y1='", top_, "' y2='", bottom_, "'/>\n");
            if (x_title.empty()) continue;
            svg_ +=
                text("<text x='", at, "' y='", bottom_ + 20, "' text-anchor='middle'>", number(i * step), "</text>\n");
        }
        step = tick_step(high_ - low_, bottom_ - top_ > 200 ? 6 : 5);
        for (double i = std::ceil(low_ / step); i * step <= high_ + 1e-4 * step; i++) {
            const double at = y(i * step);
            svg_ += text("<line class='grid' x1='", kLeft, "' x2='", kRight, "' y1='", at, "' y2='", at, "'/>\n");
            svg_ +=
                text("<text x='", kLeft - 8, "' y='", at + 4, "' text-anchor='end'>", number(i * step), "</text>\n");
        }
        if (!x_title.empty()) {
            svg_ += text("<text x='", (kLeft + kRight) / 2, "' y='", bottom_ + 42, "' text-anchor='middle'>", x_title,
                         "</text>\n");
        }
        svg_ += text("<text class='title' x='", kLeft, "' y='", top_ - 8, "'>", title, "</text>\n");
    }

    void line(const std::vector<Point>& points, const char* style, const char* color) {
        svg_ += text("<polyline class='", style, "' stroke='", color, "' points='");
        for (const Point& p : points) svg_ += text(pixel(x(p.x)), ",", pixel(y(p.y)), " ");
        svg_ += "'/>\n";
    }

    void dots(const std::vector<Point>& points, const char* color) {
        for (const Point& p : points) {
            svg_ += text("<circle fill='", color, "' cx='", pixel(x(p.x)), "' cy='", pixel(y(p.y)), "' r='4'/>\n");
        }
    }

    void level(const Level& level) {
        svg_ += text("<line class='level' x1='", kLeft, "' x2='", kRight, "' y1='", y(level.loss), "' y2='",
                     y(level.loss), "'/>\n");
        for (const char* style : {"halo", "level"}) {   // twice, for not every viewer knows paint-order
            svg_ += text("<text class='", style, "' text-anchor='end' x='", kRight - 4, "' y='", y(level.loss) - 6,
                         "'>", xml(level.name), " ", number(level.loss), "</text>\n");
        }
    }

    const std::string& svg() const { return svg_; }

private:
    static double pixel(double at) { return std::round(at * 10) / 10; }

    double top_, bottom_, last_, low_, high_;
    std::string svg_;
};

// The colors of a run's training and validation losses.
struct Colors {
    const char *train, *validation;
};
constexpr Colors kColors[] = {{"#1f5fb4", "#d1495b"}, {"#2e8b57", "#145a32"}, {"#b8860b", "#6b4e00"},
                              {"#7d3c98", "#4a235a"}, {"#c0392b", "#641e16"}, {"#17a2b8", "#0b5563"}};

// What is drawn, and how.
struct CommandLine {
    std::vector<std::string> metrics;   // files
    std::vector<Level> levels;
    std::vector<std::size_t> quantities;   // of kQuantities
    Axis axis = Axis::steps;
    std::string output;
};

// Lowest and highest value of a panel, with a margin.
Point range_of(const std::vector<Run>& runs, const std::vector<Level>& levels, std::size_t quantity) {
    std::vector<double> values;
    for (const Run& run : runs) {
        for (const Point& p : run.steps[quantity]) values.push_back(p.y);
    }
    const Quantity& what = kQuantities[quantity];
    if (values.size() > 100 && what.from_zero && what.smooth) {   // a single spike does not flatten all the rest
        std::sort(values.begin(), values.end());
        const double most = 2 * values[values.size() * 99 / 100];
        for (double& value : values) value = std::min(value, most);
    }
    if (quantity == 0) {
        for (const Run& run : runs) {
            for (const Point& p : run.validation) values.push_back(p.y);
        }
        for (const Level& level : levels) values.push_back(level.loss);
    }
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    const double least = what.from_zero ? 0 : *low, margin = 0.05 * std::max(*high - least, 1e-3 * std::abs(*high));
    return {std::max(0.0, least - margin), *high + std::max(margin, 1e-9)};
}

// Where the axis ends, and what it is called. Hours become minutes or seconds where these read better.
struct FittedAxis {
    double last;
    std::string title;
};
FittedAxis fit_axis(std::vector<Run>& runs, Axis axis) {
    double last = 0;
    auto for_all = [&runs](auto&& use) {
        for (Run& run : runs) {
            for (std::vector<Point>& points : run.steps) std::ranges::for_each(points, use);
            std::ranges::for_each(run.validation, use);
        }
    };
    for_all([&last](const Point& p) { last = std::max(last, p.x); });
    if (last == 0) last = 1;
    if (axis != Axis::hours) return {last, axis == Axis::steps ? "step" : "tokens"};
    const double unit = last < 1.0 / 60 ? 3600 : last < 1 ? 60 : 1;
    for_all([unit](Point& p) { p.x *= unit; });
    return {last * unit, unit == 3600 ? "seconds" : unit == 60 ? "minutes" : "hours"};
}

std::string svg_of(std::vector<Run> runs, const CommandLine& asked) {
    const auto [last, axis] = fit_axis(runs, asked.axis);

    Legend legend;
    const bool has_loss = asked.quantities.front() == 0;
    for (std::size_t i = 0; i < runs.size(); i++) {
        const Colors colors = kColors[i % std::size(kColors)];
        legend.add(text("<line class='mean' stroke='", colors.train, "' x1='0' x2='26' y1='0' y2='0'/>"),
                   runs.size() == 1 ? text(runs[i].name, has_loss ? ": training (running mean)" : "") : runs[i].name);
        if (runs[i].validation.empty() || !has_loss) continue;
        legend.add(text("<circle fill='", colors.validation, "' cx='13' cy='0' r='4'/>"),
                   text("validation, last ", number(runs[i].validation.back().y)));
    }
    const double height = asked.quantities.size() == 1 ? 364 : 190, apart = 34;
    double top = legend.bottom() + 26;
    std::string panels;
    for (const std::size_t quantity : asked.quantities) {
        const Point range = range_of(runs, asked.levels, quantity);
        Panel panel(top, top + height, last, range.x, range.y);
        panel.axes(kQuantities[quantity].title, quantity == asked.quantities.back() ? axis : "");
        for (std::size_t i = 0; i < runs.size(); i++) {
            const Colors colors = kColors[i % std::size(kColors)];
            const std::vector<Point>& points = runs[i].steps[quantity];
            if (kQuantities[quantity].smooth) panel.line(points, "raw", colors.train);
            panel.line(kQuantities[quantity].smooth ? running_mean(points) : points, "mean", colors.train);
            if (quantity == 0) panel.dots(runs[i].validation, colors.validation);
        }
        for (const Level& level : asked.levels) {
            if (quantity == 0) panel.level(level);
        }
        panels += panel.svg();
        top += height + apart;
    }
    const double bottom = top - apart + 56;
    return text("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 ", kWidth, " ", bottom, "' width='", kWidth,
                "' height='", bottom, "'>\n<style>text{font:13px sans-serif;fill:#333} text.title{font-weight:bold}\n",
                ".grid{stroke:#e4e4e4} polyline{fill:none;stroke-linejoin:round}\n",
                ".raw{stroke-width:1;stroke-opacity:0.3} .mean{stroke-width:2}\n",
                "line.level{stroke:#777;stroke-dasharray:6 4}\n",
                "text.level{fill:#555}text.halo{stroke:white;stroke-width:3}</style>\n<rect width='", kWidth,
                "' height='", bottom, "' fill='white'/>\n", legend.svg(), panels, "</svg>\n");
}

const char* const kUsage =
    "usage: loss_curve RUN... [NAME=LOSS ...] [-y loss,lr,norm,tokens/s] [-x steps|tokens|hours] -o OUT.svg";

// The panels in the order of kQuantities, whatever the order in which they are asked for.
std::vector<std::size_t> quantities_from(const std::string& list) {
    std::vector<std::size_t> quantities;
    for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
        end = list.find(',', begin);
        const std::string name = list.substr(begin, end == std::string::npos ? end : end - begin);
        const auto found = std::ranges::find(kQuantities, name, [](const Quantity& q) { return std::string(q.name); });
        if (found == std::end(kQuantities)) {
            throw Error(ErrorKind::usage,
                        text("-y ", list,
                             ": expected loss, lr, norm or tokens/s, or several of them "
                             "with commas between"),
                        kUsage);
        }
        quantities.push_back(static_cast<std::size_t>(found - std::begin(kQuantities)));
    }
    std::sort(quantities.begin(), quantities.end());
    quantities.erase(std::unique(quantities.begin(), quantities.end()), quantities.end());
    return quantities;
}

Axis axis_from(const std::string& name) {
    if (name == "steps") return Axis::steps;
    if (name == "tokens") return Axis::tokens;
    if (name == "hours") return Axis::hours;
    throw Error(ErrorKind::usage, text("-x ", name, ": expected steps, tokens or hours"), kUsage);
}

CommandLine parse(const std::vector<std::string>& arguments) {
    CommandLine line;
    std::string panels = "loss";
    for (std::size_t i = 0; i < arguments.size(); i++) {
        const std::string& argument = arguments[i];
        if (argument == "-o" || argument == "-x" || argument == "-y") {
            if (i + 1 == arguments.size()) {
                throw Error(ErrorKind::usage,
                            text(argument, argument == "-o" ? ": no file follows" : ": no value follows"), kUsage);
            }
            const std::string& value = arguments[++i];
            if (argument == "-o") line.output = value;
            if (argument == "-x") line.axis = axis_from(value);
            if (argument == "-y") panels = value;
        } else if (std::filesystem::is_directory(argument)) {
            line.metrics.push_back(argument + "/metrics.jsonl");
        } else if (std::filesystem::exists(argument) || argument.find('=') == std::string::npos) {
            line.metrics.push_back(argument);
        } else {
            line.levels.push_back(parse_level(argument));
        }
    }
    line.quantities = quantities_from(panels);
    if (line.metrics.empty()) throw Error(ErrorKind::usage, "no run is given", kUsage);
    if (line.output.empty()) throw Error(ErrorKind::usage, "no -o: where the picture goes is not said", kUsage);
    if (!line.levels.empty() && line.quantities.front() != 0) {
        throw Error(ErrorKind::usage,
                    text(line.levels[0].name, "=", number(line.levels[0].loss), ": a level of losses, and -y ", panels,
                         " has no losses"),
                    kUsage);
    }
    for (const std::string& input : line.metrics) {
        std::error_code unknown;
        if (!std::filesystem::equivalent(input, line.output, unknown)) continue;
        throw Error(ErrorKind::usage, text("-o ", line.output, ": is ", input, ", which is to be drawn"),
                    "Name another file for the picture.");
    }
    return line;
}

}   // namespace

int main(int argc, char** argv) {
    try {
        const CommandLine line = parse({argv + 1, argv + argc});
        try_output_file(real_files(), "-o", line.output);
        std::vector<Run> runs;
        for (const std::string& path : line.metrics) {
            runs.push_back(read_metrics(path, line.axis));
            for (const std::size_t quantity : line.quantities) {
                if (!runs.back().steps[quantity].empty() || (quantity == 0 && !runs.back().validation.empty()))
                    continue;
                throw Error(ErrorKind::bad_data, text(path, " holds no ", kQuantities[quantity].key));
            }
        }
        write_whole(real_files(), line.output, svg_of(std::move(runs), line));
        return 0;
    } catch (const std::exception& error) {
        std::cerr << "loss_curve: " << words_of(error) << "\n";
        return exit_code_of(error);
    }
}
