#include <algorithm>
#include <cmath>

#include "llmc/base/log.h"
#include "llmc/plan/plan.h"
#include "llmc/plan/search.h"
#include "llmc/plan/training_cost.h"
#include "llmc/run/options/option_names.h"

namespace {

constexpr const char* kAllRanks = "all";   // World's group for the loss and the norm

double gib(double bytes) { return bytes / (1 << 30); }

// Returns a number with three significant digits: 0.05, 6.2, 9,450.
std::string figure(double number) {
    if (number == 0) return "0";
    const double unit = std::pow(10, std::floor(std::log10(number)) - 2), rounded = std::round(number / unit) * unit;
    if (rounded < 1000) return formatted("%.3g", rounded);
    std::string digits = formatted("%.0f", rounded);
    for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
        digits.insert(static_cast<std::size_t>(at), ",");
    return digits;
}

// Returns a number of parameters or tokens: 14.1B.
std::string count_text(double number) {
    const char* unit = "";
    for (const char* const larger : {"K", "M", "B", "T"}) {
        if (number < 999.5) break;
        number /= 1000, unit = larger;
    }
    return figure(number) + unit;
}

// Returns both ends, or one where they are the same to three digits.
std::string ends_text(double low, double high) {
    const std::string from = figure(low), to = figure(high);
    return from == to ? from : from + " to " + to;
}

std::string time_text(double low, double high) {
    for (const auto& [seconds, unit] : {std::pair(kSecondsPerDay, "days"), {3600.0, "hours"}, {60.0, "minutes"}}) {
        if (high >= 1.5 * seconds) return ends_text(low / seconds, high / seconds) + " " + unit;
    }
    return ends_text(low, high) + " seconds";
}

std::string disk_text(double bytes) {
    for (const auto& [size, unit] : {std::pair(1e15, " PB"), {1e12, " TB"}, {1e9, " GB"}}) {
        if (bytes >= size) return figure(bytes / size) + unit;
    }
    return figure(bytes / 1e6) + " MB";
}

std::string step_text(double seconds) {
    return seconds < 10 ? formatted("%.3f ms", 1e3 * seconds) : formatted("%.3f s", seconds);
}

// Returns a line of a section with its share as a bar; nothing for less than half a percent.
std::string bar_line(const std::string& name, const std::string& value, double share) {
    if (share < 5e-3) return "";
    return formatted("  %-24s %12s %4.0f%% %s\n", name.c_str(), value.c_str(), 100 * share,
                     std::string(static_cast<std::size_t>(std::ceil(std::min(1.0, share) * 30)), '#').c_str());
}

std::string fullest_memory(const Plan& plan) {
    const StageMemory& fullest = *std::ranges::max_element(plan.memory, {}, &StageMemory::bytes);
    const std::string whose = plan.run.mesh.pp > 1 ? text(", pipeline stage ", fullest.stage) : std::string();
    std::string lines = formatted("memory of the fullest rank%s: %.2f of %.2f GiB, nine tenths of a device\n",
                                  whose.c_str(), gib(fullest.bytes), gib(plan.allowed_bytes()));
    for (const auto& [name, bytes] : fullest.lines) {
        lines += bar_line(name, size_text(bytes), bytes / fullest.bytes);
    }
    return lines;
}

// Returns the parts of a step: links that others' work does not hide, stages that wait, and the rest.
std::string parts_of_step(const Plan& plan) {
    const StepTime& step = plan.step;
    const double idle = step.bubble_share * (step.seconds - step.exposed);
    auto line = [&](const char* name, double seconds) {
        return bar_line(name, step_text(seconds), seconds / step.seconds);
    };
    std::string lines = "step: " + step_text(step.seconds) + " in the best case\n" +
                        line("compute", step.seconds - step.exposed - idle) +
                        line(plan.run.mesh.pp > 1 ? "pipeline's bubble" : "gaps between kernels", idle) +
                        line("exposed communication", step.exposed);
    for (const auto& [name, group] : step.groups) {
        if (name != kAllRanks) lines += line(("  of group " + name).c_str(), group.exposed);
    }
    return lines;
}

std::string form_line(const Plan& plan) {
    if (plan.replayed) return "";
    return text("  by closed forms: ", can_record_steps()
                                           ? "a rank has too much memory to be recorded\n"
                                           : "the program built with DEVICE=cpu replays the step instead\n");
}

std::string layout_line(const Plan& plan) {
    const Options& o = plan.run.options;
    return formatted("layout: %d devices (%s), %s, %d micro-batches of %d x %d tokens\n", plan.run.mesh.size(),
                     plan.machine.name.c_str(), layout_text(o).c_str(), o.micro_steps(), o.micro_batch, o.seq_len);
}

std::string speed_line(const Plan& plan) {
    return formatted(
        "speed: %.4g tokens/s, MFU %.1f%%, in the best case (MFU as llm.c's: FLOPs of matmuls and causal "
        "attention, of a peak of %.4g TFLOP/s)\n",
        plan.tokens_per_second(), 100 * plan.mfu(), 1e-12 * plan.machine.mfu_peak());
}

std::string energy_line(const Plan& plan) {
    const double kwh = plan.energy_kwh() * plan.range.most;
    if (kwh == 0) return "";
    const std::string amount = kwh < 1000 ? figure(kwh) + " kWh" : figure(1e-3 * kwh) + " MWh";
    return text("energy: ", amount, " at the late end, with every GPU at its power limit of ",
                figure(plan.machine.watts), " W", plan.run.options.plan.machine.empty() ? " (data sheet)" : "",
                " all the time; hosts, network and cooling not included\n");
}

std::string storage_line(const Plan& plan) {
    const Storage& storage = plan.storage;
    const auto kept = static_cast<double>(storage.checkpoints);
    std::string line = "storage: checkpoints of " + disk_text(storage.checkpoint_bytes) + " each";
    if (storage.checkpoints > 1)
        line += text(", at most ", figure(kept), " kept: ", disk_text(kept * storage.checkpoint_bytes));
    return line + text("; tokenized data ", disk_text(plan.tokens * storage.token_bytes), " for one epoch, ",
                       storage.token_bytes, " bytes a token\n");
}

std::string warning_lines(const Plan& plan) {
    std::string lines;
    for (const std::string& warning : plan.warnings) lines += "warning: " + warning + "\n";
    return lines;
}

// Returns the limits of which at least `least` is used up, and the nearest one in any case.
std::string limit_lines(const Plan& plan, double least) {
    std::string lines = "nearest limits:\n";
    for (const Limit& limit : plan.limits) {
        if (limit.share < least && &limit != &plan.limits.front()) continue;
        lines += formatted("  %3.0f%% of what is allowed: %s; relieved by %s\n", 100 * limit.share, limit.what.c_str(),
                           limit.relief.c_str());
    }
    return lines;
}

std::string memory_lines(const Plan& plan) {
    std::string lines;
    for (const StageMemory& stage : plan.memory) {
        const std::string whose = plan.run.mesh.pp > 1 ? text(" of pipeline stage ", stage.stage) : std::string();
        lines += formatted("memory%s: %.2f GiB at most at once, of %.2f GiB a device\n", whose.c_str(),
                           gib(stage.bytes), gib(plan.machine.memory_bytes));
        for (const auto& [name, bytes] : stage.lines) {
            lines += formatted("  %-24s %10.3f GiB\n", name.c_str(), gib(bytes));
        }
    }
    return lines;
}

std::string group_lines(const Plan& plan) {
    std::string lines;
    for (const auto& [name, group] : plan.step.groups) {
        if (group.bytes == 0) continue;
        lines += formatted("  %-24s %4d ranks on %d node(s)  %10.3f GB sent  %9.3f ms  exposed %9.3f ms\n",
                           name.c_str(), group.size.ranks, group.size.nodes, 1e-9 * group.bytes, 1e3 * group.seconds,
                           1e3 * std::max(0.0, group.exposed));
    }
    return lines;
}

Failures failures_of(const Plan& plan) {
    // write_seconds is a guess: a thread writes checkpoints beside the steps, so only the copy from the device stalls
    // them, and its speed is not measured
    return {
        .write_seconds = 10, .restart_seconds = 300, .between_seconds = kGpuHoursPerFailure * 3600 / plan.devices()};
}

std::string long_text(const Plan& plan) {
    const Options& o = plan.run.options;
    const StepTime& step = plan.step;
    std::string out = text("model: ", describe(plan.run.config), "\n");
    const ParameterCounts& count = plan.parameters;
    const bool mixture = plan.run.config.experts > 0;
    out += formatted("parameters: %.0f with padding, %.0f without\n", count.padded, count.exported);
    if (mixture) {
        out +=
            formatted("  active, with the %lld of %lld experts that a token goes to: %.0f with padding, %.0f without\n",
                      static_cast<long long>(plan.run.config.experts_per_token()),
                      static_cast<long long>(plan.run.config.experts), count.active_padded, count.active_exported);
    }
    const std::string active =
        mixture ? formatted(", all experts counted; %.1f per active one", plan.tokens / count.active_padded) : "";
    out += formatted(
        "training: %.4g tokens (%.1f per parameter%s), %.3e FLOPs; for so many the scaling law has %.3g "
        "parameters and %.3g tokens\n",
        plan.tokens, plan.tokens / count.padded, active.c_str(), plan.flops, plan.best.parameters, plan.best.tokens);
    out += layout_line(plan);
    out += formatted("  matmuls at %.4g TFLOP/s, memory at %.4g GB/s, links at %.4g and %.4g GB/s: %s\n",
                     1e-12 * plan.machine.best_matmul(), 1e-9 * plan.machine.copy_bytes_per_second,
                     1e-9 * plan.machine.intra.bytes_per_second, 1e-9 * plan.machine.inter.bytes_per_second,
                     plan.machine.source.c_str());
    out += memory_lines(plan);
    out += plan.fewest_devices
               ? formatted("  the fewest devices that hold it, with a layout of their own: %d\n", *plan.fewest_devices)
               : "  no number of devices that was tried holds it\n";
    out += plan.fits() ? "  it fits\n" : "  it does not fit: nine tenths of a device are reckoned with\n";
    out += formatted(
        "step: %.3f ms, of which %.3f ms compute; bubble %.1f%% of the time, communication exposed %.3f ms "
        "(%.1f%%)\n",
        1e3 * step.seconds, 1e3 * step.computing, 100 * step.bubble_share, 1e3 * step.exposed,
        100 * step.exposed / step.seconds);
    out += form_line(plan);
    out += group_lines(plan);
    out += speed_line(plan);
    out += formatted("time: %.4g days, %.4g GPU-hours", plan.seconds() / kSecondsPerDay, plan.device_hours());
    if (o.plan.price > 0) out += formatted(", %.4g at %g each", plan.device_hours() * o.plan.price, o.plan.price);
    out += "\n" + energy_line(plan) + storage_line(plan);
    const Failures failures = failures_of(plan);
    const double interval = best_checkpoint_interval(failures);
    out += formatted(
        "failures: one in %.4g hours (one per %.0f GPU-hours); a checkpoint every %.0f s is best, and then "
        "%.2f%% of the time is lost\n",
        failures.between_seconds / 3600, kGpuHoursPerFailure, interval, 100 * wasted_share(failures, interval));
    return out + warning_lines(plan) + limit_lines(plan, 0);
}

}   // namespace

std::string deadline_text(const Plan& plan) {
    if (plan.tried.empty()) return "";
    const double deadline = plan.run.options.plan.deadline, price = plan.run.options.plan.price,
                 latest = plan.range.most * plan.seconds();
    const std::string end = text(time_text(latest, latest), " on ", plan.run.mesh.size(), " ", plan.machine.name);
    const bool whole_days = std::fmod(deadline, kSecondsPerDay) == 0, has_range = plan.range.least < plan.range.most;
    std::string lines =
        formatted("Deadline %g%s: ", deadline / (whole_days ? kSecondsPerDay : 3600), whole_days ? "d" : "h") +
        (plan.meets_deadline ? text("met. ", has_range ? "At the late end of the range the" : "The", " run takes ", end)
                             : text("not met. The earliest end found",
                                    has_range ? ", at the late end of the range," : "", " is after ", end)) +
        ".\n";
    for (const DevicesTried& tried : plan.tried) {
        const double seconds = latest * tried.step_seconds / plan.step.seconds, hours = tried.devices * seconds / 3600;
        lines += formatted("  %6d %s  %14s  %10s GPU-hours", tried.devices, plan.machine.name.c_str(),
                           time_text(seconds, seconds).c_str(), figure(hours).c_str());
        if (price > 0) lines += formatted("  %10s", figure(hours * price).c_str());
        lines += tried.devices == plan.run.mesh.size() ? "  planned below\n" : "\n";
    }
    return lines + "\n";
}

std::string plan_headline(const Plan& plan) {
    const double least = plan.range.least, most = plan.range.most, hours = plan.device_hours(),
                 price = plan.run.options.plan.price;
    std::string out = formatted("%s: %.1f of %.1f GiB a device", plan.fits() ? "Fits" : "Does not fit",
                                gib(plan.most_bytes()), gib(plan.allowed_bytes()));
    if (!plan.fits()) {
        out += plan.fewest_devices
                   ? text("; the fewest devices that hold it, with a layout of their own: ", *plan.fewest_devices)
                   : "; no number of devices that was tried holds it";
    }
    out += text(". ", time_text(least * plan.seconds(), most * plan.seconds()), " on ", plan.run.mesh.size(), " ",
                plan.machine.name, ", ", ends_text(least * hours, most * hours), " GPU-hours");
    if (price > 0)
        out += text(", ", ends_text(least * hours * price, most * hours * price), formatted(" at %g each", price));
    out += text(".\nCompute-optimal for as many FLOPs: ", count_text(plan.best.parameters), " parameters on ",
                count_text(plan.best.tokens), " tokens. Planned: ", count_text(plan.parameters.padded), " on ",
                count_text(plan.tokens), ".\n");
    if (least == most) return out + text("Times are ", figure(most), " times the best case: ", plan.range.from, ".\n");
    return out + text("Range: ", figure(least), " to ", figure(most), " times the planned step, median ",
                      figure(plan.range.usual), ": ", plan.range.from, ". --efficiency narrows it.\n");
}

std::string plan_text(const Plan& plan) {
    if (plan.run.options.plan.verbose) return "\n" + long_text(plan);
    return "\n" + layout_line(plan) + fullest_memory(plan) + parts_of_step(plan) + form_line(plan) + speed_line(plan) +
           energy_line(plan) + storage_line(plan) + limit_lines(plan, 0.05) + warning_lines(plan);
}

std::string plan_json(const Plan& plan) {
    std::vector<Json> memory, groups, limits, tried, warnings(plan.warnings.begin(), plan.warnings.end());
    for (const Limit& limit : plan.limits) {
        limits.push_back(Json::object({{"what", limit.what}, {"share", limit.share}, {"relief", limit.relief}}));
    }
    for (const StageMemory& stage : plan.memory) {
        Json lines = Json::object();
        for (const auto& [name, bytes] : stage.lines) lines.add(name, bytes);
        memory.push_back(Json::object({{"stage", stage.stage}, {"bytes", stage.bytes}, {"lines", lines}}));
    }
    for (const auto& [name, group] : plan.step.groups) {
        groups.push_back(Json::object({{"name", name},
                                       {"ranks", group.size.ranks},
                                       {"nodes", group.size.nodes},
                                       {"bytes", group.bytes},
                                       {"seconds", group.seconds},
                                       {"exposed_seconds", group.exposed}}));
    }
    for (const DevicesTried& one : plan.tried) {
        tried.push_back(Json::object({{"devices", one.devices}, {"step_seconds", one.step_seconds}}));
    }
    const double price = plan.run.options.plan.price;
    return to_text(Json::object({{"parameters", plan.parameters.padded},
                                 {"exported_parameters", plan.parameters.exported},
                                 {"active_parameters", plan.parameters.active_padded},
                                 {"exported_active_parameters", plan.parameters.active_exported},
                                 {"tokens", plan.tokens},
                                 {"flops", plan.flops},
                                 {"devices", plan.run.mesh.size()},
                                 {"machine", to_json(plan.machine)},
                                 {"layout", layout_text(plan.run.options)},
                                 {"recompute", name_of(plan.run.options.recompute.value())},
                                 {"memory", Json::array(memory)},
                                 {"fits", plan.fits()},
                                 {"fewest_devices", plan.fewest_devices ? Json(*plan.fewest_devices) : Json()},
                                 {"replayed", plan.replayed},
                                 {"step_seconds", plan.step.seconds},
                                 {"computing_seconds", plan.step.computing},
                                 {"exposed_seconds", plan.step.exposed},
                                 {"bubble_share", plan.step.bubble_share},
                                 {"groups", Json::array(groups)},
                                 {"tokens_per_second", plan.tokens_per_second()},
                                 {"mfu", plan.mfu()},
                                 {"days", plan.seconds() / kSecondsPerDay},
                                 {"gpu_hours", plan.device_hours()},
                                 {"cost", price > 0 ? Json(plan.device_hours() * price) : Json()},
                                 {"energy_kwh", plan.machine.watts > 0 ? Json(plan.energy_kwh()) : Json()},
                                 {"checkpoint_bytes", plan.storage.checkpoint_bytes},
                                 {"checkpoints", static_cast<double>(plan.storage.checkpoints)},
                                 {"data_bytes", plan.tokens * plan.storage.token_bytes},
                                 {"range", to_json(plan.range)},
                                 {"meets_deadline", tried.empty() ? Json() : Json(plan.meets_deadline)},
                                 {"tried", Json::array(tried)},
                                 {"warnings", Json::array(warnings)},
                                 {"limits", Json::array(limits)}}),
                   1) +
           "\n";
}
