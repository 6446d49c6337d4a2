// The certificate over tensor-parallel ranks, with and without sequence parallelism, beside data parallelism and ZeRO;
// what the formulas of llmc/model/layer/tp_region.h say of traffic and memory; and that the certificate sees every
// kind of exchange go wrong.
#include "dev/test/certificate/certificate_testing.h"
#include "dev/test/certificate/damage_testing.h"

using namespace certificate;

namespace {

// Three heads where they can be shared, else twelve.
Layout tensor_parallel(int tp, bool sequence_parallel, int dp, int zero, int micro_batches,
                       Recompute recompute = Recompute::gelu, int tp_chunks = 1) {
    Layout layout{dp, zero, micro_batches};
    layout.recompute = recompute;
    layout.tp = tp;
    layout.sequence_parallel = sequence_parallel;
    layout.heads = 3 % tp == 0 ? 3 : 12;
    layout.tp_chunks = tp_chunks;
    return layout;
}

// A parameter as the ranks of a stage keep it, in its global shape. Collective.
std::vector<float> gathered(Rank& rank, int param) {
    const Gatherer gatherer(rank.stage().storage(), rank.groups().stage, true, rank.arena(), rank.stream());
    const auto values = gatherer.gather(rank.stage().parameters(), param, everywhere);
    return std::vector<float>(values.begin(), values.end());
}

}   // namespace

TEST_CASE("certificate: a sample of tp ranks x sequence parallelism x ZeRO x recompute x chunks") {
    const Result three_heads = train_alone(1, 2), twelve_heads = train_alone(1, 2, true, true, 12);
    // a vocabulary of 97 in shards of 64, 48 and, on six ranks, 24: the last of these has none of it
    for (const Layout& layout :
         {tensor_parallel(2, true, 1, 0, 1, Recompute::none, 4),
          tensor_parallel(2, false, 2, 1, 4, Recompute::block, 3),
          tensor_parallel(3, true, 2, 3, 2, Recompute::block, 2), tensor_parallel(3, false, 1, 0, 2, Recompute::none),
          tensor_parallel(3, true, 2, 2, 1, Recompute::gelu_norm), tensor_parallel(6, true, 1, 0, 1)}) {
        certify(layout, layout.heads == 3 ? three_heads : twelve_heads);
    }
}

TEST_CASE("certificate: tp ranks whose classifier is a tensor of its own") {
    const Result expected = train_alone(1, 2, true, false);
    for (int zero : {1, 3}) {
        Layout layout = tensor_parallel(3, zero == 1, 2, zero, 2);
        layout.tied = false;
        certify(layout, expected);
    }
}

#if defined(PRECISION_BF16)
TEST_CASE("certificate: tp ranks sum gradients in bf16") {
    Layout layout = tensor_parallel(3, true, 2, 1, 2);
    layout.grad_dtype = DType::bf16;
    certify(layout, train_alone(1, 2));
}

TEST_CASE("tensor parallelism: without masters the same random bits round the same elements") {
    // Adam's first step hardly depends on a gradient's size, so all but a few elements round to the very same bits.
    Layout layout = tensor_parallel(3, true, 2, 1, 1);
    layout.master_weights = MasterWeights::none;
    Layout one;
    one.master_weights = MasterWeights::none;
    Rank alone(one);
    alone.train(1);
    const std::vector<std::vector<float>> expected = alone.parameters();
    on_layout(layout, [&](Rank& rank, TestRank& me) {
        rank.train(1);
        rank.step().wait_for_all_gather();
        std::size_t different = 0, all = 0;
        for (int param = 0; param < rank.stage().table().size(); param++) {
            const std::vector<float> found = gathered(rank, param);
            for (std::size_t i = 0; i < found.size(); i++) {
                different += found[i] != expected[static_cast<std::size_t>(param)][i];
            }
            all += found.size();
        }
        const double share = static_cast<double>(different) / static_cast<double>(all);
        me.require(share < 0.01, 100 * share, "% of the parameters differ");
    });
}
#endif

namespace {

void certify_all(int tp) {
    const Result expected = train_alone(1, 20, true, true, tensor_parallel(tp, true, 1, 0, 1).heads);
    for (int dp = 1; dp * tp <= 8; dp++) {
        if (dp == 5 || dp == 7) continue;   // do not divide the step
        for (bool sequence_parallel : {true, false}) {
            for (int zero : {0, 1, 2, 3}) {
                if (dp == 1 && zero > 0) continue;
                const int varies = zero + dp + (sequence_parallel ? 2 : 0);   // recompute, micro-batches, chunks
                certify(tensor_parallel(tp, sequence_parallel, dp, zero, varies % 2 == 0 ? 1 : 4,
                                        static_cast<Recompute>(varies % 4), 1 + varies % 3),
                        expected);
            }
        }
    }
}

}   // namespace

TEST_CASE("certificate of tp ranks: all of ZeRO 0-3 and dp, 2 tp ranks" * doctest::skip()) { certify_all(2); }
TEST_CASE("certificate of tp ranks: all of ZeRO 0-3 and dp, 3 tp ranks" * doctest::skip()) { certify_all(3); }
TEST_CASE("certificate of tp ranks: all of ZeRO 0-3 and dp, 4 tp ranks" * doctest::skip()) { certify_all(4); }
TEST_CASE("certificate of tp ranks: all of ZeRO 0-3 and dp, 6 tp ranks" * doctest::skip()) { certify_all(6); }

TEST_CASE("tensor parallelism: initial weights gathered are those of one process to the bit") {
    for (int heads : {3, 12}) {
        Layout one;
        one.heads = heads;
        const std::vector<std::vector<float>> expected = Rank(one).parameters();
        for (int zero : {0, 3}) {
            on_layout(tensor_parallel(heads == 3 ? 3 : 6, true, heads == 3 ? 2 : 1, heads == 3 ? zero : 0, 1),
                      [&](Rank& rank, TestRank& me) {
                          for (int param = 0; param < rank.stage().table().size(); param++) {
                              me.require(gathered(rank, param) == expected[static_cast<std::size_t>(param)],
                                         rank.stage().table()[param].name);
                          }
                      });
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Traffic and memory

TEST_CASE("tensor parallelism: calls and bytes of a step are those that docs/parallelism.md states") {
    constexpr int L = 3, m = 2;
    for (const Layout& layout : {tensor_parallel(2, true, 1, 0, m), tensor_parallel(2, false, 1, 0, m),
                                 tensor_parallel(3, true, 2, 1, m, Recompute::block, 2),
                                 tensor_parallel(3, false, 2, 0, m, Recompute::block)}) {
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            std::map<std::string, int> calls;
            Communicator& group = *rank.groups().tensor;
            group.set_tap([&](const CommCall& call, const Communicator::Make& make) {
                calls[call.operation]++;
                make(call);
            });
            group.reset_traffic();
            rank.gradients(1);
            CUDA_CHECK(cudaStreamSynchronize(rank.stream()));
            const RankSizes& sizes = rank.stage().sizes();
            const double tp = layout.tp, f = (tp - 1) / tp, R = sizes.rows(), C = sizes.C, b = sizeof(floatX);
            const int block = layout.recompute == Recompute::block, k = layout.tp_chunks;
            // the norms' gradients, as ZeRO keeps them: 4 a layer and 2 of the head, in fp32
            const double dp = layout.dp, shard = std::ceil(std::ceil(C / dp) / 64) * 64;
            const double norms = (4 * L + 2) * (layout.zero > 0 ? shard : shard * dp) * 4;
            const int chunks = m;   // chunks of logits: one per micro-batch
            const double loss = 2 * f * 3 * R * 4 * m;
            if (layout.sequence_parallel) {
                const int gathers = m * (L * (2 + 4 + 2 * block) + 1 + 1), scatters = m * (L * (2 + 2 + block) + 1 + 1);
                me.require(calls["all-gather"] == gathers * k, "all-gathers ", calls["all-gather"]);
                me.require(calls["reduce-scatter"] == scatters * k, "reduce-scatters ", calls["reduce-scatter"]);
                me.require(calls["all-reduce"] == 2 * chunks + 1, "all-reduces ", calls["all-reduce"]);
                const double design = m * (L * (4 + 6 + 3 * block) + 2 + 2) * f * R * C * b;
                me.require(group.traffic().all_gather == gathers * f * R * C * b, "bytes gathered");
                me.require(group.traffic().reduce_scatter == scatters * f * R * C * b, "bytes scattered");
                me.require(group.traffic().all_gather + group.traffic().reduce_scatter == design, "bytes ", design);
                me.require(std::abs(group.traffic().all_reduce - loss - 2 * f * norms) < 1, "bytes of loss and norms");
            } else {
                const int sums = m * (L * (2 + 2 + block) + 1 + 1);
                me.require(calls["all-gather"] + calls["reduce-scatter"] == 0, "gathers without need");
                me.require(calls["all-reduce"] == m * ((L * (2 + block) + 1) * k + L * 2 * k + k) + 2 * chunks,
                           "all-reduces ", calls["all-reduce"]);
                const double design = m * (L * (4 + 4 + 2 * block) + 2 + 2) * f * R * C * b;
                me.require(std::abs(sums * 2 * f * R * C * b - design) < 1, "the formula");
                me.require(std::abs(group.traffic().all_reduce - loss - design) < 1, "bytes ",
                           group.traffic().all_reduce - loss, " ", design);
            }
            group.set_tap(nullptr);
        });
    }
}

TEST_CASE(
    "tensor parallelism: kept activations per layer and row are those that docs/parallelism.md states, from the "
    "table") {
    for (int tp : {1, 2, 3}) {
        for (bool sequence_parallel : {true, false}) {
            for (Recompute recompute : {Recompute::none, Recompute::gelu, Recompute::gelu_norm, Recompute::block}) {
                Layout layout = tensor_parallel(tp, sequence_parallel, 1, 0, 1, recompute);
                on_layout(layout, [&](Rank& rank, TestRank& me) {
                    std::size_t bytes = 0;
                    for (const Allocation& allocation : rank.arena().allocations()) {
                        const std::string& name = allocation.name;
                        const bool statistic =
                            name.ends_with("_mean") || name.ends_with("_rstd") || name.ends_with("lse");
                        if (name.starts_with("activations/h.1/") && !statistic) bytes += allocation.bytes;
                    }
                    const RankSizes& sizes = rank.stage().sizes();
                    const double per_row = static_cast<double>(bytes) / sizeof(floatX) / sizes.rows();
                    const int whole[] = {4, 4, 2, 1}, cut[] = {12, 8, 8, 0};   // C per row, by level
                    const auto level = static_cast<int>(recompute);
                    const double C = sizes.C, rows_shared_by = sequence_parallel ? tp : 1;
                    const double expected = whole[level] * C / rows_shared_by + cut[level] * C / tp;
                    me.require(per_row == expected, per_row, " elements a row, not ", expected);
                });
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Mutations

namespace {

enum class Damage { dropped, scaled, target_twice };

// Returns the certificate's findings for a run whose calls of one kind in the tp group are damaged on all ranks alike.
std::string damaged(const Layout& layout, Damage damage,
                    const std::function<bool(const CommCall& call, int rows)>& chosen, const Result& expected) {
    std::string story;
    int hits = 0;
    const bool ran = on_layout(layout, [&](Rank& rank, TestRank& me) {
        int own_hits = 0;
        rank.groups().tensor->set_tap([&](const CommCall& call, const Communicator::Make& make) {
            if (!chosen(call, rank.stage().sizes().rows())) return make(call);
            own_hits++;
            if (damage == Damage::dropped) return;
            const std::size_t first = damage == Damage::target_twice ? call.count / 2 : 0;
            double_values(const_cast<void*>(call.in), call.type, first, call.count - first, call.stream);
            make(call);
        });
        const Result found = rank.train(static_cast<int>(expected.losses.size()));
        rank.groups().tensor->set_tap(nullptr);
        if (me.rank() != 0) return;
        hits = own_hits;
        story = difference(found, expected, ParamTable(model(layout)));
    });
    if (!ran) return "passed over";
    const std::string told = from_first_process(text(hits > 0 ? "" : "no call was hit", story));
    CHECK(told.find("no call") == std::string::npos);
    return told;
}

}   // namespace

TEST_CASE("certificate: every kind of exchange of tp ranks, dropped or scaled, makes it fail") {
    const Result expected = train_alone(1, 1);
    for (bool sequence_parallel : {true, false}) {
        const Layout layout = tensor_parallel(3, sequence_parallel, 1, 0, 1);
        const int norms = (4 * 3 + 2) * 64;   // elements packed: 48 channels, padded
        struct Site {
            const char* name;
            Damage damage;
            std::function<bool(const CommCall&, int rows)> chosen;
        };
        auto is = [](const CommCall& call, const char* operation) { return std::string(call.operation) == operation; };
        auto sum_of = [is](const CommCall& call, int count) {
            return is(call, "all-reduce") && call.count == static_cast<std::size_t>(count);
        };
        auto maxima = [=](const CommCall& call, int rows) { return sum_of(call, rows); };
        auto sums = [=](const CommCall& call, int rows) { return sum_of(call, 2 * rows); };
        std::vector<Site> sites;
        if (sequence_parallel) {
            sites = {{"the maxima not reduced", Damage::dropped, maxima},
                     {"the sums of the loss not reduced", Damage::dropped, sums},
                     {"the target's logit counted twice", Damage::target_twice, sums}};
        }
        for (Damage damage : {Damage::dropped, Damage::scaled}) {
            if (sequence_parallel) {
                sites.push_back({"the sum of the norms' gradients", damage,
                                 [=](const CommCall& call, int) { return sum_of(call, norms); }});
                sites.push_back({"gathers", damage, [=](const CommCall& call, int) { return is(call, "all-gather"); }});
                sites.push_back(
                    {"scatters", damage, [=](const CommCall& call, int) { return is(call, "reduce-scatter"); }});
            } else {
                sites.push_back(
                    {"sums of rows", damage, [=](const CommCall& call, int rows) { return sum_of(call, 48 * rows); }});
            }
        }
        for (const Site& site : sites) {
            INFO(site.name, sequence_parallel ? ", sequence-parallel" : "");
            CHECK(damaged(layout, site.damage, site.chosen, expected) != "");
        }
    }
}
