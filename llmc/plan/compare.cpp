#include "llmc/plan/plan.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/base/log.h"

namespace {

double median(std::vector<double> values) {
    std::ranges::sort(values);
    return values[values.size() / 2];
}

}   // namespace

MeasuredRun measured_run(FileSystem& files, const std::string& folder) {
    const std::string path = folder + "/metrics.jsonl";
    std::istringstream lines(read_large(files, path));
    std::vector<double> milliseconds, tokens;
    std::map<std::string, std::vector<double>> exposed;
    MeasuredRun run;
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
        number++;
        try {
            const Json record = parse_json(line);
            const Json* const step_ms = record.find("step_ms");
            if (step_ms == nullptr) continue;   // the record of a validation
            if (run.steps++ == 0) continue;
            milliseconds.push_back(step_ms->as_number());
            tokens.push_back(record.at("tokens_per_s").as_number());
            if (const Json* const groups = record.find("exposed_ms")) {
                for (const auto& [group, ms] : groups->members()) exposed[group].push_back(ms.as_number());
            }
            run.memory_bytes = std::max(run.memory_bytes, record.at("memory_bytes").as_number());
        } catch (const JsonError& error) {
            throw Error(ErrorKind::bad_data, text(path, ": line ", number, ": ", error.what()),
                        "Give the --output-dir of a run of this program.");
        }
    }
    if (milliseconds.empty()) {
        throw Error(ErrorKind::bad_data, text(path, ": ", run.steps, " steps, expected two or more"),
                    "The first step warms up and does not count.");
    }
    run.step_seconds = 1e-3 * median(milliseconds), run.tokens_per_second = median(tokens);
    for (const auto& [group, ms] : exposed) run.exposed[group] = 1e-3 * median(ms);
    return run;
}

std::string comparison_text(const Plan& plan, const MeasuredRun& measured) {
    auto line = [](const char* what, double planned, double found, const char* unit) {
        return formatted("  %-10s planned %12.4g, measured %12.4g %s: the plan is off by %+.1f%%\n", what, planned,
                         found, unit, 100 * (planned / found - 1));
    };
    std::string lines = formatted("compared with the medians of %d steps:\n", measured.steps - 1) +
                        line("step", 1e3 * plan.step.seconds, 1e3 * measured.step_seconds, "ms") +
                        line("speed", plan.tokens_per_second(), measured.tokens_per_second, "tokens/s") +
                        line("memory", plan.memory.front().bytes, measured.memory_bytes, "bytes of the first rank");
    const double efficiency = plan.step.seconds / measured.step_seconds;
    lines += formatted("  the run reaches %.3g of the planned speed: --efficiency %.3g plans other runs with it\n",
                       efficiency, efficiency);
    for (const auto& [group, waited] : measured.exposed) {
        const auto planned = plan.step.groups.find(group);
        const std::string links = planned == plan.step.groups.end()
                                      ? "unknown"
                                      : formatted("%.4g", 1e3 * std::max(0.0, planned->second.exposed));
        lines += formatted("  exposed, %-10s planned %12s, measured %12.4g ms, late peers and bubble with it\n",
                           group.c_str(), links.c_str(), 1e3 * waited);
    }
    return lines;
}
