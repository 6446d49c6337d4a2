#include "llmc/plan/step_recording.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "llmc/base/log.h"
#include "llmc/base/stand_in.h"
#include "llmc/plan/all_cores.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/part_options.h"
#include "llmc/run/run_parts.h"

using virtual_clock::communicator_of;
using virtual_clock::Exchange;
using virtual_clock::RecordedStep;
using virtual_clock::Recording;

bool can_record_steps() { return stand_in() != nullptr; }

std::string group_of(const std::string& operation) {
    const std::size_t begin = operation.rfind(" (");
    if (begin == std::string::npos || !operation.ends_with(")")) return "";
    return short_group_name(operation.substr(begin + 2, operation.size() - begin - 3));
}
std::string group_of(const RecordedStep& step) { return step.work.exchanges.empty() ? "" : group_of(step.name); }

int most_nodes(const std::vector<int>& members, int ranks, int devices_per_node) {
    if (members.empty() || ranks <= devices_per_node) return 1;
    auto nodes_from = [&](int shift) {
        std::set<int> nodes;
        for (const int member : members) nodes.insert((member + shift) / devices_per_node);
        return static_cast<int>(nodes.size());
    };
    const auto [least, most] = std::ranges::minmax(members);
    int nodes = nodes_from(0);
    std::vector<bool> is_taken(static_cast<std::size_t>(ranks));
    for (int first = 0; first + most - least < ranks; first++) {
        if (is_taken[static_cast<std::size_t>(first)]) continue;
        for (const int member : members) is_taken[static_cast<std::size_t>(first + member - least)] = true;
        nodes = std::max(nodes, nodes_from(first - least));
    }
    return nodes;
}

namespace {

struct RecordedRank {
    Recording steps;
    std::vector<StepRecording::End> ends;
    std::size_t bytes = 0;
    std::map<std::string, std::vector<int>> groups;   // the ranks of each, by name
};

RecordedRank record_rank(const Options& options, const ModelConfig& config, World& world,
                         const std::vector<int>& micro_batches) {
    RecordedRank rank;
    stand_in()->on_dry_device([&] {
        OwnedStream stream;
        Arena arena;
        const std::int64_t unit = options.tokens_per_micro_step();
        RunParts parts(options.with_batch(*std::ranges::max_element(micro_batches) * unit), config, world, arena,
                       stream.get());
        Step& step = parts.make_step(options, arena);
        auto read = [](int, const MicroBatch& to) {
            std::ranges::fill(to.tokens, 0);
            std::ranges::fill(to.targets, 0);
        };
        int number = 0;
        std::size_t waits = 0;
        for (const int m : micro_batches) {
            const PipelineSchedule schedule =
                options.pp > 1 ? schedule_of_stage(options.with_batch(m * unit), world.at().pp) : one_stage_schedule(m);
            Recording own = stand_in()->record([&] {
                step.gradients(schedule, read, 1.0f);
                step.update(++number, 1e-3f);
                step.result();
            });
            using Kind = RecordedStep::Kind;
            waits += static_cast<std::size_t>(std::ranges::count_if(own, [](const RecordedStep& recorded) {
                return recorded.kind == Kind::host_waited_for_stream || recorded.kind == Kind::host_waited_for_event;
            }));
            std::ranges::move(own, std::back_inserter(rank.steps));
            rank.ends.push_back({rank.steps.size(), waits});
        }
        rank.bytes = arena.high_water();
    });
    return rank;
}

// Returns the number of recorded stages that take part in each exchange of communicators that several stages have; in
// all others one does.
std::unordered_map<std::uint64_t, int> sharing_stages(const std::vector<Recording>& stages) {
    auto for_each_exchange = [](const Recording& stage, const auto& work) {
        for (const RecordedStep& step : stage) {
            for (const Exchange& exchange : step.work.exchanges) work(exchange.key);
        }
    };
    std::unordered_map<std::uint64_t, std::set<std::size_t>> of_communicator;
    for (std::size_t i = 0; i < stages.size(); i++) {
        std::set<std::size_t>* last = nullptr;   // stages of the communicator of the exchange before
        std::uint64_t communicator = 0;
        for_each_exchange(stages[i], [&](std::uint64_t key) {
            if (!last || communicator_of(key) != communicator)
                last = &of_communicator[communicator = communicator_of(key)];
            last->insert(i);
        });
    }
    std::unordered_map<std::uint64_t, int> who;
    for (const Recording& stage : stages) {
        std::unordered_set<std::uint64_t> own;
        for_each_exchange(stage, [&](std::uint64_t key) {
            if (of_communicator.at(communicator_of(key)).size() > 1) own.insert(key);
        });
        for (const std::uint64_t key : own) who[key]++;
    }
    return who;
}

// Makes each exchange wait for the recorded stages only; other ranks count only in whether it leaves the node.
void stand_for_all(StepRecording& found) {
    const std::unordered_map<std::uint64_t, int> who = sharing_stages(found.stages);
    for (Recording& stage : found.stages) {
        for (RecordedStep& step : stage) {
            const auto group = found.groups.find(group_of(step));
            std::vector<Exchange>& exchanges = step.work.exchanges;
            for (Exchange& exchange : exchanges) {
                const auto sharing = who.find(exchange.key);
                exchange.ranks = sharing == who.end() ? 1 : sharing->second;
                exchange.between_nodes = group != found.groups.end() && group->second.nodes > 1;
            }
        }
    }
}

}   // namespace

StepRecording record_steps(const Options& options, const ModelConfig& config, const MeshShape& mesh,
                           int devices_per_node, const std::vector<int>& micro_batches) {
    std::vector<RecordedRank> ranks(static_cast<std::size_t>(mesh.pp));
    on_all_cores(mesh.pp, [&](int stage) {
        World world(mesh, rank_of(mesh, {.pp = stage, .cp = mesh.cp - 1}), options.comm_sms);
        RecordedRank& rank = ranks[static_cast<std::size_t>(stage)];
        rank = record_rank(options, config, world, micro_batches);
        rank.groups = world.planned_groups();
    });
    StepRecording found;
    for (RecordedRank& rank : ranks) {
        found.stages.push_back(std::move(rank.steps));
        found.ends.push_back(std::move(rank.ends));
        found.most_bytes = std::max(found.most_bytes, rank.bytes);
        for (const auto& [name, members] : rank.groups) {
            PlannedGroup& group = found.groups[short_group_name(name)];
            group.ranks = std::max(group.ranks, static_cast<int>(members.size()));
            group.nodes = std::max(group.nodes, most_nodes(members, mesh.size(), devices_per_node));
        }
    }
    stand_for_all(found);
    return found;
}
