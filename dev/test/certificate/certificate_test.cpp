// The certificate over numbers of data-parallel ranks, ZeRO stages and micro-batches (certificate_testing.h), and what
// the formulas say of traffic and memory.
#include "dev/test/certificate/certificate_testing.h"

#include "llmc/parallel/zero_formulas.h"

using namespace certificate;

TEST_CASE("certificate: a sample of ranks x ZeRO x micro-batches") {
    const Result expected = train_alone(1, 4);
    CHECK(expected.losses.back() < expected.losses.front());
    CHECK(expected.norms[0] > 1.0f);   // so that gradients are clipped
    // every two values of (2 or 3 ranks, stage, micro-batches) together, and the extremes
    for (const Layout& layout : {Layout{2, 0, 1}, Layout{2, 1, 4}, Layout{2, 2, 4}, Layout{2, 3, 1}, Layout{3, 0, 4},
                                 Layout{3, 1, 1}, Layout{3, 2, 1}, Layout{3, 3, 4}, Layout{1, 3, 4}, Layout{8, 2, 1}}) {
        certify(layout, expected);
    }
    certify({2, 3, 4, DType::fp32, MasterWeights::fp32, Recompute::block}, expected);
}

namespace {

Layout in_groups(int group, int dp, int cp, int zero, int micro_batches) {
    Layout layout{dp, zero, micro_batches};
    layout.cp = cp, layout.zero_group = group;
    return layout;
}

}   // namespace

TEST_CASE("certificate: ZeRO in groups that each keep a copy, a sample") {
    const Result expected = train_alone(1, 4);
    for (const Layout& layout : {in_groups(2, 4, 1, 1, 4), in_groups(2, 4, 1, 2, 4), in_groups(2, 4, 1, 3, 1),
                                 in_groups(2, 2, 2, 1, 1), in_groups(4, 4, 2, 3, 1)}) {
        certify(layout, expected);
    }
}

TEST_CASE("certificate: all of ZeRO 1-3 in groups, 4 and 8 ranks" * doctest::skip()) {
    const Result expected = train_alone(1, 20);
    for (const int ranks : {4, 8}) {
        for (int group = 2; group <= ranks; group *= 2) {
            for (int zero : {1, 2, 3}) {
                for (const int cp : {1, 2}) {
                    for (int m : {1, 4}) certify(in_groups(group, ranks / cp, cp, zero, m), expected);
                }
            }
        }
    }
}

TEST_CASE("certificate: bytes sent by ZeRO in groups are within the group, and a shard once a step between groups") {
    for (const auto& [dp, group] :
         {std::pair(4, 2), std::pair(6, 3), std::pair(6, 2), std::pair(8, 2), std::pair(8, 4)}) {
        for (int zero : {1, 2, 3}) {
            for (int m : {1, 4}) {
                if (dp == 8 && (m == 4) != (zero == 2)) continue;   // one m each
                on_layout(in_groups(group, dp, 1, zero, m), [&, dp = dp, group = group](Rank& rank, TestRank& me) {
                    for (Communicator* comm : rank.communicators()) comm->reset_traffic();
                    rank.gradients(1);
                    rank.step().update(1, 1e-3f);
                    rank.step().wait_for_all_gather();
                    const double p = sizeof(floatX), g = sizeof(float), N = group, R = dp / group, f = (N - 1) / N;
                    double P = 0, head = 0;
                    for (const UnitLayout& unit : rank.stage().storage().units()) {
                        P += head = static_cast<double>(unit.padded);
                    }
                    const Traffic &within = rank.groups().zero->traffic(), &between = rank.groups().replicas->traffic();
                    auto same = [&](const char* what, double found, double expected) {
                        me.require(std::abs(found - expected) <= 1e-9 * expected, what, ": ", found, " bytes, not ",
                                   expected);
                    };
                    same("scattered", within.reduce_scatter, f * P * g * (zero == 1 ? 1 : m));
                    same("gathered", within.all_gather, f * p * (zero < 3 ? P : m * (2 * P - head)));
                    same("between groups", between.all_reduce, 2 * P * g * (R - 1) / (R * N));
                    same("nothing else", within.all_reduce + between.reduce_scatter + between.all_gather, 0);
                    const ZeroTraffic formula = zero_traffic(rank.stage().storage(), m, p, g);
                    same("reduce of the formula", formula.reduce, within.reduce_scatter);
                    same("gather of the formula", formula.gather, within.all_gather);
                    same("replicas of the formula", formula.replicas, between.all_reduce);
                });
            }
        }
    }
}

TEST_CASE("certificate: a classifier that is a tensor of its own") {
    const Result expected = train_alone(1, 4, true, false);
    for (Layout layout : {Layout{2, 0, 4}, Layout{3, 1, 1}, Layout{2, 2, 4}, Layout{3, 3, 4}}) {
        layout.tied = false;
        certify(layout, expected);
    }
}

TEST_CASE("certificate: chunks whose micro-batches are not in step, under every ZeRO stage") {
    for (const bool tied : {true, false}) {
        const Result expected = train_alone(1, 4, true, tied);
        for (int zero : {0, 1, 2, 3}) {
            Layout layout{2, zero, 4};
            layout.tied = tied;
            layout.two_chunks = true;
            certify(layout, expected);
        }
    }
}

#if defined(PRECISION_BF16)
TEST_CASE("certificate: gradients kept and reduced in bf16, and rounding without masters") {
    const Result with_masters = train_alone(1, 4), without = train_alone(1, 4, false);
    CHECK(!(with_masters == without));
    for (const Layout& layout :
         {Layout{2, 0, 1, DType::bf16}, Layout{3, 1, 4, DType::bf16}, Layout{2, 3, 4, DType::bf16}}) {
        certify(layout, with_masters);
    }
    // equal random bits round equal elements under every layout
    for (const Layout& layout :
         {Layout{2, 0, 1, DType::fp32, MasterWeights::none}, Layout{3, 1, 1, DType::fp32, MasterWeights::none},
          Layout{3, 3, 4, DType::fp32, MasterWeights::none}}) {
        certify(layout, without);
    }
}

TEST_CASE("certificate: bf16 masters in halves are whole ones to the bit, whatever the layout and the optimizer") {
    std::vector<Layout> layouts{{2, 1}, {3, 3, 4}, {2, 2, 1, DType::bf16}};
    layouts.push_back({2, 3});
    layouts.back().optimizer = OptimizerKind::muon;
    layouts.push_back({2, 1});
    layouts.back().optimizer = OptimizerKind::lamb;
    layouts.push_back({2, 2});
    layouts.back().optimizer = OptimizerKind::lars;
    layouts.push_back({1, 0, 4});
    layouts.back().pipe = {2}, layouts.back().tp = 2, layouts.back().sequence_parallel = true, layouts.back().heads = 4;
    for (Layout layout : layouts) {
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            const Result whole = rank.train(4);
            Layout compact = layout;
            compact.master_weights = MasterWeights::compact;
            Rank other(compact, me.world.at(), rank.groups(), &me.world);
            me.require(other.train(4) == whole, "another result");
            other.step().wait_for_all_gather();
            if (layout.zero < 3 && layout.tp == 1)
                me.require(other.parameters() == rank.parameters(), "other parameters");
            const double saved =
                rank.step().optimizer().bytes_per_parameter() - other.step().optimizer().bytes_per_parameter();
            me.require(std::abs(saved - 2) < 1e-9, "saves ", saved, " bytes a parameter");
        });
    }
}
#endif

TEST_CASE("certificate: bf16 moments are rounded alike under every layout") {
    for (const OptimizerKind optimizer : {OptimizerKind::adamw, OptimizerKind::muon, OptimizerKind::lamb}) {
        Layout one;
        one.optimizer = optimizer;
        const Result whole = Rank(one).train(4);
        one.moments = DType::bf16;
        const Result expected = Rank(one).train(4);
        CHECK(!(expected == whole));
        for (Layout layout : {Layout{2, 1}, Layout{3, 3, 4}}) {
            layout.optimizer = optimizer, layout.moments = DType::bf16;
            certify(layout, expected);
        }
    }
}

namespace {

// Every stage with 1 and with 4 micro-batches; a second run must be the same to the bit.
void certify_all(int dp) {
    const ParamTable table(model());
    const Result expected = train_alone(1, 20);
    for (int zero : {0, 1, 2, 3}) {
        for (int micro_batches : {1, 4}) {
            const Layout layout{dp, zero, micro_batches};
            on_layout(layout, [&](Rank& rank, TestRank& me) {
                const Result found = rank.train(20);
                require_same_everywhere(found, me);
                require_equal_copies(rank, me);
                const std::string story = difference(found, expected, table);
                me.require(story.empty(), story);
                Rank again(layout, me.world.at(), rank.groups());
                me.require(again.train(20) == found, "a second run differs");
            });
        }
    }
}

}   // namespace

TEST_CASE("certificate: all of ZeRO 0-3, 1 rank" * doctest::skip()) { certify_all(1); }
TEST_CASE("certificate: all of ZeRO 0-3, 2 ranks" * doctest::skip()) { certify_all(2); }
TEST_CASE("certificate: all of ZeRO 0-3, 3 ranks" * doctest::skip()) { certify_all(3); }
TEST_CASE("certificate: all of ZeRO 0-3, 4 ranks" * doctest::skip()) { certify_all(4); }
TEST_CASE("certificate: all of ZeRO 0-3, 6 ranks" * doctest::skip()) { certify_all(6); }
TEST_CASE("certificate: all of ZeRO 0-3, 8 ranks" * doctest::skip()) { certify_all(8); }

TEST_CASE("certificate: bytes sent per rank and step are ZeRO's") {
    for (int dp : {1, 2, 3}) {
        for (int zero : {0, 1, 2, 3}) {
            for (int micro_batches : {1, 4}) {
                const Layout layout{dp, zero, micro_batches};
                on_layout(layout, [&](Rank& rank, TestRank& me) {
                    for (Communicator* group : rank.communicators()) group->reset_traffic();
                    rank.gradients(1);
                    rank.step().update(1, 1e-3f);
                    rank.step().wait_for_all_gather();
                    Traffic sent;
                    for (const Communicator* group : rank.communicators()) {
                        sent.all_reduce += group->traffic().all_reduce;
                        sent.reduce_scatter += group->traffic().reduce_scatter;
                        sent.all_gather += group->traffic().all_gather;
                        sent.reduce += group->traffic().reduce;
                        sent.broadcast += group->traffic().broadcast;
                        sent.point_to_point += group->traffic().point_to_point;
                    }
                    const double p = sizeof(floatX), g = sizeof(float), f = static_cast<double>(dp - 1) / dp,
                                 m = micro_batches;
                    const ZeroTraffic formula = zero_traffic(rank.stage().storage(), micro_batches, p, g);
                    const double numbers = 2 * f * 8 * 5;   // loss, three votes, norm
                    auto same = [&](double a, double b) { return std::abs(a - b) <= 1e-9 * std::abs(b); };
                    me.require(same(sent.all_reduce, (zero == 0 ? formula.reduce : 0) + numbers), sent.all_reduce);
                    me.require(same(sent.reduce_scatter, zero == 0 ? 0 : formula.reduce), sent.reduce_scatter);
                    me.require(same(sent.all_gather, formula.gather), sent.all_gather, " ", formula.gather);
                    me.require(sent.reduce == 0 && sent.broadcast == 0 && sent.point_to_point == 0, "other traffic");

                    // zero.h, of padded parameters; the head is fetched once a micro-batch, not twice
                    double P = 0, head = 0;
                    for (const UnitLayout& unit : rank.stage().storage().units())
                        P += head = static_cast<double>(unit.padded);
                    const double by_zero_h[] = {2 * f * P * g, f * P * (g + p), f * P * (m * g + p),
                                                m * f * (P * (2 * p + g) - head * p)};
                    me.require(same(formula.total(), by_zero_h[zero]), formula.total(), " ", by_zero_h[zero]);
                });
            }
        }
    }
}

TEST_CASE("certificate: memory of model, gradients and optimizer is ZeRO's, all of it named") {
    for (int dp : {1, 2, 3, 8}) {
        for (int zero : {0, 1, 2, 3}) {
            on_layout({dp, zero, 1}, [&](Rank& rank, TestRank& me) {
                // padded sizes hold every parameter and at most a shard's alignment per rank and tensor more
                const ParamStorage& storage = rank.stage().storage();
                std::int64_t padded = 0;
                for (const UnitLayout& unit : storage.units()) padded += unit.padded;
                const std::int64_t count = storage.table().elements();
                me.require(count <= padded && padded <= count + std::int64_t{64} * dp * storage.table().size(),
                           "padded ", padded, " for ", count, " parameters");
                double held[5] = {};
                const char* groups[] = {"parameters/", "gradients/", "optimizer ", "unsharded parameters/",
                                        "unsharded gradients/"};
                for (const Allocation& allocation : rank.arena().allocations()) {
                    const std::string name =
                        allocation.name.starts_with("reduced gradients/") ? "unsharded gradients/" : allocation.name;
                    bool known = false;
                    for (const char* other : {"optimizer tables/", "activations/", "workspace/", "batch/", "step/"}) {
                        known = known || name.starts_with(other);
                    }
                    if (known) continue;
                    for (int i = 0; i < 5; i++) {
                        if (!name.starts_with(groups[i])) continue;
                        held[i] += static_cast<double>(allocation.bytes);
                        known = true;
                    }
                    me.require(known, "nobody counts ", allocation.name);
                }
                const double masters = sizeof(floatX) == 2 ? 4 : 0;
                const ZeroMemory formula =
                    zero_memory(rank.stage().storage(), sizeof(floatX), sizeof(float), 8 + masters);
                me.require(held[0] == formula.parameters, "parameters ", held[0], " ", formula.parameters);
                me.require(held[1] == formula.gradients, "gradients ", held[1], " ", formula.gradients);
                me.require(held[2] == formula.optimizer, "optimizer ", held[2], " ", formula.optimizer);
                me.require(held[3] == formula.unsharded_parameters, "unsharded parameters ", held[3]);
                me.require(held[4] == formula.unsharded_gradients, "unsharded gradients ", held[4]);
            });
        }
    }
}

TEST_CASE("certificate: a step in which this rank makes no losses adds none of the step before") {
    Rank rank(Layout{});
    rank.train(1);
    CHECK(rank.step().result().loss > 1);
    rank.step().gradients(
        {}, [](int, const MicroBatch&) {}, 1.0f);
    CHECK(rank.step().result().loss == 0);
}
