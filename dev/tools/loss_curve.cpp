// loss_curve METRICS.jsonl OUT.svg [NAME=LOSS ...]
//
// Draws the losses of a run's metrics.jsonl as an SVG picture: every training loss faintly, their running mean as a
// line, the validation losses as dots, and a dashed level for every NAME=LOSS given (a bigram model's, say).

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/json.h"

namespace {

struct Point {
    double step, loss;
};

struct Level {
    std::string name;
    double loss;
};

struct Curves {
    std::vector<Point> train, validation;
};

Curves read_metrics(const std::string& path) {
    std::ifstream file(path);
    if (!file)
        throw Error(ErrorKind::io, text("cannot open ", path), "Give the metrics.jsonl of a run (--output-dir).");
    Curves curves;
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
            throw Error(ErrorKind::bad_data, text(path, ":", number, ": not a JSON object with a \"step\": ", line));
        }
        auto add = [&](const char* key, std::vector<Point>& points) {
            const Json* loss = row.find(key);
            if (loss != nullptr && loss->is_number()) points.push_back({step->as_number(), loss->as_number()});
        };
        add("loss", curves.train);
        add("val_loss", curves.validation);
    }
    if (curves.train.empty()) throw Error(ErrorKind::bad_data, text(path, " holds no training loss"));
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

    void line(const std::vector<Point>& points, const char* style) {
        body_ += text("<polyline class='", style, "' points='");
        for (const Point& p : points) body_ += text(x(p.step), ",", y(p.loss), " ");
        body_ += "'/>\n";
    }

    void dots(const std::vector<Point>& points) {
        for (const Point& p : points) body_ += text("<circle cx='", x(p.step), "' cy='", y(p.loss), "' r='4'/>\n");
    }

    void level(const Level& level) {
        body_ += text("<line class='level' x1='", left, "' x2='", right, "' y1='", y(level.loss), "' y2='",
                      y(level.loss), "'/>\n");
        body_ += text("<text class='level' text-anchor='end' x='", right - 4, "' y='", y(level.loss) - 6, "'>",
                      level.name, " ", number(level.loss), "</text>\n");
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
                    ".raw{stroke:#9dbbe3;stroke-width:1} .mean{stroke:#1f5fb4;stroke-width:2} circle{fill:#d1495b}\n",
                    "line.level{stroke:#777;stroke-dasharray:6 4} text.level{fill:#777}</style>\n",
                    "<rect width='800' height='460' fill='white'/>\n", body_, "</svg>\n");
    }

private:
    static constexpr double left = 64, right = 776, top = 36, bottom = 400;
    double last_step_, low_, high_;
    std::string body_;
};

void draw(const Curves& curves, const std::vector<Level>& levels, const std::string& path) {
    double low = curves.train[0].loss, high = low, last = 1;
    auto widen = [&](double loss) { low = std::min(low, loss), high = std::max(high, loss); };
    for (const Point& p : curves.train) {
        if (std::isfinite(p.loss)) widen(p.loss);
        last = std::max(last, p.step);
    }
    for (const Point& p : curves.validation) widen(p.loss);
    for (const Level& l : levels) widen(l.loss);
    double margin = 0.05 * std::max(high - low, 1e-3);

    Picture picture(last, std::max(0.0, low - margin), high + margin);
    picture.axes();
    picture.line(curves.train, "raw");
    picture.line(running_mean(curves.train), "mean");
    picture.dots(curves.validation);
    for (const Level& l : levels) picture.level(l);
    std::vector<std::pair<std::string, std::string>> legend = {
        {"<line class='mean' style='stroke:#1f5fb4;stroke-width:2' x1='0' x2='26' y1='0' y2='0'/>",
         "training (running mean)"}};
    if (!curves.validation.empty()) {
        legend.push_back(
            {"<circle cx='13' cy='0' r='4'/>", text("validation, last ", number(curves.validation.back().loss))});
    }
    picture.legend(legend);

    std::ofstream out(path);
    out << picture.svg();
    if (!out.flush()) throw Error(ErrorKind::io, text("cannot write ", path));
}

}   // namespace

int main(int argc, char** argv) {
    try {
        if (argc < 3) throw Error(ErrorKind::usage, "usage: loss_curve METRICS.jsonl OUT.svg [NAME=LOSS ...]");
        std::vector<Level> levels;
        for (int i = 3; i < argc; i++) levels.push_back(parse_level(argv[i]));
        draw(read_metrics(argv[1]), levels, argv[2]);
        return 0;
    } catch (const Error& error) {
        std::cerr << "loss_curve: " << error.what() << "\n";
        return error.exit_code();
    } catch (const std::exception& error) {
        std::cerr << "loss_curve: " << error.what() << "\n";
        return static_cast<int>(ErrorKind::bug);
    }
}
