#include "llmc/parallel/schedule_picture.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/log.h"

namespace {

struct Drawn {
    std::vector<PipelineSchedule> lists;
    Simulation simulation;
    Drawn(const PipelineShape& shape, const DrawnCosts& drawn) : lists(pipeline_schedules(shape)) {
        PipelineCosts costs;
        costs.pieces.assign(static_cast<std::size_t>(shape.stages * shape.chunks), drawn.work);
        costs.transfer = drawn.transfer;
        simulation = simulate(lists, shape.chunks, costs);
    }
};

char letter(Action::Kind kind) {
    return kind == Action::Kind::forward ? 'F' : kind == Action::Kind::backward_input ? 'B' : 'W';
}

// Returns "F3", or with several chunks "F3b".
std::string label(const Action& action, int chunks) {
    std::string name = text(letter(action.kind), action.micro_batch);
    if (chunks > 1) name += action.chunk < 26 ? text(static_cast<char>('a' + action.chunk)) : text("/", action.chunk);
    return name;
}

// Returns the time of a column: the smallest cost if all are multiples of it, else half of it; more if lines would have
// over 4000 columns.
double column_of(const DrawnCosts& costs, double makespan) {
    const auto& [forward, input, weight] = costs.work;
    const double smallest = std::min({forward, input, weight});
    auto fits = [&](double cost) { return std::abs(cost / smallest - std::round(cost / smallest)) < 1e-9; };
    const double column =
        fits(forward) && fits(input) && fits(weight) && fits(costs.transfer) ? smallest : smallest / 2;
    return std::max(column, makespan / 4000);
}

std::string costs_in_words(const DrawnCosts& costs) {
    const auto& [forward, input, weight] = costs.work;
    std::string words = "forward, gradients of inputs and of weights take ";
    words += forward == 1 && input == 1 && weight == 1 ? std::string("one unit each")
                                                       : formatted("%g, %g and %g units", forward, input, weight);
    return costs.transfer > 0 ? words + formatted(", a link %g", costs.transfer) : words;
}

std::string title(const PipelineShape& shape, const DrawnCosts& costs) {
    return text(name_of(shape.kind), ", ", shape.stages, " stages",
                shape.chunks > 1 ? text(" x ", shape.chunks, " chunks") : std::string(), ", ", shape.micro_batches,
                " micro-batches", shape.warmup > 0 ? text(", warm-up ", shape.warmup) : std::string(), "; ",
                costs_in_words(costs));
}

std::string bubble(const Simulation& found) {
    return formatted("makespan %g units; bubble %.2f%% over the ideal, %.2f%% of the time", found.makespan,
                     100 * found.overhead(), 100 * found.idle_share());
}

}   // namespace

DrawnCosts drawn_costs_from(const std::string& given) {
    DrawnCosts costs;
    double* const values[] = {&costs.work.forward, &costs.work.input, &costs.work.weight, &costs.transfer};
    const char *at = given.data(), *const end = at + given.size();
    bool right = true;
    for (int i = 0; right && i < 4; i++) {
        if (i > 0) right = at != end && *at++ == ',';
        const auto [next, code] = std::from_chars(at, end, *values[i]);
        right = right && code == std::errc{} && *values[i] >= (i < 3 ? 1e-3 : 0) && *values[i] <= 1e3;
        at = next;
    }
    if (!right || at != end) {
        throw Error(
            ErrorKind::usage, text("--schedule-costs ", given, ": expected four numbers, as in 1,2,1,0.25"),
            "They are what forward, gradients of inputs, gradients of weights (0.001 to 1000 each) and a link (0 "
            "to 1000) take.");
    }
    return costs;
}

std::string schedule_text(const PipelineShape& shape, const DrawnCosts& costs) {
    const Drawn drawn(shape, costs);
    const double column = column_of(costs, drawn.simulation.makespan);
    std::size_t width = 1;
    for (const auto& stage : drawn.simulation.stages) {
        for (const TimedAction& timed : stage) width = std::max(width, label(timed.action, shape.chunks).size() + 1);
    }
    std::string result = title(shape, costs) + "\n";
    for (std::size_t i = 0; i < drawn.simulation.stages.size(); i++) {
        const auto units = static_cast<std::size_t>(std::lround(drawn.simulation.makespan / column));
        std::string line(units * width, ' ');
        for (std::size_t unit = 0; unit < units; unit++) line[unit * width] = '.';
        for (const auto& [action, begin, end] : drawn.simulation.stages[i]) {
            for (long unit = std::lround(begin / column); unit < std::lround(end / column); unit++) {
                const std::string name = label(action, shape.chunks);
                line.replace(static_cast<std::size_t>(unit) * width, name.size(), name);
            }
        }
        result += formatted("stage %2d | ", static_cast<int>(i)) + line + "\n";
    }
    result += bubble(drawn.simulation) + "\nsets of activations that the stages keep at most:";
    auto add_peaks = [&](const std::vector<PipelineSchedule>& lists) {
        for (const PipelineSchedule& list : lists) result += text(" ", live_peak(list).to_weight);
    };
    add_peaks(drawn.lists);
    if (shape.warmup > 0) {
        PipelineShape shorter = shape;
        shorter.warmup = 0;
        result += "; without the longer warm-up:";
        add_peaks(pipeline_schedules(shorter));
    }
    return result + "\n";
}

std::string schedule_svg(const PipelineShape& shape, const DrawnCosts& costs) {
    const Drawn drawn(shape, costs);
    const double unit = 28 / std::min({costs.work.forward, costs.work.input, costs.work.weight});
    constexpr int row = 26, left = 70, top = 34;
    const double width = left + unit * drawn.simulation.makespan + 10;
    const int height = top + row * shape.stages + 30;
    std::string svg = formatted(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%d\" font-family=\"sans-serif\" "
        "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"8\" "
        "y=\"18\">%s</text>\n",
        width, height, title(shape, costs).c_str());
    for (int i = 0; i < shape.stages; i++) {
        const int y = top + row * i;
        svg += formatted("<text x=\"8\" y=\"%d\">stage %d</text>\n", y + 16, i);
        for (const auto& [action, begin, end] : drawn.simulation.stages[static_cast<std::size_t>(i)]) {
            const char* colour = letter(action.kind) == 'F'   ? "#9ecae1"
                                 : letter(action.kind) == 'B' ? "#fdae6b"
                                                              : "#a1d99b";
            svg += formatted(
                "<rect x=\"%g\" y=\"%d\" width=\"%g\" height=\"%d\" fill=\"%s\" stroke=\"#555\"/>"
                "<text x=\"%g\" y=\"%d\">%s</text>\n",
                left + unit * begin, y, unit * (end - begin), row - 4, colour, left + unit * begin + 3, y + 15,
                label(action, shape.chunks).c_str());
        }
    }
    svg += formatted("<text x=\"8\" y=\"%d\">%s</text>\n</svg>\n", height - 10, bubble(drawn.simulation).c_str());
    return svg;
}
