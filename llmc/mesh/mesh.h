// Places ranks in a mesh: the world of ranks is a grid pp x dp x cp x tp, tp fastest.
//
// The ranks of dp x cp hold the same part of the model. ZeRO cuts them another way, replica x shard: a state is cut
// over `zero_group` neighbouring ranks of these, and each such group holds one copy of it (hybrid sharding; Zhao et
// al., "PyTorch FSDP", 2023; Zhang et al., "MiCS", 2022). So the same world is also a grid pp x replica x shard x tp.
// Experts of a mixture are dealt out to `ep` neighbouring ranks among the dp x cp x tp of a stage, and dp cp tp / ep
// such groups hold them: a third grid, pp x holder x ep.
//
// tp varies fastest because its traffic is the heaviest: neighbouring ranks share a node and its links. Pure functions,
// no communication. A group of ranks is named by the axes along which its ranks differ; communicators are split from
// the world by `group_color` and ordered by `group_rank`.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "llmc/base/ensure.h"
#include "llmc/base/error.h"

// Axes, slowest first. An AxisSet has axes of one of the grids only.
enum class Axis : std::uint8_t { pp, dp, cp, replica, shard, tp, holder, ep };
inline constexpr std::array<Axis, 8> mesh_axes{Axis::pp,    Axis::dp, Axis::cp,     Axis::replica,
                                               Axis::shard, Axis::tp, Axis::holder, Axis::ep};

class AxisSet {
public:
    constexpr AxisSet(std::initializer_list<Axis> axes) {
        for (Axis axis : axes) bits_ |= 1u << static_cast<unsigned>(axis);
    }
    constexpr bool contains(Axis axis) const { return (bits_ >> static_cast<unsigned>(axis) & 1u) != 0; }
    friend constexpr AxisSet operator|(AxisSet a, AxisSet b) { return a.bits_ |= b.bits_, a; }
    friend constexpr auto operator<=>(const AxisSet&, const AxisSet&) = default;

private:
    unsigned bits_ = 0;
};

// Ranks that hold the same part of the model and see other tokens. ZeRO cuts over the first set; its shards are copied
// along the second. Gradients are summed over both.
inline constexpr AxisSet zero_axes{Axis::shard};
inline constexpr AxisSet replica_axes{Axis::replica};
// Ranks that hold the same experts, when experts are dealt out: gradients of experts are summed over them, and ZeRO
// cuts over them.
inline constexpr AxisSet holder_axes{Axis::holder};
// Ranks of one pipeline stage: each tensor that one of them holds a part of is whole among them.
inline constexpr AxisSet stage_axes{Axis::dp, Axis::cp, Axis::tp};
// Ranks of a stage that together hold one copy of each state.
inline constexpr AxisSet copy_axes{Axis::shard, Axis::tp};

struct MeshShape {
    int pp = 1;           // pipeline stages
    int dp = 1;           // data-parallel replicas
    int cp = 1;           // context-parallel pieces of each sequence
    int tp = 1;           // tensor-parallel shards of each matrix
    int zero_group = 0;   // neighbouring ranks of dp x cp that ZeRO cuts over, a divisor of dp x cp; 0: all
    int ep = 1;           // ranks of dp x cp x tp that experts are dealt out to, a divisor of dp x cp x tp

    int size() const { return pp * dp * cp * tp; }
    int stage() const { return dp * cp * tp; }
    int shards() const { return zero_group == 0 ? dp * cp : zero_group; }
    int along(Axis axis) const {
        return std::array{
            pp, dp, cp, dp * cp / shards(), shards(), tp, stage() / ep, ep}[static_cast<std::size_t>(axis)];
    }
    friend bool operator==(const MeshShape&, const MeshShape&) = default;
};

struct MeshCoordinates {
    int pp = 0, dp = 0, cp = 0, tp = 0;
    friend bool operator==(const MeshCoordinates&, const MeshCoordinates&) = default;
};

inline int rank_of(const MeshShape& shape, const MeshCoordinates& at) {
    return ((at.pp * shape.dp + at.dp) * shape.cp + at.cp) * shape.tp + at.tp;
}

inline MeshCoordinates coordinates_of(const MeshShape& shape, int rank) {
    ENSURE(rank >= 0 && rank < shape.size(), "rank ", rank, " of ", shape.size());
    MeshCoordinates at;
    at.tp = rank % shape.tp;
    at.cp = rank / shape.tp % shape.cp;
    at.dp = rank / shape.tp / shape.cp % shape.dp;
    at.pp = rank / shape.tp / shape.cp / shape.dp;
    return at;
}

inline int coordinate(const MeshShape& shape, const MeshCoordinates& at, Axis axis) {
    const int of_zero = at.dp * shape.cp + at.cp, of_stage = of_zero * shape.tp + at.tp;
    return std::array{at.pp,
                      at.dp,
                      at.cp,
                      of_zero / shape.shards(),
                      of_zero % shape.shards(),
                      at.tp,
                      of_stage / shape.ep,
                      of_stage % shape.ep}[static_cast<std::size_t>(axis)];
}

// Returns the number of ranks in a group. A group is all ranks that differ only along the axes of the set, ordered as
// in the world.
inline int group_size(const MeshShape& shape, AxisSet axes) {
    int size = 1;
    for (Axis axis : mesh_axes) {
        if (axes.contains(axis)) size *= shape.along(axis);
    }
    return size;
}

inline int group_rank(const MeshShape& shape, const MeshCoordinates& at, AxisSet axes) {
    int rank = 0;
    for (Axis axis : mesh_axes) {
        if (axes.contains(axis)) rank = rank * shape.along(axis) + coordinate(shape, at, axis);
    }
    return rank;
}

// Returns the axes of the set along which there is more than one rank, so two sets with the same groups give the same
// result. Where replica and shard equal dp and cp, or both together do, they go by these names; so do holder and ep
// where they equal axes of the first grid.
inline AxisSet varying_axes(const MeshShape& shape, AxisSet axes) {
    AxisSet varying{};
    const bool ep = axes.contains(Axis::ep), holder = axes.contains(Axis::holder);
    bool named = true;   // ep and holder are replaced by axes of the first grid
    if (shape.ep == 1 || (ep && holder)) {
        if (holder) axes = axes | stage_axes;
    } else if (shape.ep == shape.tp) {
        if (ep) axes = axes | AxisSet{Axis::tp};
        if (holder) axes = axes | AxisSet{Axis::dp, Axis::cp};
    } else if (shape.ep == shape.cp * shape.tp) {
        if (ep) axes = axes | AxisSet{Axis::cp, Axis::tp};
        if (holder) axes = axes | AxisSet{Axis::dp};
    } else if (shape.ep == shape.stage()) {
        if (ep) axes = axes | stage_axes;
    } else {
        named = false;
    }
    const bool shard = axes.contains(Axis::shard), replica = axes.contains(Axis::replica);
    const bool all = shard && (replica || shape.shards() == shape.dp * shape.cp);
    const bool same = shape.shards() == shape.cp;   // shard is cp, replica dp
    if (all || (same && shard)) axes = axes | AxisSet{Axis::cp};
    if (all || (same && replica)) axes = axes | AxisSet{Axis::dp};
    for (Axis axis : mesh_axes) {
        if ((axis == Axis::replica || axis == Axis::shard) && (all || same)) continue;
        if ((axis == Axis::holder || axis == Axis::ep) && named) continue;
        if (axes.contains(axis) && shape.along(axis) > 1) varying = varying | AxisSet{axis};
    }
    return varying;
}

// Returns the same number for all ranks of a group and different ones for different groups: the world rank of the
// group's first member.
inline int group_color(const MeshShape& shape, MeshCoordinates at, AxisSet axes) {
    if (axes.contains(Axis::pp)) at.pp = 0;
    if (axes.contains(Axis::dp)) at.dp = 0;
    if (axes.contains(Axis::cp)) at.cp = 0;
    if (axes.contains(Axis::tp)) at.tp = 0;
    int of_zero = at.dp * shape.cp + at.cp;
    if (axes.contains(Axis::replica)) of_zero %= shape.shards();
    if (axes.contains(Axis::shard)) of_zero -= of_zero % shape.shards();
    int of_stage = of_zero * shape.tp + at.tp;
    if (axes.contains(Axis::holder)) of_stage %= shape.ep;
    if (axes.contains(Axis::ep)) of_stage -= of_stage % shape.ep;
    return at.pp * shape.stage() + of_stage;
}

// Returns the world ranks of the group of `at`, in the group's order.
inline std::vector<int> group_members(const MeshShape& shape, const MeshCoordinates& at, AxisSet axes) {
    std::vector<int> members(static_cast<std::size_t>(group_size(shape, axes)));
    for (int rank = 0; rank < shape.size(); rank++) {
        MeshCoordinates other = coordinates_of(shape, rank);
        if (group_color(shape, other, axes) == group_color(shape, at, axes)) {
            members[static_cast<std::size_t>(group_rank(shape, other, axes))] = rank;
        }
    }
    return members;
}

// Returns the names of varying_axes for messages, as in "dp_cp".
inline std::string group_name(const MeshShape& shape, AxisSet axes) {
    constexpr const char* names[] = {"pp", "dp", "cp", "replica", "shard", "tp", "holder", "ep"};
    std::string name;
    for (Axis axis : mesh_axes) {
        if (!varying_axes(shape, axes).contains(axis)) continue;
        name += text(name.empty() ? "" : "_", names[static_cast<std::size_t>(axis)]);
    }
    return name;
}

// Returns true if a rank adds its losses, or the answers it counts from them, to a sum over all ranks: a rank with the
// head and tp 0, because all tp ranks have the same losses.
constexpr bool adds_losses(const MeshCoordinates& at, bool has_head) { return has_head && at.tp == 0; }

// Returns the value that MeshShape::zero_group keeps. Throws Error(usage), naming the values that fit, where `ranks`
// cannot be cut into such groups.
inline int checked_zero_group(int ranks, int zero_group) {
    if (zero_group == 0 || zero_group == ranks) return 0;
    if (zero_group > 1 && ranks % zero_group == 0) return zero_group;
    std::string fitting;
    for (int n = 2; n <= ranks; n++) {
        if (ranks % n == 0) fitting += text(fitting.empty() ? "" : ", ", n);
    }
    throw Error(ErrorKind::usage,
                text("--zero-group ", zero_group, " does not fit: ZeRO has ", ranks,
                     " ranks of dp x cp to cut over, in groups of two or more that are alike"),
                fitting.empty() ? "Leave --zero-group out, or start more ranks."
                                : text("Groups that work: ", fitting, "; for none, --zero 0."));
}

// Throws Error(usage) where experts cannot be dealt out to groups of mesh.ep ranks of a stage.
inline void check_expert_ranks(const MeshShape& mesh) {
    if (mesh.ep > 1 && mesh.shards() < mesh.dp * mesh.cp) {
        throw Error(ErrorKind::usage,
                    text("--ep ", mesh.ep, " with --zero-group ", mesh.zero_group,
                         ": experts are cut over all ranks that hold the same ones"),
                    "Leave --zero-group out, or give --ep 1.");
    }
    if (mesh.ep >= 1 && mesh.stage() % mesh.ep == 0) return;
    std::string fitting;
    for (int n = 1; n <= mesh.stage(); n++) {
        if (mesh.stage() % n == 0) fitting += text(fitting.empty() ? "" : ", ", n);
    }
    throw Error(ErrorKind::usage,
                text("--ep ", mesh.ep, " does not fit: expected a divisor of the dp x cp x tp = ", mesh.stage(),
                     " ranks that ", mesh.pp > 1 ? "a pipeline stage has" : "there are"),
                text("Values that work: ", fitting, "."));
}

// Returns the mesh of `world` ranks: dp is what pp, cp and tp leave, and is checked when given (0: not given). Throws
// Error(usage) when they do not fit.
inline MeshShape make_mesh(int world, int pp, int cp, int tp, int dp = 0, int zero_group = 0, int ep = 1) {
    auto positive = [](int value, const char* flag) {
        if (value < 1) throw Error(ErrorKind::usage, text(flag, " is ", value), text(flag, " must be at least 1."));
    };
    positive(pp, "--pp");
    positive(cp, "--cp");
    positive(tp, "--tp");
    std::int64_t model_ranks = static_cast<std::int64_t>(pp) * cp * tp;
    if (model_ranks > world || world % model_ranks != 0) {
        throw Error(ErrorKind::usage,
                    text("--pp ", pp, " x --cp ", cp, " x --tp ", tp, " = ", model_ranks, " ranks do not divide the ",
                         world, " that were started"),
                    text("Start a multiple of ", model_ranks, " ranks, or lower one of the three."));
    }
    int rest = static_cast<int>(world / model_ranks);
    if (dp != 0 && dp != rest) {
        throw Error(ErrorKind::usage,
                    text("--dp ", dp, " does not fit: ", world, " ranks over --pp ", pp, " x --cp ", cp, " x --tp ", tp,
                         " leave ", rest),
                    text("Leave --dp out, or start ", model_ranks * dp, " ranks."));
    }
    const MeshShape mesh{pp, rest, cp, tp, checked_zero_group(rest * cp, zero_group), ep};
    check_expert_ranks(mesh);
    return mesh;
}
