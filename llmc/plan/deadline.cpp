#include "llmc/plan/deadline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "llmc/base/error.h"
#include "llmc/base/log.h"

namespace {

constexpr double kCheaper = 0.98;   // cost, relative to fewer GPUs, for which more are worth it
constexpr double kNever = std::numeric_limits<double>::infinity();

// Returns the fewest GPUs that could make a step of `seconds`, if nothing but matmuls and attention took time.
double least_devices(const Options& options, const Machine& machine, double seconds) {
    const double flops =
        flops_per_token(planned_model(options), options.seq_len) * static_cast<double>(options.tokens_per_step());
    return flops / (seconds * std::max(machine.best_matmul(), machine.attention_per_second));
}

}   // namespace

DevicesFound search_devices(const Options& options, const Machine& machine, double step_seconds, int most,
                            const std::function<bool(const Options&)>& is_allowed, const SearchEffort& effort) {
    std::map<int, std::vector<Candidate>> searched;   // by number of GPUs; empty: no layout fits
    auto step_of = [&](int devices) {
        const auto [at, is_new] = searched.try_emplace(devices);
        if (is_new) {
            try {
                at->second = search_layouts(options, machine, devices, is_allowed, effort);
                if (!at->second.front().fits(machine)) at->second.clear();
            } catch (const Error& error) {
                if (error.kind() != ErrorKind::usage || options.total_batch == 0) throw;   // else no layout divides
            }
        }
        return at->second.empty() ? kNever : at->second.front().time.seconds;
    };
    auto in_time = [&](int devices) { return step_of(devices) <= step_seconds; };
    auto cost = [&](int devices) { return devices * step_of(devices); };
    const double least = least_devices(options, machine, step_seconds);
    const int node = machine.devices_per_node;
    auto more = [&](int devices) { return devices < node ? std::min(2 * devices, node) : 2 * devices; };
    int first = 1;
    while (first < least && more(first) <= most) first = more(first);

    int devices = first, chosen = 0, useless = 0;
    for (double before = kNever; !in_time(devices) && more(devices) <= most; devices = more(devices)) {
        const double now = step_of(devices);
        useless = now < before || now == kNever ? 0 : useless + 1;
        if (useless == 2) break;   // more GPUs do not help
        before = std::min(before, now);
    }
    const bool found = in_time(devices);
    if (found) {
        auto try_eighths = [&](int eighths) {
            const int fewer = devices * eighths / 8;
            const bool is_whole = devices * eighths % 8 == 0 && (fewer <= node || fewer % node == 0);
            return is_whole && fewer >= least && in_time(fewer);
        };
        try_eighths(try_eighths(6) ? 5 : 7);
        while (more(devices) <= most && cost(more(devices)) < kCheaper * cost(devices)) devices = more(devices);
        for (const auto& [number, layouts] : searched) {
            if (in_time(number) && (chosen == 0 || cost(number) < kCheaper * cost(chosen))) chosen = number;
        }
    } else {   // as many GPUs as the first may be more than any layout of a step can use
        double fastest = kNever;
        for (const auto& [number, layouts] : searched) fastest = std::min(fastest, step_of(number));
        for (int fewer = first / 2; fewer >= 1 && (fastest == kNever || step_of(fewer) < fastest); fewer /= 2) {
            fastest = std::min(fastest, step_of(fewer));
        }
        for (const auto& [number, layouts] : searched) {
            if (step_of(number) < (chosen == 0 ? kNever : step_of(chosen))) chosen = number;
        }
    }
    if (chosen == 0) {
        throw Error(ErrorKind::usage,
                    text("--deadline: of the numbers of GPUs that were searched, powers of two from ",
                         searched.begin()->first, " to ", searched.rbegin()->first,
                         ", none has a layout that divides this model and batch and fits into nine tenths of ",
                         size_text(machine.memory_bytes)),
                    "Leave more of the layout open, or give another --total-batch, --micro-batch or --seq-len.");
    }
    DevicesFound all{searched[chosen], {}, found};
    for (const auto& [number, layouts] : searched) {
        if (!layouts.empty()) all.tried.push_back({number, step_of(number)});
    }
    return all;
}
