#include "llmc/parallel/schedule_picture.h"

#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/log.h"

namespace {

struct Drawn {
    std::vector<PipelineSchedule> lists;
    Simulation simulation;
    explicit Drawn(const PipelineShape& shape) : lists(pipeline_schedules(shape)) {
        PipelineCosts costs;
        costs.pieces.resize(static_cast<std::size_t>(shape.stages * shape.chunks));
        simulation = simulate(lists, shape.chunks, costs);
    }
};

char letter(Action::Kind kind) {
    return kind == Action::Kind::forward ? 'F' : kind == Action::Kind::backward_input ? 'B' : 'W';
}

// "F3", or with several chunks "F3b".
std::string label(const Action& action, int chunks) {
    std::string name = text(letter(action.kind), action.micro_batch);
    if (chunks > 1) name += action.chunk < 26 ? text(static_cast<char>('a' + action.chunk)) : text("/", action.chunk);
    return name;
}

std::string title(const PipelineShape& shape) {
    return text(name_of(shape.kind), ", ", shape.stages, " stages",
                shape.chunks > 1 ? text(" x ", shape.chunks, " chunks") : std::string(), ", ", shape.micro_batches,
                " micro-batches; forward, gradients of inputs and of weights take one unit each");
}

std::string bubble(const Simulation& found) {
    return formatted("makespan %g units; bubble %.2f%% over the ideal, %.2f%% of the time", found.makespan,
                     100 * found.overhead(), 100 * found.idle_share());
}

}   // namespace

std::string schedule_text(const PipelineShape& shape) {
    const Drawn drawn(shape);
    std::size_t width = 1;
    for (const auto& stage : drawn.simulation.stages) {
        for (const TimedAction& timed : stage) width = std::max(width, label(timed.action, shape.chunks).size() + 1);
    }
    std::string result = title(shape) + "\n";
    for (std::size_t i = 0; i < drawn.simulation.stages.size(); i++) {
        const auto units = static_cast<std::size_t>(std::lround(drawn.simulation.makespan));
        std::string line(units * width, ' ');
        for (std::size_t unit = 0; unit < units; unit++) line[unit * width] = '.';
        for (const auto& [action, begin, end] : drawn.simulation.stages[i]) {
            for (long unit = std::lround(begin); unit < std::lround(end); unit++) {
                const std::string name = label(action, shape.chunks);
                line.replace(static_cast<std::size_t>(unit) * width, name.size(), name);
            }
        }
        result += formatted("stage %2d | ", static_cast<int>(i)) + line + "\n";
    }
    result += bubble(drawn.simulation) + "\nsets of activations that the stages keep at most:";
    for (const PipelineSchedule& list : drawn.lists) result += text(" ", live_peak(list).to_weight);
    return result + "\n";
}

std::string schedule_svg(const PipelineShape& shape) {
    const Drawn drawn(shape);
    constexpr int unit = 28, row = 26, left = 70, top = 34;
    const double width = left + unit * drawn.simulation.makespan + 10;
    const int height = top + row * shape.stages + 30;
    std::string svg = formatted(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%d\" font-family=\"sans-serif\" "
        "font-size=\"11\">\n<text x=\"8\" y=\"18\">%s</text>\n",
        width, height, title(shape).c_str());
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
