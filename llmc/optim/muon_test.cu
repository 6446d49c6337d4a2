// Muon's update against a double loop, of matrices on any rank, and the bytes that owners of matrices are sent.
#include <map>

#include "llmc/model/weights.h"
#include "llmc/optim/muon.h"
#include "llmc/optim/optimizer_testing.h"
#include "llmc/optim/tensor_blocks.h"
#include "llmc/parallel/zero_formulas.h"
#include "llmc/run/options/option_names.h"

using namespace certificate;

namespace {

// Muon's change of a matrix at a learning rate of 1, in double.
Doubles orthogonal(Doubles u, std::size_t rows, std::size_t cols, const NewtonSchulz& how) {
    const double norm = norm_of(u, 0, u.size());
    for (double& x : u) x /= static_cast<double>(how.norm_scale) * norm + static_cast<double>(how.norm_epsilon);
    for (const Polynomial& p : how.iterations) {
        Doubles a(rows * rows), b(rows * rows), next(u.size());
        for (std::size_t i = 0; i < rows; i++) {
            for (std::size_t j = 0; j < rows; j++) {
                for (std::size_t k = 0; k < cols; k++) a[i * rows + j] += u[i * cols + k] * u[j * cols + k];
            }
        }
        for (std::size_t i = 0; i < rows; i++) {
            for (std::size_t j = 0; j < rows; j++) {
                double square = 0;
                for (std::size_t k = 0; k < rows; k++) square += a[i * rows + k] * a[k * rows + j];
                b[i * rows + j] = static_cast<double>(p.b) * a[i * rows + j] + static_cast<double>(p.c) * square +
                                  (i == j ? static_cast<double>(p.a) : 0.0);
            }
        }
        for (std::size_t i = 0; i < rows; i++) {
            for (std::size_t k = 0; k < rows; k++) {
                for (std::size_t j = 0; j < cols; j++) next[i * cols + j] += b[i * rows + k] * u[k * cols + j];
            }
        }
        u = next;
    }
    return u;
}

}   // namespace

TEST_CASE("optimizer: an update of Muon's is that of a double loop, of q, k and v apart") {
    constexpr double allowed = sizeof(floatX) == 4 ? 1e-4 : 2e-2;
    for (const MuonScale scale : {MuonScale::original, MuonScale::match_rms_adamw}) {
        Rank rank(Layout{});
        Stage& stage = rank.stage();
        OptimizerOptions options;
        // the second time several batches of a size, and batches of several sizes: 5, 5 and 2 squares, single others
        if (scale == MuonScale::match_rms_adamw) options.muon_batch_elements = 5 * 48 * 48;
        options.optimizer = OptimizerKind::muon;
        options.muon_scale = scale;
        options.lr = 1.0f, options.muon_lr = 0.5f;
        const auto optimizer = std::make_unique<Optimizer>(stage, options, rank.arena());
        const bool has_master = optimizer->states().front().is_weights;
        auto weights = [&](int param) {
            return doubles(has_master ? download_tensor(optimizer->state("master"), param, rank.stream())
                                      : download_tensor(stage.parameters(), param, rank.stream()));
        };
        std::vector<Doubles> before, gradients;
        for (int param = 0; param < stage.table().size(); param++) {
            before.push_back(weights(param));
            const std::vector<float> g = drawn(before.back().size(), stage.table()[param].random_tensor());
            upload_tensor(stage.gradients().kept().as<float>(), param, g, rank.stream());
            gradients.push_back(doubles(g));
        }
        optimizer->update(1, 1e-2f, nullptr);
        int matrices = 0, together_is_seen = 0;
        for (int param = 0; param < stage.table().size(); param++) {
            const ParamInfo& info = stage.table()[param];
            if (!info.orthogonal) continue;
            const Doubles after = weights(param), &w = before[static_cast<std::size_t>(param)],
                          &g = gradients[static_cast<std::size_t>(param)];
            auto off = [&](std::size_t begin, std::size_t end, std::size_t rows) {   // relative to the update
                const auto cols = (end - begin) / rows;
                Doubles u(g.begin() + static_cast<std::ptrdiff_t>(begin), g.begin() + static_cast<std::ptrdiff_t>(end));
                const Doubles x = orthogonal(u, rows, cols, newton_schulz(options.muon_coefficients));
                const double out_over_in = static_cast<double>(rows) / static_cast<double>(cols);
                const double by = scale == MuonScale::original
                                      ? std::sqrt(std::max(1.0, out_over_in))
                                      : 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
                double squares = 0, update = 0;
                for (std::size_t i = begin; i < end; i++) {
                    const double expected = -5e-3 * by * x[i - begin];
                    squares += (after[i] - w[i] - expected) * (after[i] - w[i] - expected);
                    update += expected * expected;
                }
                return std::sqrt(squares / update);
            };
            INFO(info.name);
            for (const auto& [begin, end] : blocks(info.tensor)) {
                CHECK(off(begin, end, (end - begin) / static_cast<std::size_t>(info.tensor.cols)) < allowed);
                matrices++;
            }
            if (!info.tensor.blocks.empty()) together_is_seen += off(0, w.size(), w.size() / 48) > 0.1;
        }
        CHECK(matrices == 6 * 3);
        CHECK(together_is_seen == 3);
    }
}

TEST_CASE("optimizer: a matrix of Muon's moves by its own sizes, which those of a shard would not tell") {
    const TensorSpec fc{.rows = 192, .cols = 48, .cut = TensorCut::column_parallel},
        qkv{.rows = 144, .cols = 48, .blocks = {48, 48, 48}};
    CHECK(muon_scale(fc, 0, MuonScale::original) == 2.0f);
    CHECK(muon_scale(tp_shard_of(fc, 2), 0, MuonScale::original) != 2.0f);   // so the certificate under tp sees it
    CHECK(muon_scale(qkv, 1, MuonScale::original) == 1.0f);
    CHECK(muon_scale(fc, 0, MuonScale::match_rms_adamw) == doctest::Approx(0.2 * std::sqrt(192.0)));
}

TEST_CASE("optimizer: Muon of experts that are dealt out is one process's; ZeRO 0 and 1, 2 and 3 to the bit") {
    Layout alone{1, 0, 2};
    alone.experts = 8, alone.heads = 4, alone.optimizer = OptimizerKind::muon, alone.lr = rate_of(alone.optimizer);
    alone.choices = std::make_shared<Choices>();   // a rate so high flips near ties
    const Result expected = Rank(alone).train(4);
    for (const int ep : {2, 4}) {
        std::vector<Result> results(4);
        for (int zero = 0; zero < 4; zero++) {
            Layout layout = alone;
            layout.dp = 4, layout.ep = ep, layout.zero = zero;
            certify(layout, expected);
            on_layout(layout, [&](Rank& rank, TestRank& me) {
                const Result found = rank.train(4);
                if (me.rank() == 0) results[static_cast<std::size_t>(zero)] = found;
            });
        }
        CHECK(results[0] == results[1]);
        CHECK(results[2] == results[3]);
    }
}

namespace {

double cost_of(const TensorSpec& tensor) {
    double cost = 0;
    for (const auto& [begin, end] : blocks(tensor)) {
        const double cols = static_cast<double>(tensor.cols), all = static_cast<double>(end - begin);
        cost += all * std::min(cols, all / cols);
    }
    return cost;
}

// Items to ranks, the costliest first, each to the first of those with the least.
std::vector<int> dealt(const Doubles& costs, std::size_t ranks) {
    std::vector<int> owners(costs.size(), -1);
    Doubles load(ranks);
    for (std::size_t i = 0; i < costs.size(); i++) {
        std::size_t next = costs.size();
        for (std::size_t j = 0; j < costs.size(); j++) {
            if (owners[j] < 0 && (next == costs.size() || costs[j] > costs[next])) next = j;
        }
        const auto owner = static_cast<std::size_t>(std::ranges::min_element(load) - load.begin());
        owners[next] = static_cast<int>(owner);
        load[owner] += costs[next];
    }
    return owners;
}

// Which ZeRO rank has a parameter; -1: each a part of it.
std::vector<int> owners_under_zero_1(const ParamTable& table, int ranks) {
    std::vector<int> owners(static_cast<std::size_t>(table.size()), -1);
    std::vector<std::size_t> params;
    Doubles costs;
    for (std::size_t param = 0; param < owners.size(); param++) {
        if (!table.all()[param].orthogonal) continue;
        params.push_back(param);
        costs.push_back(cost_of(table.all()[param].tensor));
    }
    const std::vector<int> found = dealt(costs, static_cast<std::size_t>(ranks));
    for (std::size_t i = 0; i < params.size(); i++) owners[params[i]] = found[i];
    return owners;
}

// Returns the bytes that each rank sends for Muon beside ZeRO, found element by element: all elements of a matrix that
// its owner does not keep travel there and back.
Doubles bytes_of_muon(const ParamTable& table, const MeshShape& mesh, int zero) {
    const std::vector<int> owners = owners_under_zero_1(table, group_size(mesh, zero_axes));
    const AxisSet apart = zero > 1 ? replica_axes : AxisSet{Axis::dp, Axis::cp};
    std::vector<std::vector<std::size_t>> teams(static_cast<std::size_t>(group_size(mesh, apart)));
    for (int rank = 0; rank < mesh.size(); rank++) {
        const int of = group_rank(mesh, coordinates_of(mesh, rank), apart);
        teams[static_cast<std::size_t>(of)].push_back(static_cast<std::size_t>(rank));
    }
    Doubles sent(static_cast<std::size_t>(mesh.size()));
    for (std::size_t t = 0; t < teams.size(); t++) {
        const std::vector<std::size_t>& team = teams[t];
        Doubles costs;
        std::vector<Doubles> kept;   // elements, by matrix and rank of the team
        for (std::size_t param = 0; param < owners.size(); param++) {
            const TensorSpec& tensor = table.all()[param].tensor;
            if (owners[param] < 0 || (zero == 1 && owners[param] != static_cast<int>(t) % mesh.shards())) continue;
            for (const auto& block : blocks(tensor)) {
                const auto begin = static_cast<std::int64_t>(block.first),
                           end = static_cast<std::int64_t>(block.second);
                const double cols = static_cast<double>(tensor.cols), all = static_cast<double>(end - begin);
                costs.push_back(all * std::min(cols, all / cols));
                Doubles& parts = kept.emplace_back(team.size());
                for (std::size_t r = 0; r < team.size(); r++) {
                    const RankLayout place{mesh, coordinates_of(mesh, static_cast<int>(team[r])), zero > 1 ? zero : 0};
                    for (const OwnedRange& range : owned_ranges(tensor, place, StateKind::optimizer)) {
                        for_runs(range, [&](std::int64_t global, std::int64_t, std::int64_t count) {
                            const std::int64_t first = std::max(global, begin), past = std::min(global + count, end);
                            parts[r] += static_cast<double>(std::max<std::int64_t>(past - first, 0));
                        });
                    }
                }
            }
        }
        const std::vector<int> owner = dealt(costs, team.size());
        for (std::size_t i = 0; i < costs.size(); i++) {
            for (std::size_t r = 0; r < team.size(); r++) {
                if (static_cast<int>(r) == owner[i]) continue;
                sent[team[r]] += kept[i][r] * sizeof(floatX);
                sent[team[static_cast<std::size_t>(owner[i])]] += kept[i][r] * sizeof(floatX);
            }
        }
    }
    return sent;
}

// ZeRO's bytes of all ranks for Muon, and for AdamW.
std::pair<double, double> bytes_of_zero(const ParamTable& table, const MeshShape& mesh, int zero) {
    double sums[2] = {};
    for (int rank = 0; rank < mesh.size(); rank++) {
        for (const bool deals : {true, false}) {
            const RankLayout place{mesh, coordinates_of(mesh, rank), zero, deals};
            const ParamStorage storage(table, place, {{{0, table.config().layers}}, true, true});
            sums[deals ? 0 : 1] += zero_traffic(storage, 1, sizeof(floatX), sizeof(float)).total();
        }
    }
    return {sums[0], sums[1]};
}

}   // namespace

TEST_CASE("optimizer: Muon leaves ZeRO's bytes what they are; besides, owners of matrices get what they do not keep") {
    for (const auto& [dp, zero_stage, tp, N] :
         {std::tuple(2, 0, 1, 2), std::tuple(2, 1, 1, 2), std::tuple(3, 1, 1, 3), std::tuple(3, 2, 1, 3),
          std::tuple(4, 3, 1, 4), std::tuple(1, 0, 3, 1), std::tuple(2, 1, 2, 2), std::tuple(4, 1, 1, 2),
          std::tuple(4, 1, 2, 2), std::tuple(4, 2, 1, 2)}) {
        const int zero = zero_stage;
        Layout layout{dp, zero, 1};
        layout.optimizer = OptimizerKind::muon, layout.tp = tp, layout.sequence_parallel = false;
        const int R = dp / N;   // groups
        if (R > 1) layout.zero_group = N;
        if (tp == 2) layout.heads = 4;
        const ParamTable table(model(layout));
        const std::vector<int> owners = owners_under_zero_1(table, N);
        const Doubles expected = bytes_of_muon(table, layout.mesh(), zero);
        double matrices = 0, sum = 0;
        for (const ParamInfo& info : table.all()) {
            if (info.orthogonal) matrices += static_cast<double>(info.tensor.elements());
        }
        for (const double sent : expected) sum += sent;
        const double n = zero > 1 ? N * tp : tp;   // with equal cuts each owner keeps 1 / n
        INFO(layout.name(), ": ", sum);
        CHECK(sum == doctest::Approx((zero == 0 ? dp : R) * 2 * (n - 1) / n * matrices * sizeof(floatX)).epsilon(0.15));
        const auto [with_owners, cut] = bytes_of_zero(table, layout.mesh(), zero);
        const double tensors = tp * table.size() * (N * 64.0),
                     each = (dp - R) * (sizeof(floatX) + 4.0) + 2 * (R - 1) * 4;
        CHECK(std::abs(with_owners - cut) <= (zero == 1 ? tensors * each : 0));   // for padding
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            const ParamStorage& storage = rank.stage().storage();
            const ZeroTraffic formula = zero_traffic(storage, 1, sizeof(floatX), sizeof(float));
            const Communicator* const shards = rank.groups().zero;
            auto reset = [&] {
                for (Communicator* group : rank.communicators()) group->reset_traffic();
            };
            reset();
            rank.gradients(1);
            const Traffic reducing = shards != nullptr ? shards->traffic() : Traffic{};
            const Communicator* const replicas = rank.groups().replicas;
            const double between = replicas != nullptr ? replicas->traffic().all_reduce : 0;
            me.require(between == formula.replicas && (R == 1 || between > 0), "between groups ", between);
            reset();
            rank.step().update(1, 1e-3f);
            rank.step().wait_for_all_gather();
            rank.step().result();
            double sent = 0;
            for (const Communicator* group : rank.communicators()) sent += group->traffic().point_to_point;
            const double own = expected[static_cast<std::size_t>(me.rank())];
            me.require(sent == own, sent, " bytes, not ", own);
            for (const TensorLayout& tensor : storage.tensors()) {
                const int owner = zero < 2 ? owners[static_cast<std::size_t>(tensor.param)] : -1;
                me.require(storage.table()[tensor.param].tensor.owner == owner, "another owner than ", owner);
            }
            if (shards == nullptr) return;
            const double gathered = shards->traffic().all_gather, told = shards->traffic().broadcast;
            me.require(gathered == (zero == 3 ? 0 : formula.gather), "gathered ", gathered);
            me.require(told == formula.broadcast, "told ", told);
            me.require(reducing.reduce == formula.reduce_to_owner, "reduced to owners ", reducing.reduce);
            me.require(zero != 1 || reducing.reduce_scatter == formula.reduce, "reduced ", reducing.reduce_scatter);
        });
    }
}
