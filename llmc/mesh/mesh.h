// Where a rank stands: the world of ranks as a grid pp x dp x cp x tp, tp fastest.
//
// tp varies fastest because its traffic is the heaviest: neighbouring ranks share a node and its links. Pure functions,
// no communication; communicators are split from the world by `group_color` and ordered by `group_rank`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/base/error.h"

struct MeshShape {
    int pp = 1;   // pipeline stages
    int dp = 1;   // data-parallel replicas
    int cp = 1;   // context-parallel pieces of each sequence
    int tp = 1;   // tensor-parallel shards of each matrix

    int size() const { return pp * dp * cp * tp; }
    // Ranks over which ZeRO cuts: all that hold the same tp shard of the same stage and see other tokens.
    int zero_ranks() const { return dp * cp; }
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

// Rank within the ZeRO group (dp x cp, cp fastest).
inline int zero_rank(const MeshShape& shape, const MeshCoordinates& at) { return at.dp * shape.cp + at.cp; }

// A group is all ranks that differ only along the named axes. `zero` is dp x cp, the group of gradient reductions.
enum class MeshAxis : std::uint8_t { pp, dp, cp, tp, zero };
inline constexpr std::size_t kMeshAxes = 5;

inline int group_size(const MeshShape& shape, MeshAxis axis) {
    switch (axis) {
        case MeshAxis::pp: return shape.pp;
        case MeshAxis::dp: return shape.dp;
        case MeshAxis::cp: return shape.cp;
        case MeshAxis::tp: return shape.tp;
        case MeshAxis::zero: return shape.zero_ranks();
    }
    return 0;
}

inline int group_rank(const MeshShape& shape, const MeshCoordinates& at, MeshAxis axis) {
    switch (axis) {
        case MeshAxis::pp: return at.pp;
        case MeshAxis::dp: return at.dp;
        case MeshAxis::cp: return at.cp;
        case MeshAxis::tp: return at.tp;
        case MeshAxis::zero: return zero_rank(shape, at);
    }
    return 0;
}

// The same for all ranks of one group, different for different groups: the world rank of the group's first member.
inline int group_color(const MeshShape& shape, MeshCoordinates at, MeshAxis axis) {
    switch (axis) {
        case MeshAxis::pp: at.pp = 0; break;
        case MeshAxis::dp: at.dp = 0; break;
        case MeshAxis::cp: at.cp = 0; break;
        case MeshAxis::tp: at.tp = 0; break;
        case MeshAxis::zero: at.dp = at.cp = 0; break;
    }
    return rank_of(shape, at);
}

// World ranks of the group of `at` along `axis`, ordered by their rank in it.
inline std::vector<int> group_members(const MeshShape& shape, const MeshCoordinates& at, MeshAxis axis) {
    std::vector<int> members(static_cast<std::size_t>(group_size(shape, axis)));
    for (int rank = 0; rank < shape.size(); rank++) {
        MeshCoordinates other = coordinates_of(shape, rank);
        if (group_color(shape, other, axis) == group_color(shape, at, axis)) {
            members[static_cast<std::size_t>(group_rank(shape, other, axis))] = rank;
        }
    }
    return members;
}

// The mesh of `world` ranks: dp is what pp, cp and tp leave, and is checked when given (0: not given).
// Throws Error(usage) when they do not fit.
inline MeshShape make_mesh(int world, int pp, int cp, int tp, int dp = 0) {
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
    return MeshShape{pp, rest, cp, tp};
}
