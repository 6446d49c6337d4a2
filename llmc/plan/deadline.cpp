#include "llmc/plan/deadline.h"

#include <algorithm>
#include <bit>
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
    int first = 1;
    while (first < least && first <= most / 2) first *= 2;

    int devices = first, chosen = 0;
    while (!in_time(devices) && devices <= most / 2) {
        const double before = devices > first ? step_of(devices / 2) : kNever;
        if (before < kNever && step_of(devices) >= before) break;   // more GPUs do not help
        devices *= 2;
    }
    const bool found = in_time(devices);
    if (found) {
        auto try_eighths = [&](int eighths) {
            const int fewer = devices * eighths / 8, node = machine.devices_per_node;
            const bool is_whole = devices * eighths % 8 == 0 && (fewer <= node || fewer % node == 0);
            return is_whole && fewer >= least && in_time(fewer);
        };
        try_eighths(try_eighths(6) ? 5 : 7);
        while (devices <= most / 2 && cost(2 * devices) < kCheaper * cost(devices)) devices *= 2;
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
        throw Error(
            ErrorKind::usage,
            text("--deadline: no layout of ", searched.begin()->first, " to ", searched.rbegin()->first,
                 " GPUs divides this model and batch, and fits into nine tenths of ", size_text(machine.memory_bytes)),
            "Leave more of the layout open, or give another --total-batch, --micro-batch or --seq-len.");
    }
    DevicesFound all{searched[chosen], {}, found};
    for (const auto& [number, layouts] : searched) {
        if (!layouts.empty()) all.tried.push_back({number, step_of(number)});
    }
    return all;
}
