#include "llmc/mesh/mesh.h"

#include "llmc/base/ensure.h"
#include "llmc/base/error.h"

MeshCoordinates coordinates_of(const MeshShape& shape, int rank) {
    ENSURE(rank >= 0 && rank < shape.size(), "rank ", rank, " of ", shape.size());
    MeshCoordinates at;
    at.tp = rank % shape.tp;
    at.cp = rank / shape.tp % shape.cp;
    at.dp = rank / shape.tp / shape.cp % shape.dp;
    at.pp = rank / shape.tp / shape.cp / shape.dp;
    return at;
}

int coordinate(const MeshShape& shape, const MeshCoordinates& at, Axis axis) {
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

int group_color(const MeshShape& shape, MeshCoordinates at, AxisSet axes) {
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
    constexpr const char* names[] = {"pp", "dp", "cp", "replica", "shard", "tp", "holder", "ep"};
    std::string name;
    for (Axis axis : mesh_axes) {
        if (!varying_axes(shape, axes).contains(axis)) continue;
        name += text(name.empty() ? "" : "_", names[static_cast<std::size_t>(axis)]);
    }
    return name;
}

int checked_zero_group(int ranks, int zero_group) {
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

void check_expert_ranks(const MeshShape& mesh) {
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
