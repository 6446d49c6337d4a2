// loss_curve RUN... [NAME=LOSS ...] [-y loss,lr,norm,tokens/s] [-x steps|tokens|hours] -o OUT.svg
// loss_curve --html RUN... -o OUT.html
// loss_curve --fit PARAMETERS:RUN...
// loss_curve --scaling POINTS.jsonl -o OUT.svg
//
// The third fits a scaling law (llmc/plan/scaling_law.h) to the ends of five runs or more, each with the parameters of
// its model in front: its last validation loss, else its running mean of training's, after all its tokens.
//
// The fourth draws speed and efficiency over numbers of ranks, from what scripts/scaling.sh has measured
// (llmc/report/scaling_picture.h).
//
// With --html a page on the runs, the report.html of each of them in one (llmc/report/page.h). Without it a picture:
//
// Draws runs (their output folders, or metrics.jsonl files) in one SVG picture, a color each: a panel for every
// quantity of -y, one below the other, over the axis of -x. Single steps are faint, their running mean is a line,
// validation losses are dots, and a dashed level stands for every NAME=LOSS given (a bigram model's, say). Tokens and
// hours are those of the steps: validation and checkpoints between them are left out. What is a file or folder is a
// run, also where its name has a "=".

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/exit_code.h"
#include "llmc/io/file.h"
#include "llmc/io/standard_descriptors.h"
#include "llmc/plan/scaling_law.h"
#include "llmc/report/page.h"
#include "llmc/report/plot.h"
#include "llmc/report/scaling_picture.h"

namespace {

struct Quantity {
    const char *name, *key, *title;   // of -y, of metrics.jsonl, in the picture
    bool from_zero, smooth;           // its axis begins at 0; it has a running mean
};
constexpr Quantity kQuantities[] = {{"loss", "loss", "loss (nats per token)", false, true},
                                    {"lr", "lr", "learning rate", true, false},
                                    {"norm", "grad_norm", "gradient norm", true, true},
                                    {"tokens/s", "tokens_per_s", "tokens per second", true, true}};

struct Level {
    std::string name;
    double loss;
};

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

constexpr double kLeft = 72, kRight = 776;   // of the panels, in pixels

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
    CurveAxis axis = CurveAxis::steps;
    std::string output;
    bool html = false, scaling = false;
};

// Lowest and highest value of a panel, with a margin.
Scale range_of(const std::vector<Run>& runs, const std::vector<Level>& levels, std::size_t quantity) {
    const Quantity& what = kQuantities[quantity];
    std::vector<double> values;
    auto add = [&values](const Points& points) {
        for (const Point& p : points) values.push_back(p.y);
    };
    for (const Run& run : runs) add(run.of(what.key));
    if (quantity == 0) {
        for (const Run& run : runs) add(run.of("val_loss"));
        for (const Level& level : levels) values.push_back(level.loss);
    }
    return scale_of(std::move(values), {what.from_zero, what.from_zero && what.smooth});
}

// Where the axis ends, and what it is called. Hours become minutes or seconds where these read better.
struct FittedAxis {
    double last;
    std::string title;
};
FittedAxis fit_axis(std::vector<Run>& runs, CurveAxis axis) {
    double last = 0;
    auto for_all = [&runs](auto&& use) {
        for (Run& run : runs) {
            for (auto& [key, points] : run.series) std::ranges::for_each(points, use);
        }
    };
    for_all([&last](const Point& p) { last = std::max(last, p.x); });
    if (last == 0) last = 1;
    if (axis != CurveAxis::hours) return {last, axis == CurveAxis::steps ? "step" : "tokens"};
    const double unit = last < 1.0 / 60 ? 3600 : last < 1 ? 60 : 1;
    for_all([unit](Point& p) { p.x *= unit; });
    return {last * unit, unit == 3600 ? "seconds" : unit == 60 ? "minutes" : "hours"};
}

std::string svg_of(std::vector<Run> runs, const CommandLine& asked) {
    const auto [last, axis] = fit_axis(runs, asked.axis);

    Legend legend(kLeft, kPictureWidth);
    const bool has_loss = asked.quantities.front() == 0;
    for (std::size_t i = 0; i < runs.size(); i++) {
        const Colors colors = kColors[i % std::size(kColors)];
        legend.add(text("<line class='mean' stroke='", colors.train, "' x1='0' x2='26' y1='0' y2='0'/>"),
                   runs.size() == 1 ? text(runs[i].name, has_loss ? ": training (running mean)" : "") : runs[i].name);
        const Points& validation = runs[i].of("val_loss");
        if (validation.empty() || !has_loss) continue;
        legend.add(text("<circle fill='", colors.validation, "' cx='13' cy='0' r='4'/>"),
                   text("validation, last ", number(validation.back().y)));
    }
    const double height = asked.quantities.size() == 1 ? 364 : 190, apart = 34;
    double top = legend.bottom() + 26;
    std::string panels;
    for (const std::size_t quantity : asked.quantities) {
        Panel panel({kLeft, kRight, top, top + height}, last, range_of(runs, asked.levels, quantity));
        panel.axes(kQuantities[quantity].title, quantity == asked.quantities.back() ? axis : "");
        for (std::size_t i = 0; i < runs.size(); i++) {
            const Colors colors = kColors[i % std::size(kColors)];
            const Points& points = runs[i].of(kQuantities[quantity].key);
            if (kQuantities[quantity].smooth) panel.line(points, "raw", colors.train);
            panel.line(kQuantities[quantity].smooth ? running_mean(points) : points, "mean", colors.train);
            if (quantity == 0) panel.dots(runs[i].of("val_loss"), colors.validation);
        }
        for (const Level& level : asked.levels) {
            if (quantity == 0) panel.level(level.name, level.loss);
        }
        panels += panel.svg();
        top += height + apart;
    }
    return picture(top - apart + 56, legend, panels);
}

std::string page_of(const std::vector<std::string>& metrics) {
    std::vector<RunReader> readers(metrics.begin(), metrics.end());
    std::vector<ReportedRun> runs;
    for (RunReader& reader : readers) {
        const std::filesystem::path path = metrics[runs.size()];
        const bool of_folder = path.filename() == "metrics.jsonl";
        runs.push_back({&reader.read(), of_folder ? path.parent_path().string() : ""});
    }
    return report_page(runs, false);
}

const char* const kUsage =
    "usage: loss_curve RUN... [NAME=LOSS ...] [-y loss,lr,norm,tokens/s] [-x steps|tokens|hours] -o OUT.svg\n"
    "       loss_curve --html RUN... -o OUT.html\n"
    "       loss_curve --fit PARAMETERS:RUN...\n"
    "       loss_curve --scaling POINTS.jsonl -o OUT.svg";

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

CurveAxis axis_from(const std::string& name) {
    if (name == "steps") return CurveAxis::steps;
    if (name == "tokens") return CurveAxis::tokens;
    if (name == "hours") return CurveAxis::hours;
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
        } else if (argument == "--html") {
            line.html = true;
        } else if (argument == "--scaling") {
            line.scaling = true;
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
    if (line.scaling && (line.html || line.metrics.size() != 1 || panels != "loss" || line.axis != CurveAxis::steps ||
                         !line.levels.empty())) {
        throw Error(ErrorKind::usage, "--scaling takes one file of points and -o, nothing else", kUsage);
    }
    if (line.html && (panels != "loss" || line.axis != CurveAxis::steps || !line.levels.empty())) {
        throw Error(ErrorKind::usage, "--html: -y, -x and levels are for pictures; a page has every quantity", kUsage);
    }
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

// "124e6:runs/small", as its end.
ScalingRun scaling_run(const std::string& argument) {
    char* end = nullptr;
    const double parameters = std::strtod(argument.c_str(), &end);
    if (*end != ':' || !(parameters > 0)) {
        throw Error(ErrorKind::usage, text("--fit ", argument, ": expected PARAMETERS:RUN, as in 124e6:runs/small"),
                    "`train_gpt plan` says how many parameters a model has.");
    }
    const std::string path = end + 1;
    RunReader reader(std::filesystem::is_directory(path) ? path + "/metrics.jsonl" : path, CurveAxis::tokens);
    const Run& run = reader.read();
    const Points &steps = run.of("loss"), &validation = run.of("val_loss");
    if (steps.empty()) throw Error(ErrorKind::bad_data, text(path, " holds no loss"), kUsage);
    return {parameters, steps.back().x, validation.empty() ? running_mean(steps).back().y : validation.back().y};
}

int fit(const std::vector<std::string>& arguments) {
    std::vector<ScalingRun> runs;
    for (const std::string& argument : arguments) runs.push_back(scaling_run(argument));
    const ScalingLaw law = fit_scaling_law(runs);
    std::printf("L = %.5g + %.5g / N^%.4f + %.5g / D^%.4f\n", law.E, law.A, law.a, law.B, law.b);
    for (const ScalingRun& run : runs) {
        std::printf("  N %.4g  D %.4g  loss %.4f, the law has %.4f\n", run.parameters, run.tokens, run.loss,
                    law.loss(run.parameters, run.tokens));
    }
    for (const double flops : {1e18, 1e19, 1e20, 1e21}) {
        const ScalingLaw::Optimum best = law.optimum(flops);
        std::printf("best for %.0e FLOPs: N %.4g, D %.4g, D/N %.3g, loss %.4f\n", flops, best.parameters, best.tokens,
                    best.tokens / best.parameters, best.loss);
    }
    return 0;
}

}   // namespace

int main(int argc, char** argv) {
    open_standard_descriptors();
    try {
        if (argc > 1 && std::string(argv[1]) == "--fit") return fit({argv + 2, argv + argc});
        const CommandLine line = parse({argv + 1, argv + argc});
        try_output_file(real_files(), "-o", line.output);
        if (line.html) {
            write_whole(real_files(), line.output, page_of(line.metrics));
            return 0;
        }
        if (line.scaling) {
            write_whole(real_files(), line.output, scaling_picture(read_scaling(line.metrics.front())));
            return 0;
        }
        std::vector<Run> runs;
        for (const std::string& path : line.metrics) {
            runs.push_back(RunReader(path, line.axis).read());
            for (const std::size_t quantity : line.quantities) {
                if (!runs.back().of(kQuantities[quantity].key).empty()) continue;
                if (quantity == 0 && !runs.back().of("val_loss").empty()) continue;
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
