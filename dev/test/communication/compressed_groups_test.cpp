// Gradients compressed between ZeRO's groups: as compressed gradients of whole ranks, with errors of shards.
#include <doctest/doctest.h>

#include "dev/test/communication/grad_compression_testing.h"
#include "llmc/parallel/compression/compressed_gradients.h"
#include "llmc/run/stopping/health.h"

using namespace grad_compression_testing;

namespace {

constexpr GradCompressionOptions between[]{bf16_blocks, int8_blocks, largest_ones};

// Calls body(me, trainee) on the ranks of `groups` groups of two; trainee(how) makes one of `zero`.
template <class Body>
void on_groups(int groups, int zero, Body&& body) {
    CAPTURE(groups);
    CAPTURE(zero);
    on_ranks(MeshShape{1, 2 * groups, 1, 1, 2}, [&](TestRank& me) {
        body(me, [&](const OptimizerOptions& how) { return Trainee(how, me.arena, me.stream, &me.world, zero); });
    });
}

Floats errors_of_shard(Trainee& own) { return values_of(own, own.step.optimizer().state(kGradientError), true); }

// The sum over groups of their errors, of the elements that this rank owns. Collective.
std::vector<double> sum_of_groups(TestRank& me, Trainee& own) {
    const std::vector<std::string> of_all = me.world.gather_text(bits(errors_of_shard(own)));
    std::vector<double> sum;
    for (auto rank = static_cast<std::size_t>(me.world.rank() % 2); rank < of_all.size(); rank += 2) {
        sum.resize(of_all[rank].size() / sizeof(float));
        for (std::size_t i = 0; i < sum.size(); i++) {
            sum[i] += static_cast<double>(reinterpret_cast<const float*>(of_all[rank].data())[i]);
        }
    }
    return sum;
}

std::string difference(TestRank& me, Trainee& own) {
    return differing_replicas(me.world.gather_text(replica_hashes(tensors_of(own.step), me.stream).tensors));
}

}   // namespace

TEST_CASE("compression between groups: what was applied and what is left out add up to all gradients") {
    for (const int groups : {2, 3}) {
        const int zero = groups - 1;
        for (const GradCompressionOptions& how : between) {
            on_groups(groups, zero, [&](TestRank& me, auto trainee) {
                Trainee plain = trainee(options()), own = trainee(compressed(how)),
                        forgetful = trainee(compressed(how));
                check_feedback(me, plain, own, forgetful, 8, {.ranks = 2}, 5, sum_of_groups);
            });
        }
    }
}

TEST_CASE("compression between groups: all elements as the largest ones are the sum but for rounding") {
    for (const int groups : {2, 3}) {
        const int zero = 2 * groups - 3;
        on_groups(groups, zero, [&](TestRank& me, auto trainee) {
            Trainee own = trainee(compressed({GradCompression::topk, 1})), plain = trainee(options());
            own.gradients(1), plain.gradients(1);
            const Floats sent = applied(own), given = applied(plain);
            const double most = distance(given, Floats(given.size()));
            me.require(most > 0 && distance(sent, given) < 1e-6 * most, distance(sent, given), " off, of gradients to ",
                       most);
            me.require(all_zero(errors_of_shard(own)), "something is left out");
        });
    }
}

TEST_CASE("compression between groups: groups have the same bits after 8 steps, near those without compression") {
    for (const int zero : {1, 2, 3}) {
        const GradCompressionOptions& how = between[zero - 1];
        on_groups(zero == 2 ? 3 : 2, zero, [&](TestRank& me, auto trainee) {
            Trainee own = trainee(compressed(how)), plain = trainee(options());
            float loss = 0, expected = 0;
            for (int step = 1; step <= 8; step++) loss = own.train(step).loss, expected = plain.train(step).loss;
            const std::string differs = difference(me, own);
            me.require(differs.empty(), differs);
            me.require(!all_have(me, errors_of_shard(own)), "ranks left out the same");
            me.require(own.values() != plain.values(), "nothing was compressed");
            me.require(std::abs(loss / expected - 1) < 1e-2f, "loss ", loss, " for ", expected);
        });
    }
}

TEST_CASE("compression between groups: bytes between groups are the formula's, and within one those without") {
    for (const int groups : {2, 3}) {
        const int zero = groups - 1;
        for (const GradCompressionOptions& how : between) {
            on_groups(groups, zero, [&](TestRank& me, auto trainee) {
                Trainee own = trainee(compressed(how)), plain = trainee(options());
                double within[2], sent = 0;
                for (Trainee* one : {&own, &plain}) {
                    one->train(1);
                    one->step.wait_for_all_gather();
                    one->groups.replicas->reset_traffic(), one->groups.zero->reset_traffic();
                    one->gradients(2, {.ranks = 2});
                    one->step.result();
                    within[one == &plain] = one->groups.zero->traffic().total();
                    if (one == &own) sent = one->groups.replicas->traffic().total();
                }
                double by_hand = 0;
                for (const TensorLayout& tensor : own.stage.storage().tensors()) {
                    const std::int64_t blocks = (tensor.kept + 255) / 256, share = (blocks + groups - 1) / groups;
                    const std::int64_t quarters = tensor.kept / 1024 * 256 + (tensor.kept % 1024 + 3) / 4;
                    by_hand += static_cast<double>(groups - 1) *
                               static_cast<double>(how.how == GradCompression::topk   ? 8 * quarters
                                                   : how.how == GradCompression::int8 ? 2 * 260 * share
                                                                                      : 2 * 512 * share);
                }
                const double formula = compressed_traffic(own.stage.storage(), how);
                me.require(std::abs(formula / by_hand - 1) < 1e-9, formula, " bytes for ", by_hand);
                me.require(std::abs(sent / formula - 1) < 1e-9, sent, " bytes for ", formula);
                me.require(within[0] == within[1], within[0], " bytes within a group for ", within[1]);
            });
        }
    }
}

TEST_CASE("compression between groups: a run cut after any step goes on to the bit, at any ZeRO stage with groups") {
    for (const GradCompressionOptions& how : between) {
        const int groups = how.how == GradCompression::int8 ? 3 : 2;
        const SharedFolder folder;
        on_ranks(MeshShape{1, 2 * groups, 1, 1, 2}, [&](TestRank& me) {
            auto trainee = [&](int zero) { return Trainee(compressed(how), me.arena, me.stream, &me.world, zero); };
            Trainee own = trainee(1);
            for (int step = 1; step <= 4; step++) {
                own.train(step);
                save(me, own, folder / "run", step);
            }
            for (const int zero : {1, 2, 3}) {
                Trainee resumed = trainee(zero);
                resumed.train(1);   // what is overwritten
                load(resumed, folder / "run", zero);
                me.require(!all_zero(errors_of_shard(resumed)), "errors that are zero");
                for (int step = zero + 1; step <= 4; step++) resumed.train(step);
                me.require(resumed.values() == own.values(), "cut after step ", zero, ": other weights");
                me.require(errors_of_shard(resumed) == errors_of_shard(own), "cut after step ", zero, ": other errors");
            }
        });
    }
}

TEST_CASE("compression between groups: as many groups go on with what as many whole ranks have left out") {
    if (!ranks_are_threads()) return;
    const SharedFolder folder;
    std::vector<double> of_ranks;   // errors of two whole ranks, added up
    on_ranks(2, [&](TestRank& me) {
        Trainee own(compressed(int8_blocks), me.arena, me.stream, &me.world, 0);
        own.train(1);
        save(me, own, folder / "run", 1);
        const std::vector<std::string> of_all =
            me.world.gather_text(bits(own.step.optimizer().state(kGradientError).unit(1).download(me.stream)));
        if (!me.world.is_first()) return;
        for (std::size_t i = 0; i < of_all[0].size() / sizeof(float); i++) {
            auto of = [&](int rank) {
                return static_cast<double>(
                    reinterpret_cast<const float*>(of_all[static_cast<std::size_t>(rank)].data())[i]);
            };
            of_ranks.push_back(of(0) + of(1));
        }
    });
    on_groups(2, 1, [&](TestRank& me, auto trainee) {
        Trainee own = trainee(compressed(int8_blocks));
        load(own, folder / "run", 1);
        double squares[2] = {};   // all of a layer's, summed over both groups
        for (const std::string& one :
             me.world.gather_text(bits(own.step.optimizer().state(kGradientError).unit(1).download(me.stream)))) {
            for (std::size_t i = 0; i < one.size() / sizeof(float); i++) {
                squares[0] += static_cast<double>(reinterpret_cast<const float*>(one.data())[i]);
            }
        }
        for (const double error : of_ranks) squares[1] += error;
        me.require(std::abs(squares[0] - squares[1]) < 1e-6 * std::abs(squares[1]), "errors of ", squares[0], " for ",
                   squares[1]);
        own.train(2);
    });
    on_groups(3, 1, [&](TestRank& me, auto trainee) {
        Trainee own = trainee(compressed(int8_blocks));
        load(own, folder / "run", 1);
        me.require(all_zero(errors_of_shard(own)), "errors of other sums");
        own.train(2);
    });
}

TEST_CASE("compression between groups: it is timed without a trace, and a step left out leaves nothing behind") {
    for (const int zero : {1, 2, 3}) {
        on_groups(2, zero, [&](TestRank& me, auto trainee) {
            Trainee own = trainee(compressed(int8_blocks)), plain = trainee(compressed(int8_blocks));
            const ReductionTimes times = own.step.sync().time_reductions();
            me.require(times.by_codec > 0 && times.as_they_are > 0, "no time");
            me.require(all_zero(errors_of_shard(own)), "something is left out");
            for (int step = 1; step <= 2; step++) own.train(step), plain.train(step);
            me.require(own.values() == plain.values() && errors_of_shard(own) == errors_of_shard(plain),
                       "other weights");
            const Floats before = own.values();
            own.gradients(3, {.huge = true});
            own.step.update(3, own.how.lr);
            me.require(!std::isfinite(own.step.result().grad_norm), "the norm is finite");
            me.require(own.values() == before && all_zero(errors_of_shard(own)), "something moved, or is left");
        });
    }
}
