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

// Axes, slowest first. An AxisSet has axes of one of the grids only.
enum class Axis : std::uint8_t { pp, dp, cp, replica, shard, tp, holder, ep };
inline constexpr std::array<Axis, 8> mesh_axes{Axis::pp,    Axis::dp, Axis::cp,     Axis::replica,
                                               Axis::shard, Axis::tp, Axis::holder, Axis::ep};

class AxisSet {
public:
    constexpr AxisSet() = default;   // nvcc 13.0 makes {} a list of one axis without it
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
// Ranks that together hold one copy of the whole model: a replica.
inline constexpr AxisSet model_axes{Axis::pp, Axis::shard, Axis::tp};

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
    int along(Axis axis) const;   // ranks
    friend bool operator==(const MeshShape&, const MeshShape&) = default;
};

struct MeshCoordinates {
    int pp = 0, dp = 0, cp = 0, tp = 0;
    friend bool operator==(const MeshCoordinates&, const MeshCoordinates&) = default;
};

int rank_of(const MeshShape& shape, const MeshCoordinates& at);
MeshCoordinates coordinates_of(const MeshShape& shape, int rank);

int coordinate(const MeshShape& shape, const MeshCoordinates& at, Axis axis);

// Returns the number of ranks in a group. A group is all ranks that differ only along the axes of the set, ordered as
// in the world.
int group_size(const MeshShape& shape, AxisSet axes);

int group_rank(const MeshShape& shape, const MeshCoordinates& at, AxisSet axes);

// Returns the axes of the set along which there is more than one rank, so two sets with the same groups give the same
// result. Where replica and shard equal dp and cp, or both together do, they go by these names; so do holder and ep
// where they equal axes of the first grid.
AxisSet varying_axes(const MeshShape& shape, AxisSet axes);

// Returns the same number for all ranks of a group and different ones for different groups: the world rank of the
// group's first member.
int group_color(const MeshShape& shape, const MeshCoordinates& at, AxisSet axes);

// Returns the world ranks of the group of `at`, in the group's order.
std::vector<int> group_members(const MeshShape& shape, const MeshCoordinates& at, AxisSet axes);

// Returns the names of varying_axes for messages, as in "dp_cp".
std::string group_name(const MeshShape& shape, AxisSet axes);

// Returns true if a rank adds its losses, or the answers it counts from them, to a sum over all ranks: a rank with the
// head and tp 0, because all tp ranks have the same losses.
constexpr bool adds_losses(const MeshCoordinates& at, bool has_head) { return has_head && at.tp == 0; }

// Returns the value that MeshShape::zero_group keeps. Throws Error(usage), naming the values that fit, where `ranks`
// cannot be cut into such groups.
int checked_zero_group(int ranks, int zero_group);

// A replica as a mesh of its own, for models that differ between replicas (local steps). A replica must have whole
// sequences: zero_group is a multiple of cp.
struct Replica {
    MeshShape mesh;       // ranks of one replica
    MeshCoordinates at;   // in it
    int number, replicas;
};
Replica replica_of(const MeshShape& shape, const MeshCoordinates& at);

// Throws Error(usage) where experts cannot be dealt out to groups of mesh.ep ranks of a stage, each within a zero_group.
void check_expert_ranks(const MeshShape& mesh);

// Returns the mesh of `world` ranks: dp is what pp, cp and tp leave, and is checked when given (0: not given). Throws
// Error(usage) when they do not fit.
MeshShape make_mesh(int world, int pp, int cp, int tp, int dp = 0, int zero_group = 0, int ep = 1);
