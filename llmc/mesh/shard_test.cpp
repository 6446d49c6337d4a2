#include "llmc/mesh/shard.h"

#include <doctest/doctest.h>

#include <map>

#include "llmc/mesh/copy_ranks_testing.h"
#include "llmc/mesh/element_home_testing.h"

namespace {

std::vector<MeshShape> all_meshes(int most_ranks) {
    std::vector<MeshShape> meshes;
    for (int world = 1; world <= most_ranks; world++) {
        for (int pp = 1; pp <= world; pp++) {
            for (int cp = 1; cp * pp <= world; cp++) {
                for (int tp = 1; tp * cp * pp <= world; tp++) {
                    if (world % (pp * cp * tp) != 0) continue;
                    const int dp = world / (pp * cp * tp);
                    meshes.push_back({pp, dp, cp, tp});
                    for (int group = 2; group < dp * cp; group++) {
                        if (dp * cp % group == 0) meshes.push_back({pp, dp, cp, tp, group});
                    }
                    for (int ep = 2; ep <= dp * cp * tp; ep++) {
                        if (dp * cp * tp % ep == 0) meshes.push_back({pp, dp, cp, tp, 0, ep});
                    }
                }
            }
        }
    }
    return meshes;
}

std::vector<AxisSet> all_axis_sets() {
    std::vector<AxisSet> sets;
    for (const auto& grid : {std::array{Axis::pp, Axis::dp, Axis::cp, Axis::tp},
                             std::array{Axis::pp, Axis::replica, Axis::shard, Axis::tp}}) {
        for (unsigned bits = 0; bits < 16; bits++) {
            AxisSet set{};
            for (std::size_t i = 0; i < grid.size(); i++) {
                if (bits >> i & 1u) set = set | AxisSet{grid[i]};
            }
            sets.push_back(set);
        }
    }
    for (const AxisSet& dealt : {AxisSet{Axis::holder}, AxisSet{Axis::ep}, AxisSet{Axis::holder, Axis::ep}}) {
        sets.push_back(dealt);
        sets.push_back(dealt | AxisSet{Axis::pp});
    }
    return sets;
}

// Small tensors of every kind, cut evenly by `tp` where the cut requires it; odd sizes everywhere else.
std::vector<TensorSpec> sample_tensors(const MeshShape& mesh) {
    const int tp = mesh.tp, ep = mesh.ep;
    return {
        {2 * 3 * ep, 7, TensorCut::experts, std::vector<std::int64_t>(static_cast<std::size_t>(2 * ep), 3)},
        {13, 1, TensorCut::none},
        {5, 29, TensorCut::none},
        {3 * tp, 7, TensorCut::column_parallel},
        {2 * tp, 1, TensorCut::column_parallel},
        {9, 5 * tp, TensorCut::row_parallel},
        {3 * 2 * tp, 11, TensorCut::column_parallel, {2 * tp, 2 * tp, 2 * tp}},
        {3 * tp, 1, TensorCut::column_parallel, {tp, tp, tp}},
        {4 * tp, 5, TensorCut::column_parallel, {2 * tp, tp, tp}},
        {128, 3, TensorCut::vocabulary},
        {100, 2, TensorCut::vocabulary},
    };
}

constexpr StateKind all_states[] = {StateKind::optimizer, StateKind::gradients, StateKind::parameters};

}   // namespace

TEST_CASE("mesh: ranks and coordinates are each other's inverse, tp fastest") {
    for (const MeshShape& mesh : all_meshes(16)) {
        for (int rank = 0; rank < mesh.size(); rank++) {
            MeshCoordinates at = coordinates_of(mesh, rank);
            REQUIRE(rank_of(mesh, at) == rank);
            if (at.tp + 1 < mesh.tp) {
                MeshCoordinates next = at;
                next.tp++;
                REQUIRE(rank_of(mesh, next) == rank + 1);
            }
        }
    }
}

TEST_CASE("mesh: groups of every set of axes partition the world, in order of their ranks") {
    for (const MeshShape& mesh : all_meshes(16)) {
        for (AxisSet axes : all_axis_sets()) {
            std::map<int, std::vector<int>> groups;
            for (int rank = 0; rank < mesh.size(); rank++) {
                MeshCoordinates at = coordinates_of(mesh, rank);
                std::vector<int> members = group_members(mesh, at, axes);
                REQUIRE(static_cast<int>(members.size()) == group_size(mesh, axes));
                REQUIRE(members[static_cast<std::size_t>(group_rank(mesh, at, axes))] == rank);
                REQUIRE(std::is_sorted(members.begin(), members.end()));
                auto [place, is_new] = groups.try_emplace(group_color(mesh, at, axes), members);
                REQUIRE(place->second == members);
            }
            REQUIRE(static_cast<int>(groups.size()) * group_size(mesh, axes) == mesh.size());
        }
    }
}

TEST_CASE("mesh: two sets of axes have the same groups where the axes that vary are the same") {
    for (const MeshShape& mesh : all_meshes(8)) {
        for (AxisSet a : all_axis_sets()) {
            for (AxisSet b : all_axis_sets()) {
                bool same = true;
                for (int rank = 0; rank < mesh.size(); rank++) {
                    const MeshCoordinates at = coordinates_of(mesh, rank);
                    same = same && group_members(mesh, at, a) == group_members(mesh, at, b);
                }
                REQUIRE(same == (varying_axes(mesh, a) == varying_axes(mesh, b)));
            }
        }
    }
}

TEST_CASE("mesh: of the ranks with the same tokens one adds their losses, where the head is") {
    for (const MeshShape& mesh : {MeshShape{1, 3, 1, 1}, MeshShape{2, 3, 1, 1}, MeshShape{3, 2, 2, 2}}) {
        std::vector<int> adding(static_cast<std::size_t>(mesh.dp * mesh.cp));   // by tokens
        for (int rank = 0; rank < mesh.size(); rank++) {
            const MeshCoordinates at = coordinates_of(mesh, rank);
            if (!adds_losses(at, at.pp == mesh.pp - 1)) continue;
            adding[static_cast<std::size_t>(group_rank(mesh, at, {Axis::dp, Axis::cp}))]++;
        }
        for (int ranks : adding) CHECK(ranks == 1);
    }
}

TEST_CASE("mesh: groups are named by the axes along which their ranks differ") {
    CHECK(group_name({2, 3, 2, 2}, zero_axes) == "dp_cp");
    CHECK(group_name({2, 3, 1, 2}, zero_axes) == "dp");
    CHECK(group_name({2, 1, 1, 2}, {Axis::tp}) == "tp");
    CHECK(group_name({2, 3, 2, 2, 3}, zero_axes) == "shard");
    CHECK(group_name({2, 3, 2, 2, 3}, replica_axes) == "replica");
    CHECK(group_name({2, 3, 2, 2, 2}, zero_axes) == "cp");
    CHECK(group_name({2, 3, 2, 2, 2}, replica_axes) == "dp");
    CHECK(group_name({1, 4, 1, 2, 0, 4}, {Axis::ep}) == "ep");
    CHECK(group_name({1, 4, 1, 2, 0, 4}, holder_axes) == "holder");
    CHECK(group_name({2, 3, 2, 2, 0, 4}, {Axis::ep}) == "cp_tp");
    CHECK(group_name({2, 3, 2, 2, 0, 2}, holder_axes) == "dp_cp");
    CHECK(AxisSet{Axis::cp, Axis::dp} == AxisSet{Axis::dp, Axis::cp});
}

TEST_CASE("mesh: sizes that do not fit are usage errors, dp is what remains") {
    CHECK(make_mesh(16, 2, 2, 2) == MeshShape{2, 2, 2, 2});
    CHECK(make_mesh(8, 1, 1, 2, 4) == MeshShape{1, 4, 1, 2});
    CHECK_THROWS_AS(make_mesh(8, 3, 1, 1), Error);
    CHECK_THROWS_AS(make_mesh(2, 2, 2, 1), Error);
    CHECK_THROWS_AS(make_mesh(8, 2, 1, 1, 3), Error);
    CHECK_THROWS_AS(make_mesh(8, 0, 1, 1), Error);
    CHECK(make_mesh(8, 2, 1, 2, 0, 0, 4) == MeshShape{2, 2, 1, 2, 0, 4});
    CHECK_THROWS_AS(make_mesh(8, 2, 1, 2, 0, 0, 8), Error);   // a stage has four
    CHECK(make_mesh(8, 1, 1, 1, 0, 4, 2) == MeshShape{1, 8, 1, 1, 4, 2});
    CHECK_THROWS_AS(make_mesh(8, 1, 1, 1, 0, 4, 8), Error);   // a group of ZeRO has four
    const MeshShape dealt = make_mesh(8, 1, 1, 2, 0, 0, 4);
    CHECK(group_members(dealt, coordinates_of(dealt, 5), {Axis::ep}) == std::vector{4, 5, 6, 7});
    CHECK(group_members(dealt, coordinates_of(dealt, 5), holder_axes) == std::vector{1, 5});
}

TEST_CASE("mesh: ZeRO groups are neighbours of dp x cp; sizes that do not divide are refused with those that do") {
    const MeshShape mesh = make_mesh(24, 1, 2, 2, 0, 3);
    CHECK(mesh == MeshShape{1, 6, 2, 2, 3});
    CHECK(make_mesh(8, 1, 2, 1, 0, 8) == MeshShape{1, 4, 2, 1});   // all of them: no copies
    CHECK(group_members(mesh, coordinates_of(mesh, 8), zero_axes) == std::vector{6, 8, 10});
    CHECK(group_members(mesh, coordinates_of(mesh, 8), replica_axes) == std::vector{2, 8, 14, 20});
    auto hint = [](int ranks, int group) {
        try {
            make_mesh(ranks, 1, 1, 1, 0, group);
        } catch (const Error& error) {
            return std::string(error.hint());
        }
        return std::string();
    };
    CHECK(hint(12, 5) == "Groups that work: 2, 3, 4, 6, 12; 1 only with --local-steps.");
    CHECK(make_mesh(12, 1, 1, 1, 0, 1).shards() == 1);   // the options refuse what shares nothing
    CHECK(hint(12, 24) == hint(12, 5));
    CHECK(hint(1, 2) == "Start more ranks; or leave --zero-group out, with --local-steps give 1.");
}

TEST_CASE("shard: every element is owned exactly once per replica group, for every mesh up to 16 ranks") {
    for (const MeshShape& mesh : all_meshes(16)) {
        for (const TensorSpec& tensor : sample_tensors(mesh)) {
            for (int zero_stage = 0; zero_stage <= 3; zero_stage++) {
                for (StateKind state : all_states) {
                    const bool sharded = is_sharded(state, zero_stage);
                    std::vector<int> owners(static_cast<std::size_t>(tensor.elements()), 0);
                    for (int rank = 0; rank < mesh.size(); rank++) {
                        RankLayout place{mesh, coordinates_of(mesh, rank), zero_stage};
                        std::int64_t local = 0;
                        for (const OwnedRange& range : owned_ranges(tensor, place, state)) {
                            REQUIRE(range.length > 0);
                            REQUIRE(range.local_begin >= local);   // ascending, no overlap
                            local = range.local_begin + range.length;
                            for (std::int64_t i = 0; i < range.length; i++) {
                                owners[static_cast<std::size_t>(range.global.element(i))]++;
                            }
                        }
                        REQUIRE(local <= stored_elements(tensor, place, state));
                    }
                    // copies: every stage has one here, and every ZeRO group; all ranks where nothing cuts
                    const int copies = mesh.pp * (is_expert_parallel(tensor, mesh)
                                                      ? (sharded ? 1 : mesh.stage() / mesh.ep)
                                                      : (sharded ? group_size(mesh, replica_axes) : mesh.dp * mesh.cp) *
                                                            (is_whole_on_tp(tensor, mesh) ? mesh.tp : 1));
                    REQUIRE(std::all_of(owners.begin(), owners.end(), [&](int n) { return n == copies; }));
                }
            }
        }
    }
}

TEST_CASE("shard: every element of a model has one sole owner in the whole mesh, whatever the ZeRO stage") {
    for (const MeshShape& mesh : all_meshes(16)) {
        for (const TensorSpec& tensor : sample_tensors(mesh)) {
            for (bool tied : {false, true}) {
                TensorSpec copied = tensor;
                copied.tied = tied;
                for (int zero_stage : {0, 1, 3}) {
                    std::vector<int> owners(static_cast<std::size_t>(tensor.elements()), 0);
                    for (int rank = 0; rank < mesh.size(); rank++) {
                        const RankLayout place{mesh, coordinates_of(mesh, rank), zero_stage};
                        // a tensor that is not tied is held by one stage: here the last one
                        const bool holds = place.at.pp == mesh.pp - 1 || (tied && place.at.pp == 0);
                        if (!holds) continue;
                        for (const OwnedRange& range : ranges_counted_once(copied, place)) {
                            for (std::int64_t i = 0; i < range.length; i++) {
                                owners[static_cast<std::size_t>(range.global.element(i))]++;
                            }
                        }
                    }
                    REQUIRE(std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; }));
                }
            }
        }
    }
}

TEST_CASE("shard: the ranks that keep copies are those that own the same elements") {
    for (const MeshShape& mesh : all_meshes(16)) {
        for (TensorSpec tensor : sample_tensors(mesh)) {
            for (bool tied : {false, true}) {
                tensor.tied = tied;
                for (int zero_stage : {0, 1, 3}) {
                    for (StateKind state : {StateKind::optimizer, StateKind::parameters}) {
                        const int last = mesh.pp - 1;
                        auto holds = [&](const MeshCoordinates& at) { return at.pp == last || (tied && at.pp == 0); };
                        for (int rank = 0; rank < mesh.size(); rank++) {
                            const RankLayout place{mesh, coordinates_of(mesh, rank), zero_stage};
                            if (!holds(place.at)) continue;
                            const auto own = owned_ranges(tensor, place, state);
                            if (own.empty()) continue;   // a shard of padding alone has no copies to compare
                            std::vector<int> expected;
                            for (int other = 0; other < mesh.size(); other++) {
                                const RankLayout theirs{mesh, coordinates_of(mesh, other), zero_stage};
                                if (holds(theirs.at) && owned_ranges(tensor, theirs, state) == own) {
                                    expected.push_back(other);
                                }
                            }
                            REQUIRE(copy_ranks(tensor, place, state) == expected);
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("shard: home_of finds every element where owned_ranges stores it") {
    for (const MeshShape& mesh : all_meshes(16)) {
        if (mesh.pp > 1) continue;   // stages do not enter
        for (const TensorSpec& tensor : sample_tensors(mesh)) {
            for (int zero_stage : {0, 1, 3}) {
                for (int rank = 0; rank < mesh.size(); rank++) {
                    RankLayout place{mesh, coordinates_of(mesh, rank), zero_stage};
                    for (const OwnedRange& range : owned_ranges(tensor, place, StateKind::parameters)) {
                        for (std::int64_t i = 0; i < range.length; i++) {
                            ElementHome home = home_of(tensor, place, StateKind::parameters, range.global.element(i));
                            REQUIRE((home.tp_rank == -1 || home.tp_rank == place.at.tp));
                            REQUIRE((home.ep_rank == -1 || home.ep_rank == coordinate(mesh, place.at, Axis::ep)));
                            REQUIRE((home.zero_rank == -1 ||
                                     home.zero_rank == group_rank(mesh, place.at, zero_axes_of(tensor, mesh))));
                            REQUIRE(home.local == range.local_begin + i);
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("shard: both owners of a tied tensor cut it alike") {
    const TensorSpec tied{128, 6, TensorCut::vocabulary};
    for (const MeshShape& mesh : all_meshes(16)) {
        for (int zero_stage = 0; zero_stage <= 3; zero_stage++) {
            for (int rank = 0; rank < mesh.size() / mesh.pp; rank++) {   // the ranks of the first stage
                RankLayout first{mesh, coordinates_of(mesh, rank), zero_stage}, last = first;
                last.at.pp = mesh.pp - 1;
                REQUIRE(owned_ranges(tied, first, StateKind::optimizer) ==
                        owned_ranges(tied, last, StateKind::optimizer));
            }
        }
    }
}

TEST_CASE("shard: tp shards of q, k and v hold the same heads of each") {
    const TensorSpec qkv{3 * 4, 2, TensorCut::column_parallel, {4, 4, 4}};   // two heads of two channels
    std::vector<OwnedRange> second = tp_shard_ranges(qkv, 2, 1);
    REQUIRE(second.size() == 3);
    CHECK(second[0] == OwnedRange{{2 * 2}, 0, 4});
    CHECK(second[1] == OwnedRange{{6 * 2}, 4, 4});
    CHECK(second[2] == OwnedRange{{10 * 2}, 8, 4});
    // grouped queries: four heads of queries, two of keys and of values
    const TensorSpec grouped{8 + 4 + 4, 1, TensorCut::column_parallel, {8, 4, 4}};
    second = tp_shard_ranges(grouped, 2, 1);
    REQUIRE(second.size() == 3);
    CHECK(second[0] == OwnedRange{{4}, 0, 4});
    CHECK(second[1] == OwnedRange{{8 + 2}, 4, 2});
    CHECK(second[2] == OwnedRange{{12 + 2}, 6, 2});
}

TEST_CASE("shard: where there are more tp ranks than heads neighbours hold copies, and one of them owns each element") {
    for (const MeshShape& mesh : all_meshes(16)) {
        for (const std::int64_t kv : {1, 2, 3}) {
            if (mesh.tp <= kv || mesh.tp % kv != 0) continue;
            const std::int64_t q = 2 * mesh.tp, HS = 2, replicas = group_size(mesh, replica_axes);
            const TensorSpec qkv{
                (q + 2 * kv) * HS, 5, TensorCut::column_parallel, {q * HS, kv * HS, kv * HS}, {q, kv, kv}};
            for (const int zero_stage : {0, 1, 3}) {
                std::vector<int> sole(static_cast<std::size_t>(qkv.elements())), all = sole, copied = sole;
                std::map<int, std::vector<OwnedRange>> of_first;   // by the first rank that holds the same heads
                for (int rank = 0; rank < mesh.size() / mesh.pp; rank++) {
                    const RankLayout place{mesh, coordinates_of(mesh, rank), zero_stage};
                    auto count = [](std::vector<int>& counts, const std::vector<OwnedRange>& ranges) {
                        for (const OwnedRange& range : ranges) {
                            for (std::int64_t i = 0; i < range.length; i++) {
                                counts[static_cast<std::size_t>(range.global.element(i))]++;
                            }
                        }
                    };
                    count(sole, ranges_counted_once(qkv, place));
                    count(all, owned_ranges(qkv, {mesh, place.at, 1}, StateKind::optimizer));
                    const auto copies = owned_ranges(qkv, {mesh, place.at, 1}, StateKind::optimizer, Heads::copied);
                    count(copied, copies);
                    RankLayout first = place;
                    first.at.tp -= first.at.tp % (mesh.tp / static_cast<int>(kv));
                    const auto [at, is_new] = of_first.try_emplace(rank_of(mesh, first.at), copies);
                    REQUIRE(at->second == copies);   // so their sum needs no more than these ranges
                }
                for (std::size_t i = 0; i < sole.size(); i++) {
                    const bool is_q = i < static_cast<std::size_t>(q * HS * qkv.cols);
                    REQUIRE(sole[i] == 1);
                    REQUIRE(all[i] == replicas * (is_q ? 1 : mesh.tp / kv));
                    REQUIRE(copied[i] == replicas * (is_q ? 0 : mesh.tp / kv));
                }
            }
        }
    }
}

TEST_CASE("shard: blocks that are not the tensor's rows are refused") {
    CHECK_THROWS_WITH_AS(tp_shard_of({12, 2, TensorCut::column_parallel, {4, 4}}, 2),
                         doctest::Contains("blocks of 8 rows in a tensor of 12"), Error);
}

TEST_CASE("shard: a cut tensor is one range for each block, however ZeRO cuts it again") {
    for (const MeshShape& mesh : all_meshes(16)) {
        for (const TensorSpec& tensor : sample_tensors(mesh)) {
            for (int rank = 0; rank < mesh.size(); rank++) {
                const RankLayout place{mesh, coordinates_of(mesh, rank), 1};
                const std::size_t blocks = std::max<std::size_t>(1, tensor.blocks.size());
                REQUIRE(owned_ranges(tensor, place, StateKind::optimizer).size() <= blocks);
                REQUIRE(owned_ranges(tensor, place, StateKind::parameters).size() <= blocks);
            }
        }
    }
    // columns 6 to 11 of 12, of 30 rows: 180 elements, cut in two shards of 128; the second begins in a row
    const TensorSpec cut{30, 12, TensorCut::row_parallel};
    const RankLayout second{{1, 2, 1, 2}, {0, 1, 0, 1}, 1};
    const std::vector<OwnedRange> ranges = owned_ranges(cut, second, StateKind::optimizer);
    REQUIRE(ranges.size() == 1);
    CHECK(ranges[0] == OwnedRange{{21 * 12 + 6 + 2, 12, 6, 2}, 0, 180 - 128});
    std::vector<std::int64_t> found;
    for_runs(ranges[0], [&](std::int64_t global, std::int64_t local, std::int64_t count) {
        REQUIRE(local == static_cast<std::int64_t>(found.size()));
        for (std::int64_t i = 0; i < count; i++) found.push_back(global + i);
    });
    REQUIRE(found.size() == 52);
    for (std::size_t i = 0; i < found.size(); i++) {
        const std::int64_t local = 128 + static_cast<std::int64_t>(i);
        CHECK(found[i] == local / 6 * 12 + 6 + local % 6);
    }
}

TEST_CASE("shard: shards are aligned, and their sum is a tp shard's padded size") {
    for (std::int64_t elements : {1, 63, 64, 65, 768, 50304 * 768}) {
        for (int ranks = 1; ranks <= 16; ranks++) {
            ZeroCut cut = zero_cut(elements, ranks);
            CHECK(cut.shard % shard_alignment == 0);
            CHECK(cut.padded == cut.shard * ranks);
            CHECK(cut.padded >= elements);
            CHECK(cut.padded < elements + shard_alignment * ranks + ranks);
        }
    }
}

TEST_CASE("shard: layers are balanced over pipeline parts, embedding and classifier counted") {
    CHECK(balance_layers(12, 1, 0.5, 5.0) == std::vector<LayerRange>{{0, 12}});
    CHECK(balance_layers(12, 4, 0, 0) == std::vector<LayerRange>{{0, 3}, {3, 6}, {6, 9}, {9, 12}});
    // a classifier as costly as two layers takes two layers from the last part
    CHECK(balance_layers(10, 3, 0, 2) == std::vector<LayerRange>{{0, 4}, {4, 8}, {8, 10}});
    for (std::int64_t layers = 1; layers <= 24; layers++) {
        for (int parts = 1; parts <= std::min<std::int64_t>(layers, 16); parts++) {
            for (double head : {0.0, 0.7, 3.0}) {
                std::vector<LayerRange> ranges = balance_layers(layers, parts, 0.1, head);
                REQUIRE(static_cast<int>(ranges.size()) == parts);
                std::int64_t next = 0;
                for (const LayerRange& range : ranges) {
                    REQUIRE(range.begin == next);
                    REQUIRE(range.size() >= 1);
                    next = range.end;
                }
                REQUIRE(next == layers);
            }
        }
    }
}

TEST_CASE("shard: layers of different costs are cut so that the costliest part is the cheapest possible") {
    CHECK(balance_layers(std::vector<double>(10, 3.0), 3, 0, 6) == balance_layers(10, 3, 0, 2));
    CHECK(balance_layers({1, 1, 1, 9, 1, 1, 1, 9}, 4, 0, 0) == std::vector<LayerRange>{{0, 3}, {3, 4}, {4, 7}, {7, 8}});
    CHECK(balance_layers({1, 1, 1, 3, 3, 3}, 2, 0, 0) == std::vector<LayerRange>{{0, 4}, {4, 6}});   // 6 and 6
    CHECK(balance_layers({1, 1, 1, 3, 3, 3}, 2, 4, 0) == std::vector<LayerRange>{{0, 3}, {3, 6}});   // 7 and 9
    // squares decide where the costliest part is the same: 2 and 2 beside 9, not 1 and 3
    CHECK(balance_layers({9, 1, 1, 1, 1}, 3, 0, 0) == std::vector<LayerRange>{{0, 1}, {1, 3}, {3, 5}});
}

TEST_CASE("shard: work is dealt out the costliest first, to the rank with the least so far") {
    CHECK(assign_by_cost({}, 3).empty());
    CHECK(assign_by_cost({1, 1, 1, 1}, 1) == std::vector<int>{0, 0, 0, 0});
    CHECK(assign_by_cost({2, 2, 2}, 2) == std::vector<int>{0, 1, 0});
    CHECK(assign_by_cost({1, 5, 2, 4, 3}, 2) == std::vector<int>{0, 0, 0, 1, 1});   // 8 and 7
}
