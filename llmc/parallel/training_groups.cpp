#include "llmc/parallel/training_groups.h"

#include <utility>

#include "llmc/mesh/context_cut.h"

namespace {

// Returns this rank's end of the link from stage `from` to stage `to`; null where there is none for it in this round,
// in which links between other stages are made. A link is known by its name: `what` tells apart those of several sets.
Communicator* make_link(World& world, const std::string& what, int round, int from, int to, bool exists) {
    const int stage = world.at().pp;
    if (!exists || (stage != from && stage != to)) return world.link(text("no pp ", what, " in round ", round), -1, -1);
    auto rank_at = [&](int pp) {
        MeshCoordinates place = world.at();
        place.pp = pp;
        return rank_of(world.mesh(), place);
    };
    return world.link(text("pp ", what, " ", from, " to ", to), rank_at(from), rank_at(to));
}

// Makes the links i -> i + 1 of even i at once, then those of odd i; where the last one closes a ring of odd size, it
// comes after them.
PipelineLinks pipeline_links(World& world, bool ring, bool tied) {
    PipelineLinks links;
    const int p = world.mesh().pp, stage = world.at().pp;
    if (p == 1) return links;
    const std::string set = ring ? "ring " : "";
    auto round_of = [&](int i) { return i == p - 1 && p % 2 == 1 ? 2 : i % 2; };
    for (int round = 0; round < (ring && p % 2 == 1 ? 3 : 2); round++) {
        const int next = stage, previous = (stage + p - 1) % p;   // the links to the next stage and from the previous
        const bool up = round_of(next) == round, down = round_of(previous) == round;   // never both
        const int link = up ? next : previous, after = (link + 1) % p;
        const bool exists = (up || down) && (ring || link < p - 1);
        Communicator* const forward = make_link(world, set + "forward", round, link, after, exists);
        Communicator* const backward = make_link(world, set + "backward", round, after, link, exists);
        if (up) links.output = forward, links.output_gradient = backward;
        if (down) links.input = forward, links.input_gradient = backward;
    }
    if (tied) links.tied = make_link(world, "tied", 0, 0, p - 1, true);
    return links;
}

Communicator* same_heads(World& world, int copies) {
    if (copies == 1) return nullptr;
    std::vector<int> members;
    for (int i = 0; i < copies; i++) {
        MeshCoordinates place = world.at();
        place.tp = place.tp / copies * copies + i;
        members.push_back(rank_of(world.mesh(), place));
    }
    return world.group("tp same heads", members);
}

// Returns the ranks of this replica that hold the same experts; null if it is this one alone.
Communicator* holders_in_replica(World& world) {
    const Replica own = replica_of(world.mesh(), world.at());
    if (own.mesh.ep == 1) return nullptr;
    std::vector<int> members;
    for (const int member : group_members(own.mesh, own.at, holder_axes)) {
        MeshCoordinates place = coordinates_of(own.mesh, member);
        place.dp += own.number * own.mesh.dp;
        members.push_back(rank_of(world.mesh(), place));
    }
    return world.group("holders of experts in a replica", members);
}

// Returns the group of the cp ranks `members` of this rank's sequence; null for one rank.
Communicator* cp_group(World& world, const char* name, const std::vector<int>& members) {
    if (members.size() == 1) return nullptr;
    std::vector<int> ranks;
    for (int cp : members) {
        MeshCoordinates at = world.at();
        at.cp = cp;
        ranks.push_back(rank_of(world.mesh(), at));
    }
    return world.group(name, ranks);
}

}   // namespace

StageGroups stage_groups(World& world, int ulysses) {
    const ContextCut cut{world.mesh().cp, ulysses, world.at().cp};
    return {.tp = world.mesh().tp > 1 ? world.group({Axis::tp}) : nullptr,
            .ring = cp_group(world, "cp ring", cut.ring_members()),
            .ulysses = cp_group(world, "cp ulysses", cut.ulysses_members())};
}

TrainingGroups training_groups(World& world, bool ring, bool tied, int head_copies) {
    return {.zero = world.group(zero_axes),
            .all = world.all(),
            .stage = world.group(stage_axes),
            .tensor = world.group({Axis::tp}),
            .links = pipeline_links(world, ring, tied),
            .same_heads = same_heads(world, head_copies),
            .replicas = world.group(replica_axes),
            .copy = world.group(copy_axes),
            .holders = world.mesh().ep > 1 ? world.group(holder_axes) : nullptr};
}

TrainingGroups training_groups(World& world, const ModelConfig& config, int pp_chunks, bool local) {
    TrainingGroups groups = training_groups(world, pp_chunks > 1, config.tied, config.kv_copies(world.mesh().tp));
    if (!local) return groups;
    groups.world = groups.all;
    groups.outer = std::exchange(groups.replicas, nullptr);
    if (groups.outer == nullptr) return groups;
    groups.all = world.group(model_axes);
    groups.stage = groups.copy;
    groups.holders = holders_in_replica(world);
    return groups;
}
