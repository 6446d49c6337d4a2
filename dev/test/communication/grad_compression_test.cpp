// Compressed gradients: what is applied and what is left out add up to all gradients, replicas stay equal, checkpoints
// restore what is left out, bytes are the formula's.
#include <doctest/doctest.h>

#include "dev/test/communication/grad_compression_testing.h"
#include "llmc/parallel/compression/compressed_gradients.h"
#include "llmc/run/stopping/health.h"

using namespace grad_compression_testing;

namespace {

// The sum over ranks of their errors, of the elements that this rank owns. Collective.
std::vector<double> sum_of_errors(TestRank& me, Trainee& own) {
    const std::vector<std::string> of_all = me.world.gather_text(bits(errors(own)));
    std::vector<double> result;
    const ParamStorage& storage = own.stage.storage();
    std::size_t begin = 0;   // of a tensor in the whole state
    for (const TensorLayout& place : storage.tensors()) {
        const std::int64_t from = storage.owned_offset(place, StateKind::gradients);
        for (std::int64_t i = 0; i < storage.padded_elements(place, StateKind::optimizer); i++) {
            double sum = 0;
            for (const std::string& one : of_all) {
                sum += static_cast<double>(
                    reinterpret_cast<const float*>(one.data())[begin + static_cast<std::size_t>(from + i)]);
            }
            result.push_back(sum);
        }
        begin += static_cast<std::size_t>(place.padded);
    }
    return result;
}

}   // namespace

TEST_CASE("compressed gradients: what was applied and what is left out add up to all gradients; without feedback not") {
    for (const auto& [ranks, zero] : {std::pair{3, 0}, std::pair{2, 1}}) {
        for (const GradCompressionOptions& how : codecs) {
            on_ranks(ranks, [&, zero = zero](TestRank& me) {
                Trainee plain(options(), me.arena, me.stream, &me.world, zero),
                    own(compressed(how), me.arena, me.stream, &me.world, zero),
                    forgetful(compressed(how), me.arena, me.stream, &me.world, zero);
                // two rows of 16 that the factors could have make up more slowly
                const double times = how.how == GradCompression::powersgd ? 2 : 16;
                check_feedback(me, plain, own, forgetful, 12, {}, times, sum_of_errors);
            });
        }
    }
}

namespace {

void train_replicas(int steps) {
    for (const int ranks : {2, 3}) {
        for (const int zero : {0, 1}) {
            for (const GradCompressionOptions& how : codecs) {
                on_ranks(ranks, [&](TestRank& me) {
                    Trainee own(compressed(how), me.arena, me.stream, &me.world, zero),
                        plain(options(), me.arena, me.stream, &me.world, zero);
                    float loss = 0, expected = 0;
                    for (int step = 1; step <= steps; step++) {
                        loss = own.train(step).loss, expected = plain.train(step).loss;
                    }
                    const std::string differs = differing_replicas(
                        me.world.gather_text(replica_hashes(tensors_of(own.step), me.stream).tensors));
                    me.require(differs.empty(), differs);
                    if (zero == 0) me.require(all_have(me, own.values()), "other weights on another rank");
                    me.require(!all_have(me, errors(own)), "ranks left out the same");
                    me.require(own.values() != plain.values(), "nothing was compressed");
                    me.require(std::abs(loss / expected - 1) < 1e-2f, "loss ", loss, " for ", expected);
                });
            }
        }
    }
}

}   // namespace

TEST_CASE("compressed gradients: replicas have the same bits, near those whose gradients are whole") {
    train_replicas(8);
}
TEST_CASE("compressed gradients: replicas have the same bits after 50 steps" * doctest::skip()) { train_replicas(50); }

TEST_CASE("compressed gradients: all elements as the largest ones, and full rank, are the sum but for rounding") {
    // powersgd has no more rows to multiply with than the smaller side has elements
    constexpr GradCompressionOptions all{GradCompression::topk, 1},
        full{.how = GradCompression::powersgd, .rank = 32, .min_compression_rate = 0};
    for (const int ranks : {2, 3}) {
        for (const int zero : {0, 1}) {
            for (const GradCompressionOptions& how : {all, full}) {
                on_ranks(ranks, [&](TestRank& me) {
                    Trainee own(compressed(how), me.arena, me.stream, &me.world, zero),
                        plain(options(), me.arena, me.stream, &me.world, zero);
                    for (int step = 1; step <= 3; step++) {
                        own.gradients(step), plain.gradients(step);
                        const Floats sent = applied(own), given = applied(plain);
                        const double most = distance(given, Floats(given.size()));
                        // factors drop a direction of which less than 1e-5 of a row is left (kOnlyRounding)
                        const double slack = how.how == GradCompression::topk ? 1e-6 : 1e-4;
                        me.require(most > 0 && distance(sent, given) < slack * most, "ZeRO ", zero, ": ",
                                   distance(sent, given), " off, of gradients to ", most);
                        // factors leave out what is not in the sum of all ranks
                        const std::vector<double> left = sum_of_errors(me, own);
                        const double off = distance(Floats(left.size()), left);
                        me.require(how.how == GradCompression::topk ? all_zero(errors(own)) : off < slack * most, off,
                                   " is left out, of gradients to ", most);
                    }
                });
            }
        }
    }
}

TEST_CASE("compressed gradients: bytes are the formula's") {
    for (const int ranks : {2, 3}) {
        for (const int zero : {0, 1}) {
            for (const GradCompressionOptions& how : codecs) {
                on_ranks(ranks, [&](TestRank& me) {
                    Trainee own(compressed(how), me.arena, me.stream, &me.world, zero);
                    own.train(1);
                    own.step.wait_for_all_gather();
                    own.groups.zero->reset_traffic();
                    own.gradients(2);
                    own.step.result();
                    // groups of one kind of ranks may be one communicator: less the step's sums
                    const Traffic sent = own.groups.zero->traffic();
                    const double f = static_cast<double>(ranks - 1) / ranks;
                    const double numbers = own.groups.zero == own.groups.all ? 2 * f * step_sums * sizeof(double) : 0.0;
                    double by_hand = 0, as_they_are = 0;   // of what is compressed, and of powersgd's small tensors
                    for (const TensorLayout& tensor : own.stage.storage().tensors()) {
                        if (how.how == GradCompression::powersgd) {
                            const TensorSpec& of = own.stage.table()[tensor.param].tensor;
                            const std::int64_t aligned = 64 * ranks, right = 2 * of.cols;
                            const bool small = of.rows * of.cols <= 4 * (of.rows + of.cols);
                            (small ? as_they_are : by_hand) +=
                                4.0 *
                                static_cast<double>(small ? tensor.padded
                                                          : 2 * of.rows + (right + aligned - 1) / aligned * aligned);
                            continue;
                        }
                        const std::int64_t shards = how.how == GradCompression::topk && zero == 0 ? 1 : ranks;
                        const std::int64_t shard = tensor.padded / shards, blocks = (shard + 255) / 256;
                        const std::int64_t quarters = shard / 1024 * 256 + (shard % 1024 + 3) / 4;
                        by_hand += static_cast<double>(shards * (how.how == GradCompression::topk   ? 8 * quarters
                                                                 : how.how == GradCompression::int8 ? 260 * blocks
                                                                                                    : 512 * blocks));
                    }
                    const bool both_ways = zero == 0 || how.how == GradCompression::powersgd;
                    by_hand *= f * (!both_ways ? 1 : how.how == GradCompression::topk ? ranks : 2);
                    as_they_are *= f * (zero == 1 ? 1 : 2);
                    const double formula = compressed_traffic(own.stage.storage(), how);
                    me.require(std::abs(formula / by_hand - 1) < 1e-9, formula, " bytes for ", by_hand);
                    const double given = sent.total() - numbers - as_they_are;
                    me.require(std::abs(given - formula) < 1e-6 * formula, given, " bytes for ", formula);
                });
            }
        }
    }
}

TEST_CASE("compressed gradients: a run cut after any step goes on to the bit") {
    for (const auto& [ranks, zero, codec] :
         {std::tuple{2, 0, bf16_blocks}, std::tuple{3, 1, int8_blocks}, std::tuple{3, 0, largest_ones},
          std::tuple{2, 1, largest_ones}, std::tuple{2, 0, low_rank}, std::tuple{3, 1, low_rank}}) {
        const SharedFolder folder;
        const OptimizerOptions how = compressed(codec);
        on_ranks(ranks, [&, zero = zero, codec = codec](TestRank& me) {
            Trainee own(how, me.arena, me.stream, &me.world, zero);
            for (int step = 1; step <= 5; step++) {
                own.train(step);
                save(me, own, folder / "run", step);
            }
            for (int cut = 1; cut <= 4; cut++) {
                Trainee resumed(how, me.arena, me.stream, &me.world, zero);
                resumed.train(1);   // what is overwritten
                load(resumed, folder / "run", cut);
                me.require(!all_zero(errors(resumed)), "errors that are zero");
                for (int step = cut + 1; step <= 5; step++) resumed.train(step);
                me.require(resumed.values() == own.values(), "cut after step ", cut, ": other weights");
                me.require(errors(resumed) == errors(own), "cut after step ", cut, ": other errors");
                if (codec.how != GradCompression::powersgd) continue;
                for (int slot = 0; slot < 3; slot++) {
                    auto factors = [&](Trainee& of) {
                        return of.step.optimizer().state(kGradientFactor).unit(slot).download(of.stream);
                    };
                    me.require(factors(resumed) == factors(own), "cut after step ", cut, ": other factors");
                }
            }
        });
    }
}

TEST_CASE("compressed gradients: other numbers of ranks, and runs with new moments, begin with nothing left out") {
    const SharedFolder folder;
    on_ranks(3, [&](TestRank& me) {
        Trainee own(compressed(int8_blocks), me.arena, me.stream, &me.world, 1),
            plain(options(), me.arena, me.stream, &me.world, 1);
        own.train(1), plain.train(1);
        save(me, own, folder / "three", 1);
        save(me, plain, folder / "whole", 1);
        load(own, folder / "three", 1, true);
        me.require(all_zero(errors(own)), "errors from before the new moments");
        own.train(2);
        load(own, folder / "whole", 1);
        me.require(all_zero(errors(own)), "errors of another run");
        load(plain, folder / "three", 1);   // a run without compression leaves them out
        plain.train(2);
    });
    if (!ranks_are_threads()) return;
    on_ranks(2, [&](TestRank& me) {
        const std::string three = folder / "three/" + checkpoint_name(1);
        Trainee own(compressed(int8_blocks), me.arena, me.stream, &me.world, 0);
        me.require(saved_sums(real_files(), three, own.stage.table()) == 3, "not of three ranks");
        me.require(saved_sums(real_files(), folder / "whole/" + checkpoint_name(1), own.stage.table()) == 0,
                   "errors of a run without");
        own.train(1);
        load(own, folder / "three", 1);
        me.require(all_zero(errors(own)), "errors of other ranks");
        own.train(2);
    });
}

TEST_CASE("compressed gradients: passes whose gradients nobody applies leave what was left out as it is") {
    for (const int zero : {0, 1}) {
        on_ranks(2, [&](TestRank& me) {
            Trainee own(compressed(int8_blocks), me.arena, me.stream, &me.world, zero),
                plain(options(), me.arena, me.stream, &me.world, zero);
            own.step.sync().begins(0);
            own.gradients(1), plain.gradients(1);
            me.require(applied(own) == applied(plain), "gradients of a trial do not travel as they are");
            me.require(all_zero(errors(own)), "a trial has left something out");
            own.step.sync().begins(1);
            own.train(1);
            const Floats before = errors(own);
            me.require(!all_zero(before), "nothing was left out");
            own.step.sync().begins(0);
            own.gradients(2, {.huge = true});
            own.step.result();
            me.require(errors(own) == before, "a trial has changed what was left out");
            own.step.sync().begins(1);
            own.train(2);
            me.require(errors(own) != before, "nothing is compressed after a trial");
        });
    }
}

TEST_CASE("compressed gradients: a step whose update is left out leaves nothing behind, and later ones go on") {
    for (const int zero : {0, 1}) {
        for (const GradCompressionOptions& how : codecs) {
            on_ranks(2, [&](TestRank& me) {
                Trainee own(compressed(how), me.arena, me.stream, &me.world, zero);
                own.train(1);
                me.require(!all_zero(errors(own)), "nothing was left out");
                const Floats before = own.values();
                own.gradients(2, {.huge = true});   // on every rank, so that their norm is not finite
                own.step.update(2, own.how.lr);
                me.require(!std::isfinite(own.step.result().grad_norm), "the norm is finite");
                me.require(own.values() == before && all_zero(errors(own)), "something moved, or is left");
                StepResult after = own.train(3);
                me.require(after.grad_norm < 100 && own.values() != before, "the next step has a norm of ",
                           after.grad_norm);
                me.require(!all_zero(errors(own)), "nothing is left out any more");
                own.gradients(4);
                own.step.skip_update(4);
                me.require(all_zero(errors(own)), "errors of an update that the host has left out");
                after = own.train(5);
                me.require(after.grad_norm < 100, "norm ", after.grad_norm);
            });
        }
    }
}

TEST_CASE("compressed gradients: they are timed without a trace") {
    for (const int zero : {0, 1}) {
        for (const GradCompressionOptions& how : codecs) {
            on_ranks(2, [&](TestRank& me) {
                Trainee own(compressed(how), me.arena, me.stream, &me.world, zero),
                    plain(compressed(how), me.arena, me.stream, &me.world, zero);
                const ReductionTimes times = own.step.sync().time_reductions();
                me.require(times.by_codec > 0 && times.as_they_are > 0, "no time");
                me.require(all_zero(errors(own)), "something is left out");
                for (int step = 1; step <= 2; step++) own.train(step), plain.train(step);
                me.require(own.values() == plain.values() && errors(own) == errors(plain), "other weights");
            });
        }
    }
}

TEST_CASE(
    "compressed gradients: powersgd begins after a tenth of the steps, and goes on at another rank with new factors") {
    CHECK(steps_before_compression({GradCompression::int8}, 400) == 0);
    CHECK(steps_before_compression({GradCompression::powersgd}, 400) == 40);
    CHECK(steps_before_compression({.how = GradCompression::powersgd, .start = 0}, 400) == 0);
    CHECK(steps_before_compression({.how = GradCompression::int8, .start = 7}, 400) == 7);
    const SharedFolder folder;
    on_ranks(2, [&](TestRank& me) {
        GradCompressionOptions other = low_rank;
        other.rank = 3;
        Trainee own(compressed(low_rank), me.arena, me.stream, &me.world, 1),
            same(compressed(low_rank), me.arena, me.stream, &me.world, 1),
            resumed(compressed(other), me.arena, me.stream, &me.world, 1);
        own.train(1);
        save(me, own, folder / "run", 1);
        load(same, folder / "run", 1), load(resumed, folder / "run", 1);
        auto factors = [](Trainee& of) -> const OptimizerState& {
            return *std::ranges::find(of.step.optimizer().states(), kGradientFactor, &OptimizerState::name);
        };
        const std::string checkpoint = folder / "run/" + checkpoint_name(1);
        me.require(holds_whole_state(real_files(), checkpoint, factors(same)), "factors of this rank are not there");
        me.require(!holds_whole_state(real_files(), checkpoint, factors(resumed)), "factors of another rank are");
        auto of_qkv = [&](Trainee& of) { return factors(of).values.as<float>().unit(1).download(of.stream); };
        me.require(of_qkv(same) == of_qkv(own) && !all_zero(of_qkv(same)), "the factors were not loaded");
        me.require(all_zero(of_qkv(resumed)), "factors of another rank were loaded");
        resumed.train(2);
        me.require(errors(resumed) != errors(own) && !all_zero(of_qkv(resumed)), "nothing was compressed");
    });
    if (!ranks_are_threads()) return;
    on_ranks(3, [&](TestRank& me) {   // all ranks have the same factors, so more of them do, too
        Trainee own(compressed(low_rank), me.arena, me.stream, &me.world, 0);
        load(own, folder / "run", 1);
        me.require(all_zero(errors(own)), "errors of other ranks");
        const std::vector<OptimizerState>& states = own.step.optimizer().states();
        const auto factor = std::ranges::find(states, kGradientFactor, &OptimizerState::name);
        me.require(holds_whole_state(real_files(), folder / "run/" + checkpoint_name(1), *factor), "no factors");
        me.require(!all_zero(factor->values.as<float>().unit(1).download(own.stream)), "the factors were not loaded");
        own.train(2);
    });
}

TEST_CASE("compressed gradients: factors that are kept come closer to the same gradients than new ones") {
    on_ranks(2, [&](TestRank& me) {
        Trainee plain(options(), me.arena, me.stream, &me.world, 0),
            warm(compressed(low_rank), me.arena, me.stream, &me.world, 0),
            cold(compressed(low_rank), me.arena, me.stream, &me.world, 0);
        double off_warm = 0, off_cold = 0;
        for (int step = 1; step <= 6; step++) {
            for (Trainee* one : {&plain, &warm, &cold}) {
                one->gradients(1);
                if (one == &plain) continue;
                one->step.optimizer().state(kGradientError).zero(me.stream);
                if (one == &cold) one->step.optimizer().state(kGradientFactor).zero(me.stream);
            }
            const Floats given = applied(plain), by_warm = applied(warm), by_cold = applied(cold);
            off_warm = off_cold = 0;
            for (std::size_t i = 0; i < given.size(); i++) {
                const auto square = [](double x) { return x * x; };
                off_warm += square(static_cast<double>(by_warm[i]) - static_cast<double>(given[i]));
                off_cold += square(static_cast<double>(by_cold[i]) - static_cast<double>(given[i]));
            }
        }
        me.require(off_warm > 0 && off_warm < 0.9 * off_cold, off_warm, " squares are missing, with new factors ",
                   off_cold);
    });
}

TEST_CASE("compressed gradients: a check of replicas finds factors that differ") {
    for (const int zero : {0, 1}) {
        on_ranks(2, [&](TestRank& me) {
            Trainee own(compressed(low_rank), me.arena, me.stream, &me.world, zero);
            own.train(1);
            auto differs = [&] {
                return differing_replicas(
                    me.world.gather_text(replica_hashes(tensors_of(own.step), me.stream).tensors));
            };
            me.require(differs().empty(), differs());
            if (!me.world.is_first()) own.step.optimizer().state(kGradientFactor).zero(me.stream);
            const std::string found = differs();
            me.require(found.find(kGradientFactor) != std::string::npos, "found: ", found);
        });
    }
}

TEST_CASE("compressed gradients: a run goes on with another compression, and with what was left out") {
    for (const auto& [from, to] : {std::pair{int8_blocks, largest_ones}, std::pair{largest_ones, bf16_blocks},
                                   std::pair{low_rank, int8_blocks}, std::pair{int8_blocks, low_rank}}) {
        const SharedFolder folder;
        on_ranks(2, [&, from = from, to = to](TestRank& me) {
            Trainee own(compressed(from), me.arena, me.stream, &me.world, 0),
                resumed(compressed(to), me.arena, me.stream, &me.world, 0);
            own.train(1);
            save(me, own, folder / "run", 1);
            load(resumed, folder / "run", 1);
            const ModelState<float>&before = own.step.optimizer().state(kGradientError),
                  &after = resumed.step.optimizer().state(kGradientError);
            int compared = 0;
            for (const TensorLayout& tensor : after.storage().tensors()) {
                if (before.storage().find(tensor.param) == nullptr) continue;
                auto values = [&](Trainee& of, const ModelState<float>& state) {
                    const auto unit = state.unit(tensor.slot);
                    return unit.download(of.stream, static_cast<std::size_t>(state.tensor(tensor.param) - unit.data()),
                                         static_cast<std::size_t>(tensor.elements));
                };
                me.require(values(own, before) == values(resumed, after), "errors of another run");
                compared++;
            }
            me.require(compared > 4, "only ", compared, " tensors");
            resumed.train(2);
        });
    }
}
