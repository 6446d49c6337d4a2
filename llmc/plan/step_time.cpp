#include "llmc/plan/step_time.h"

#include <algorithm>

#include "llmc/base/clock/replay.h"
#include "llmc/parallel/expert_parallel.h"
#include "llmc/plan/all_cores.h"
#include "llmc/plan/machine/nccl_time.h"

using virtual_clock::CostModel;
using virtual_clock::Exchange;
using virtual_clock::RecordedStep;

namespace {

bool is_attention(const std::string& name) { return name.find("attention") != std::string::npos; }

// The quantities of a step that grow linearly with micro-batches: all but shares.
struct Sums {
    double seconds = 0, free = 0, computing = 0, flops = 0;
    std::map<std::string, GroupTime> groups;   // without bytes and seconds, whose maxima are not linear
    struct Traffic {
        double bytes = 0, seconds = 0;
    };
    std::vector<std::map<std::string, Traffic>> stages;   // by stage and group

    void add(const Sums& other, double times) {
        seconds += times * other.seconds, free += times * other.free;
        computing += times * other.computing, flops += times * other.flops;
        for (const auto& [name, theirs] : other.groups) {
            GroupTime& own = groups[name];
            own.size = theirs.size;
            own.exposed += times * theirs.exposed;
        }
        stages.resize(other.stages.size());
        for (std::size_t stage = 0; stage < stages.size(); stage++) {
            for (const auto& [name, theirs] : other.stages[stage]) {
                Traffic& own = stages[stage][name];
                own.bytes += times * theirs.bytes, own.seconds += times * theirs.seconds;
            }
        }
    }

    // Returns the groups with the bytes and seconds of the stage that has most of each.
    std::map<std::string, GroupTime> full_groups() const {
        std::map<std::string, GroupTime> all = groups;
        for (const auto& stage : stages) {
            for (const auto& [name, traffic] : stage) {
                GroupTime& group = all[name];
                group.bytes = std::max(group.bytes, traffic.bytes);
                group.seconds = std::max(group.seconds, traffic.seconds);
            }
        }
        return all;
    }
};

// Seconds from the previous step's end to this one's; a step ends when the last host goes on.
double seconds_of_step(const virtual_clock::Times& times, const StepRecording& recording, std::size_t step) {
    auto end = [&](std::size_t number) {
        double latest = 0;
        for (std::size_t stage = 0; stage < recording.stages.size(); stage++) {
            latest = std::max(latest, times.host_waits[stage][recording.ends[stage][number].host_waits - 1]);
        }
        return latest;
    };
    return end(step) - end(step - 1);
}

// Adds up the steps' operations, which are numbered as in the replay.
void add_operations(std::vector<Sums>& sums, const StepRecording& recording, const virtual_clock::Times& times,
                    const CostModel& costs) {
    const auto stages = static_cast<double>(recording.stages.size());
    std::size_t operation = 0;
    for (std::size_t stage = 0; stage < recording.stages.size(); stage++) {
        std::size_t at = 0;
        for (std::size_t step = 0; step < sums.size(); step++) {
            sums[step].stages.resize(recording.stages.size());
            for (; at < recording.ends[stage][step].recorded; at++) {
                const RecordedStep& recorded = recording.stages[stage][at];
                if (recorded.kind != RecordedStep::Kind::operation) continue;
                const double active = times.end[operation] - times.active[operation];
                operation++;
                sums[step].flops += recorded.work.flops;
                if (recorded.work.exchanges.empty()) {
                    sums[step].computing += costs.compute_seconds(recorded) / stages;
                    continue;
                }
                auto& [bytes, seconds] = sums[step].stages[stage][group_of(recorded)];
                for (const Exchange& exchange : recorded.work.exchanges) bytes += exchange.sends;
                seconds += active;
            }
        }
    }
}

// Sums up each recorded step but the first, which only sets the state in which the second begins.
std::vector<Sums> sums_of(const StepRecording& recording, const CostModel& costs, bool groups) {
    const virtual_clock::Replay graph(recording.stages, costs);
    std::vector<Sums> sums(recording.ends.front().size());
    for (Sums& step : sums) {
        for (const auto& [name, size] : recording.groups) step.groups[name].size = size;
    }
    // replays, independent of each other: with all links as they are, with free ones, and with those of a group free
    auto run_without = [&](const std::string& group) {   // "": all groups
        return graph.run(
            {[&](const RecordedStep& step) { return group.empty() || group_of(step) == group; }, group.empty()});
    };
    virtual_clock::Times times, free;
    on_all_cores(2, [&](int i) {
        if (i == 0) times = graph.run();
        if (i == 1) free = run_without("");
    });
    add_operations(sums, recording, times, costs);
    std::vector<std::string> without;
    for (const auto& [name, group] : sums.back().full_groups()) {
        if (groups && group.bytes > 0) without.push_back(name);
    }
    std::vector<virtual_clock::Times> free_of(without.size());
    on_all_cores(static_cast<int>(without.size()), [&](int i) {
        free_of[static_cast<std::size_t>(i)] = run_without(without[static_cast<std::size_t>(i)]);
    });
    for (std::size_t step = 1; step < sums.size(); step++) {
        sums[step].seconds = seconds_of_step(times, recording, step);
        sums[step].free = seconds_of_step(free, recording, step);
        for (std::size_t i = 0; i < without.size(); i++) {
            sums[step].groups[without[i]].exposed = sums[step].seconds - seconds_of_step(free_of[i], recording, step);
        }
    }
    sums.erase(sums.begin());
    return sums;
}

// Joins the exchanges of each operation with ranks that are not recorded: these are never waited for.
void join_exchanges(StepRecording& recording) {
    for (virtual_clock::Recording& stage : recording.stages) {
        for (RecordedStep& step : stage) {
            std::vector<Exchange>& exchanges = step.work.exchanges;
            const auto own = std::ranges::partition(exchanges, [](const Exchange& e) { return e.ranks > 1; });
            if (own.empty()) continue;
            for (auto more = own.begin() + 1; more != own.end(); ++more) {
                own.front().sends += more->sends, own.front().receives += more->receives;
            }
            exchanges.erase(own.begin() + 1, own.end());
        }
    }
}

}   // namespace

double collective_seconds(const Machine& machine, const PlannedGroup& group, double bytes, int passes) {
    const double hop = group.nodes > 1 ? machine.inter.seconds / 14e-6 : machine.intra.seconds / 3.4e-6;
    const double speed = machine.collective_bytes_per_second(group.ranks, group.nodes);
    return nccl_time::seconds(bytes, group.ranks, group.nodes, passes, speed, hop);
}

CostModel costs_of(const Machine& machine, const std::map<std::string, PlannedGroup>& groups) {
    CostModel costs;
    costs.seconds_per_exchanged_byte = 1 / machine.intra.bytes_per_second;
    costs.seconds_per_exchanged_byte_between_nodes = 1 / machine.inter.bytes_per_second;
    costs.multiprocessors = machine.multiprocessors;
    costs.multiprocessors_of_exchange = kCollectiveMultiprocessors;
    costs.in_launch_order = true;
    costs.compute_seconds = [machine](const RecordedStep& step) {
        if (!step.work.exchanges.empty()) return 0.0;
        const double bytes = step.work.bytes;
        if (!is_attention(step.name)) return machine.seconds_of(step.work.flops, bytes);
        return machine.kernel_seconds +
               std::max(step.work.flops / machine.attention_per_second, bytes / machine.copy_bytes_per_second);
    };
    costs.exchange_seconds = [machine, groups](const RecordedStep& step) {
        const auto found = groups.find(group_of(step));
        const PlannedGroup group = found == groups.end() ? PlannedGroup{} : found->second;
        double bytes = 0;
        for (const Exchange& exchange : step.work.exchanges) bytes += exchange.sends;
        // the replay adds the time of the bytes on a link that others use, too
        const Link& link = machine.link(group.nodes);
        const double added = bytes / link.bytes_per_second;
        if (step.name.starts_with("transfer")) {
            const bool to_all = group_of(step) == "cp ulysses" || group_of(step) == kExpertGroup;
            return link.seconds + (to_all ? machine.all_to_all_seconds(bytes, group.ranks, group.nodes) - added : 0);
        }
        return collective_seconds(machine, group, bytes, step.name.starts_with("all-reduce") ? 2 : 1) - added;
    };
    return costs;
}

double attention_rate(const Options& options, const ModelConfig& config, const Machine& machine) {
    const double pieces = options.cp / static_cast<double>(options.ulysses());   // a ring has one on each rank
    return machine.attention_rate(options.seq_len / pieces, static_cast<double>(config.head_size()));
}

StepTime step_time(const Options& options, const ModelConfig& config, const MeshShape& mesh, const Machine& machine,
                   bool groups) {
    Machine of_run = machine;
    of_run.attention_per_second = attention_rate(options, config, machine);
    const bool in_groups = takes_groups(options.pipeline.kind) && mesh.pp > 1;
    const int m = options.micro_steps(), p = mesh.pp, least = in_groups ? p : 1;
    const int few = in_groups ? 2 * p : p + (p + 1) / 2, more = in_groups ? 3 * p : 2 * p + 1;
    const bool drawn = m > more + 1;
    StepRecording recording =
        record_steps(options, config, mesh, machine.devices_per_node,
                     drawn ? std::vector<int>{least, few, more} : std::vector<int>{std::min(m, least), m});
    join_exchanges(recording);
    const std::vector<Sums> found = sums_of(recording, costs_of(of_run, recording.groups), groups);
    Sums sums = found.front();
    if (drawn) {
        const double times = static_cast<double>(m - few) / (more - few);
        sums = {};
        sums.add(found[1], times);
        sums.add(found[0], 1 - times);
    }
    return {.seconds = sums.seconds,
            .computing = sums.computing,
            .flops = sums.flops,
            .exposed = std::max(0.0, sums.seconds - sums.free),
            .bubble_share = std::max(0.0, 1 - sums.computing / sums.free),
            .groups = sums.full_groups()};
}
