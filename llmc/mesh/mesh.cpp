#include "llmc/mesh/mesh.h"

#include <algorithm>
#include <array>

#include "llmc/base/ensure.h"
#include "llmc/base/error.h"

namespace {

// One axis of a mesh: its ranks, and how far apart in the world two of them are that differ by one along it.
struct AxisRow {
    Axis axis;
    const char* name;
    int (*ranks)(const MeshShape&);
    int (*stride)(const MeshShape&);
};
using M = const MeshShape&;
constexpr std::array<AxisRow, mesh_axes.size()> axis_rows{{
    {Axis::pp, "pp", [](M m) { return m.pp; }, [](M m) { return m.stage(); }},
    {Axis::dp, "dp", [](M m) { return m.dp; }, [](M m) { return m.cp * m.tp; }},
    {Axis::cp, "cp", [](M m) { return m.cp; }, [](M m) { return m.tp; }},
    {Axis::replica, "replica", [](M m) { return m.dp * m.cp / m.shards(); }, [](M m) { return m.shards() * m.tp; }},
    {Axis::shard, "shard", [](M m) { return m.shards(); }, [](M m) { return m.tp; }},
    {Axis::tp, "tp", [](M m) { return m.tp; }, [](M) { return 1; }},
    {Axis::holder, "holder", [](M m) { return m.stage() / m.ep; }, [](M m) { return m.ep; }},
    {Axis::ep, "ep", [](M m) { return m.ep; }, [](M) { return 1; }},
}};
static_assert(std::ranges::equal(axis_rows, mesh_axes, {}, &AxisRow::axis));

const AxisRow& row_of(Axis axis) { return axis_rows[static_cast<std::size_t>(axis)]; }

int coordinate_of(const MeshShape& shape, int rank, Axis axis) {
    return rank / row_of(axis).stride(shape) % row_of(axis).ranks(shape);
}

}   // namespace

int MeshShape::along(Axis axis) const { return row_of(axis).ranks(*this); }

int rank_of(const MeshShape& shape, const MeshCoordinates& at) {
    auto along = [&](Axis axis, int coordinate) { return coordinate * row_of(axis).stride(shape); };
    return along(Axis::pp, at.pp) + along(Axis::dp, at.dp) + along(Axis::cp, at.cp) + along(Axis::tp, at.tp);
}

MeshCoordinates coordinates_of(const MeshShape& shape, int rank) {
    ENSURE(rank >= 0 && rank < shape.size(), "rank ", rank, " of ", shape.size());
    auto along = [&](Axis axis) { return coordinate_of(shape, rank, axis); };
    return {.pp = along(Axis::pp), .dp = along(Axis::dp), .cp = along(Axis::cp), .tp = along(Axis::tp)};
}

int coordinate(const MeshShape& shape, const MeshCoordinates& at, Axis axis) {
    return coordinate_of(shape, rank_of(shape, at), axis);
}

int group_size(const MeshShape& shape, AxisSet axes) {
    int size = 1;
    for (Axis axis : mesh_axes) {
        if (axes.contains(axis)) size *= shape.along(axis);
    }
    return size;
}

int group_rank(const MeshShape& shape, const MeshCoordinates& at, AxisSet axes) {
    int rank = 0;
    for (Axis axis : mesh_axes) {
        if (axes.contains(axis)) rank = rank * shape.along(axis) + coordinate(shape, at, axis);
    }
    return rank;
}

AxisSet varying_axes(const MeshShape& shape, AxisSet axes) {
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

int group_color(const MeshShape& shape, const MeshCoordinates& at, AxisSet axes) {
    const int rank = rank_of(shape, at);
    int first = rank;
    for (Axis axis : mesh_axes) {
        if (axes.contains(axis)) first -= coordinate_of(shape, rank, axis) * row_of(axis).stride(shape);
    }
    return first;
}

std::vector<int> group_members(const MeshShape& shape, const MeshCoordinates& at, AxisSet axes) {
    std::vector<int> members(static_cast<std::size_t>(group_size(shape, axes)));
    for (int rank = 0; rank < shape.size(); rank++) {
        MeshCoordinates other = coordinates_of(shape, rank);
        if (group_color(shape, other, axes) == group_color(shape, at, axes)) {
            members[static_cast<std::size_t>(group_rank(shape, other, axes))] = rank;
        }
    }
    return members;
}

std::string group_name(const MeshShape& shape, AxisSet axes) {
    std::string name;
    for (Axis axis : mesh_axes) {
        if (!varying_axes(shape, axes).contains(axis)) continue;
        name += text(name.empty() ? "" : "_", row_of(axis).name);
    }
    return name;
}

Replica replica_of(const MeshShape& shape, const MeshCoordinates& at) {
    ENSURE(shape.shards() % shape.cp == 0, "replicas of ", shape.shards(), " ranks, sequences of ", shape.cp);
    Replica replica{shape, at, coordinate(shape, at, Axis::replica), shape.along(Axis::replica)};
    replica.mesh.dp = shape.shards() / shape.cp;
    replica.mesh.zero_group = 0;
    replica.at.dp = at.dp % replica.mesh.dp;
    return replica;
}

int checked_zero_group(int ranks, int zero_group) {
    if (zero_group == 0 || zero_group == ranks) return 0;
    if (zero_group >= 1 && ranks % zero_group == 0) return zero_group;
    std::string fitting;
    for (int n = 2; n <= ranks; n++) {
        if (ranks % n == 0) fitting += text(fitting.empty() ? "" : ", ", n);
    }
    throw Error(ErrorKind::usage,
                text("--zero-group ", zero_group, " does not fit: expected a number that divides the ", ranks,
                     " ranks of dp x cp"),
                fitting.empty() ? "Start more ranks; or leave --zero-group out, with --local-steps give 1."
                                : text("Groups that work: ", fitting, "; 1 only with --local-steps."));
}

void check_expert_ranks(const MeshShape& mesh) {
    const int ranks = mesh.shards() * mesh.tp;   // that hold a copy of the stage
    if (mesh.ep >= 1 && ranks % mesh.ep == 0) return;
    std::string fitting;
    for (int n = 1; n <= ranks; n++) {
        if (ranks % n == 0) fitting += text(fitting.empty() ? "" : ", ", n);
    }
    const char* const where = mesh.zero_group > 0 ? " ranks that a group of --zero-group has on a stage"
                              : mesh.pp > 1       ? " ranks that a pipeline stage has"
                                                  : " ranks that there are";
    throw Error(ErrorKind::usage,
                text("--ep ", mesh.ep, " does not fit: expected a divisor of the dp x cp x tp = ", ranks, where),
                text("Values that work: ", fitting, "."));
}

MeshShape make_mesh(int world, int pp, int cp, int tp, int dp, int zero_group, int ep) {
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
