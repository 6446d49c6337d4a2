// loss_curve RUN... [NAME=LOSS ...] -o OUT.svg
//
// Draws the losses of runs (their output folders, or metrics.jsonl files) in one SVG picture, a color each: every
// training loss faintly, their running mean as a line, the validation losses as dots, and a dashed level for every
// NAME=LOSS given (a bigram model's, say). What is a file or folder is a run, also where its name has a "=".

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

struct Point {
    double step, loss;
};

struct Level {
    std::string name;
    double loss;
};

struct Curves {
    std::string name;
    std::vector<Point> train, validation;
};

// A run is called as its folder.
std::string name_of(const std::string& metrics) {
    const std::filesystem::path path = std::filesystem::absolute(metrics).lexically_normal();
    return path.filename() == "metrics.jsonl" ? path.parent_path().filename().string() : path.stem().string();
}

Curves read_metrics(const std::string& path) {
    std::ifstream file(path);
    if (!file)
        throw Error(ErrorKind::io, text("cannot open ", path), "Give the metrics.jsonl of a run (--output-dir).");
    Curves curves;
    curves.name = name_of(path);
    std::string line;
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
        auto add = [&](const char* key, std::vector<Point>& points) {
            const Json* loss = row.find(key);
            if (loss != nullptr && loss->is_number()) points.push_back({step->as_number(), loss->as_number()});
        };
        add("loss", curves.train);
        add("val_loss", curves.validation);
    }
    if (curves.train.empty() && curves.validation.empty())
        throw Error(ErrorKind::bad_data, text(path, " holds no loss"));
    return curves;
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

// Mean over a window centred on each point, wide enough to smooth the noise of single batches.
std::vector<Point> running_mean(const std::vector<Point>& points) {
    const std::size_t reach = points.size() / 60;
    std::vector<Point> result;
    for (std::size_t i = 0; i < points.size(); i++) {
        std::size_t half = std::min({reach, i, points.size() - 1 - i});   // shrinks towards both ends
        double sum = 0;
        for (std::size_t j = i - half; j <= i + half; j++) sum += points[j].loss;
        result.push_back({points[i].step, sum / static_cast<double>(2 * half + 1)});
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

std::string number(double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.6g", value);
    return buffer;
}

class Picture {
public:
    Picture(double last_step, double low, double high) : last_step_(last_step), low_(low), high_(high) {}

    double x(double step) const { return left + (right - left) * step / last_step_; }
    double y(double loss) const { return bottom - (bottom - top) * (std::min(loss, high_) - low_) / (high_ - low_); }

    void axes() {
        double step = tick_step(last_step_, 6);
        for (double s = 0; s <= last_step_ * 1.0001; s += step) {
            body_ += text("<line class='grid' x1='", x(s), "' x2='", x(s), "' y1='", top, "' y2='", bottom, "'/>\n");
            body_ += text("<text x='", x(s), "' y='", bottom + 20, "' text-anchor='middle'>", number(s), "</text>\n");
        }
        step = tick_step(high_ - low_, 6);
        for (double l = std::ceil(low_ / step) * step; l <= high_ * 1.0001; l += step) {
            body_ += text("<line class='grid' x1='", left, "' x2='", right, "' y1='", y(l), "' y2='", y(l), "'/>\n");
            body_ += text("<text x='", left - 8, "' y='", y(l) + 4, "' text-anchor='end'>", number(l), "</text>\n");
        }
        body_ += text("<text x='", (left + right) / 2, "' y='", bottom + 42, "' text-anchor='middle'>step</text>\n");
        body_ += text("<text x='", left, "' y='", top - 12, "'>loss (nats per token)</text>\n");
    }

    void line(const std::vector<Point>& points, const char* style, const char* color) {
        body_ += text("<polyline class='", style, "' stroke='", color, "' points='");
        for (const Point& p : points) body_ += text(x(p.step), ",", y(p.loss), " ");
        body_ += "'/>\n";
    }

    void dots(const std::vector<Point>& points, const char* color) {
        for (const Point& p : points) {
            body_ += text("<circle fill='", color, "' cx='", x(p.step), "' cy='", y(p.loss), "' r='4'/>\n");
        }
    }

    void level(const Level& level) {
        body_ += text("<line class='level' x1='", left, "' x2='", right, "' y1='", y(level.loss), "' y2='",
                      y(level.loss), "'/>\n");
        body_ += text("<text class='level' text-anchor='end' x='", right - 4, "' y='", y(level.loss) - 6, "'>",
                      xml(level.name), " ", number(level.loss), "</text>\n");
    }

    void legend(const std::vector<std::pair<std::string, std::string>>& entries) {
        double row = top + 8;
        for (const auto& [mark, label] : entries) {
            body_ += text("<g transform='translate(", right - 210, ",", row, ")'>", mark, "<text x='34' y='4'>", label,
                          "</text></g>\n");
            row += 20;
        }
    }

    std::string svg() const {
        return text("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 800 460' width='800' height='460'>\n",
                    "<style>text{font:13px sans-serif;fill:#333} .grid{stroke:#e4e4e4} polyline{fill:none}\n",
                    ".raw{stroke-width:1;stroke-opacity:0.35} .mean{stroke-width:2}\n",
                    "line.level{stroke:#777;stroke-dasharray:6 4} text.level{fill:#777}</style>\n",
                    "<rect width='800' height='460' fill='white'/>\n", body_, "</svg>\n");
    }

private:
    static constexpr double left = 64, right = 776, top = 36, bottom = 400;
    double last_step_, low_, high_;
    std::string body_;
};

// The colors of a run's training and validation losses.
struct Colors {
    const char *train, *validation;
};
constexpr Colors kColors[] = {{"#1f5fb4", "#d1495b"}, {"#2e8b57", "#145a32"}, {"#b8860b", "#6b4e00"},
                              {"#7d3c98", "#4a235a"}, {"#c0392b", "#641e16"}, {"#17a2b8", "#0b5563"}};

std::string svg_of(const std::vector<Curves>& runs, const std::vector<Level>& levels) {
    double low = std::numeric_limits<double>::infinity(), high = -low, last = 1;
    auto widen = [&](double loss) { low = std::min(low, loss), high = std::max(high, loss); };
    for (const Curves& run : runs) {
        for (const std::vector<Point>* points : {&run.train, &run.validation}) {
            for (const Point& p : *points) {
                widen(p.loss);
                last = std::max(last, p.step);
            }
        }
    }
    for (const Level& l : levels) widen(l.loss);
    const double margin = 0.05 * std::max(high - low, 1e-3);

    Picture picture(last, std::max(0.0, low - margin), high + margin);
    picture.axes();
    std::vector<std::pair<std::string, std::string>> legend;
    for (std::size_t i = 0; i < runs.size(); i++) {
        const Curves& run = runs[i];
        const Colors colors = kColors[i % std::size(kColors)];
        picture.line(run.train, "raw", colors.train);
        picture.line(running_mean(run.train), "mean", colors.train);
        picture.dots(run.validation, colors.validation);
        legend.push_back({text("<line class='mean' stroke='", colors.train, "' x1='0' x2='26' y1='0' y2='0'/>"),
                          runs.size() == 1 ? "training (running mean)" : xml(run.name)});
        if (run.validation.empty()) continue;
        legend.push_back({text("<circle fill='", colors.validation, "' cx='13' cy='0' r='4'/>"),
                          text("validation, last ", number(run.validation.back().loss))});
    }
    for (const Level& l : levels) picture.level(l);
    picture.legend(legend);
    return picture.svg();
}

struct CommandLine {
    std::vector<std::string> metrics;   // files
    std::vector<Level> levels;
    std::string output;
};

CommandLine parse(const std::vector<std::string>& arguments) {
    const char* const usage = "usage: loss_curve RUN... [NAME=LOSS ...] -o OUT.svg";
    CommandLine line;
    for (std::size_t i = 0; i < arguments.size(); i++) {
        const std::string& argument = arguments[i];
        if (argument == "-o") {
            if (i + 1 == arguments.size()) throw Error(ErrorKind::usage, "-o: no file follows", usage);
            line.output = arguments[++i];
        } else if (std::filesystem::is_directory(argument)) {
            line.metrics.push_back(argument + "/metrics.jsonl");
        } else if (std::filesystem::exists(argument) || argument.find('=') == std::string::npos) {
            line.metrics.push_back(argument);
        } else {
            line.levels.push_back(parse_level(argument));
        }
    }
    if (line.metrics.empty()) throw Error(ErrorKind::usage, "no run is given", usage);
    if (line.output.empty()) throw Error(ErrorKind::usage, "no -o: where the picture goes is not said", usage);
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
        std::vector<Curves> runs;
        for (const std::string& path : line.metrics) runs.push_back(read_metrics(path));
        write_whole(real_files(), line.output, svg_of(runs, line.levels));
        return 0;
    } catch (const std::exception& error) {
        std::cerr << "loss_curve: " << words_of(error) << "\n";
        return exit_code_of(error);
    }
}
