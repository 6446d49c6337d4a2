// Local steps: replicas that train by themselves and move together, against single processes averaged by hand; what all
// must decide alike; what a checkpoint restores; what travels.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "llmc/run/flip_bit_testing.h"
#include "llmc/run/stopping/health.h"
#include "llmc/run/trainee_testing.h"

using namespace trainee_testing;

namespace {

OptimizerOptions local_steps(int every, float lr = 0.7f, float momentum = 0.9f) {
    return options({every, lr, momentum});
}

}   // namespace

TEST_CASE("local steps: three at a time of two and of three replicas are single processes averaged by hand") {
    constexpr double lr = 0.7f, momentum = 0.9f;
    constexpr double tolerance = sizeof(floatX) == sizeof(float) ? 2e-5 : 6e-5;
    for (const int R : {2, 3}) {
        on_ranks(replicas_of(R, 1), [&](TestRank& me) {
            Trainee own(local_steps(3), me.arena, me.stream, &me.world);
            own.step.optimizer().ends_after(7);   // moves after 3, 6 and 7
            OptimizerOptions by_itself = local_steps(0);
            std::vector<std::unique_ptr<Trainee>> alone;
            for (int k = 0; k < R; k++) alone.push_back(std::make_unique<Trainee>(by_itself, me.arena, me.stream));
            const Floats begin = alone[0]->values();
            std::vector<double> together(begin.begin(), begin.end()), m(together.size(), 0.0);
            for (int step = 1; step <= 7; step++) {
                const StepResult result = own.train(step);
                double loss = 0, squares = 0;
                for (int k = 0; k < R; k++) {
                    Trainee& one = *alone[static_cast<std::size_t>(k)];
                    one.gradients(step, {.rank = k});
                    one.step.update(step, one.how.lr);
                    const StepResult of_one = one.step.result();
                    loss += of_one.loss / R, squares += static_cast<double>(of_one.grad_norm) * of_one.grad_norm / R;
                    me.require(of_one.grad_norm > 0.5f, "nothing was clipped");
                }
                me.require(std::abs(result.loss / loss - 1) < 1e-5, "step ", step, ": loss ", result.loss, " for ",
                           loss);
                me.require(std::abs(result.grad_norm / std::sqrt(squares) - 1) < 1e-3, "step ", step, ": norm ",
                           result.grad_norm, " for ", std::sqrt(squares));
                if (step % 3 == 0 || step == 7) {
                    std::vector<Floats> weights;
                    for (auto& one : alone) weights.push_back(one->values());
                    for (std::size_t i = 0; i < together.size(); i++) {
                        double mean = 0;
                        for (const Floats& of_one : weights) mean += of_one[i] / static_cast<double>(R);
                        const double d = together[i] - mean;
                        m[i] = momentum * m[i] + d;
                        together[i] -= lr * (d + momentum * m[i]);
                    }
                    for (auto& one : alone) one->set_weights(Floats(together.begin(), together.end()));
                    me.require(all_have(me, own.values()), "step ", step, ": replicas differ after a move");
                } else {
                    me.require(!all_have(me, own.values()), "step ", step, ": replicas are equal between moves");
                }
                const double apart =
                    distance(own.values(), alone[static_cast<std::size_t>(own.stage.data_rank())]->values());
                me.require(apart < tolerance, "step ", step, ": a weight is ", apart, " from that by hand");
            }
            me.require(own.values("outer_weights") == own.values(), "they go on from other weights");
        });
    }
}

TEST_CASE("local steps: one at a time, rate 1, momentum 0, one replica: AdamW") {
    on_ranks(replicas_of(1, 2), [&](TestRank& me) {
        for (const int zero : {0, 1, 3}) {
            Trainee own(local_steps(1, 1, 0), me.arena, me.stream, &me.world, zero),
                plain(local_steps(0), me.arena, me.stream, &me.world, zero);
            for (int step = 1; step <= 5; step++) {
                const StepResult found = own.train(step), expected = plain.train(step);
                me.require(std::abs(found.loss / expected.loss - 1) < 1e-6, "ZeRO ", zero, ", step ", step, ": loss ",
                           found.loss, " for ", expected.loss);
                const double apart = distance(own.values(), plain.values());
                me.require(apart < 1e-6, "ZeRO ", zero, ", step ", step, ": a weight is ", apart, " away");
            }
        }
    });
}

TEST_CASE("local steps: an update that one replica cannot make is skipped by all, and they still move together") {
    for (const int ranks : {1, 2}) {
        on_ranks(replicas_of(2, ranks), [&](TestRank& me) {
            Trainee own(local_steps(3), me.arena, me.stream, &me.world, 1);
            own.train(1);
            const Floats before = own.values(), moments = own.values("m");
            for (const int step : {2, 3}) {
                own.gradients(step, {.huge = me.rank() == me.ranks() - 1});
                own.step.update(step, own.how.lr);
                const StepResult result = own.step.result();
                me.require(!std::isfinite(result.grad_norm) && std::isfinite(result.loss), "step ", step, ": loss ",
                           result.loss, ", norm ", result.grad_norm);
                me.require(own.values("m") == moments, "step ", step, " has changed a moment");
                me.require((own.values() == before) == (step == 2), "step ", step, ": weights move at step 3 alone");
            }
            me.require(own.values() == own.values("outer_weights"), "no move after step 3");
        });
    }
}

TEST_CASE("local steps: replicas move after a step whose update the host leaves out, and at no other") {
    on_ranks(replicas_of(2, 2), [&](TestRank& me) {
        for (const int zero : {0, 2, 3}) {
            Trainee own(local_steps(3), me.arena, me.stream, &me.world, zero);
            own.train(1);
            const Floats before = own.values();
            for (const int step : {2, 3}) {
                own.gradients(step);
                own.step.skip_update(step);
                own.step.result();
                me.require((own.values() == before) == (step == 2), "ZeRO ", zero, ", step ", step);
            }
            me.require(own.values() == own.values("outer_weights"), "no move after step 3");
            own.train(4);   // the gathered parameters are those of the move
            me.require(
                differing_replicas(me.world.gather_text(replica_hashes(tensors_of(own.step), me.stream).tensors)) == "",
                "ranks of a replica differ");
        }
    });
}

TEST_CASE("local steps: the average of the weights takes in what they are after a move") {
    on_ranks(replicas_of(2, 1), [&](TestRank& me) {
        OptimizerOptions how = local_steps(2);
        how.ema = 0.5f;   // from step 9 on; (1 + step) / (10 + step) before
        Trainee own(how, me.arena, me.stream, &me.world);
        for (int step = 1; step <= 4; step++) {
            const Floats before = own.values("ema");
            own.train(step);
            const Floats weights = own.values(), after = own.values("ema");
            const float decay =
                std::min(how.ema, (1.0f + static_cast<float>(step)) / (10.0f + static_cast<float>(step)));
            Floats expected;
            for (std::size_t i = 0; i < before.size(); i++) {
                expected.push_back(before[i] + (1 - decay) * (weights[i] - before[i]));
            }
            me.require(distance(after, expected) < 1e-6, "step ", step, ": ", distance(after, expected));
        }
    });
}

TEST_CASE(
    "local steps: between two replicas that move after 100 steps a hundredth travels of what steps together send") {
    std::map<bool, double> sent;   // with local steps or not: bytes of rank 0 over all groups
    for (const bool local : {false, true}) {
        OptimizerOptions how = local_steps(local ? 100 : 0);
        on_ranks(local ? replicas_of(2, 1) : MeshShape{1, 2, 1, 1}, [&](TestRank& me) {
            Trainee own(how, me.arena, me.stream, &me.world);
            const std::set<Communicator*> groups{own.groups.zero, own.groups.all, own.groups.outer, own.groups.world};
            for (Communicator* group : groups) {
                if (group != nullptr) group->reset_traffic();
            }
            for (int step = 1; step <= 100; step++) own.train(step);
            double bytes = 0;
            for (const Communicator* group : groups) bytes += group != nullptr ? group->traffic().total() : 0;
            if (local) {
                double P = 0;
                for (const TensorLayout& tensor : own.stage.storage().tensors()) {
                    P += static_cast<double>(own.stage.storage().padded_elements(tensor, StateKind::optimizer));
                }
                me.require(own.groups.outer->traffic().total() == 8 * P / 2, "a move of ", P, " elements sent ",
                           own.groups.outer->traffic().total(), " bytes");
                // five sums of a step over all ranks: 40 bytes
                me.require(bytes == 8 * P / 2 + 100.0 * step_sums * sizeof(double), bytes, " bytes in all");
            }
            if (me.rank() == 0) sent[local] = bytes;
        });
    }
    if (!ranks_are_threads()) return;
    MESSAGE("together " << sent[false] << " bytes, with local steps " << sent[true]);
    CHECK(sent[false] / sent[true] > 95);   // not 100, for a step's sums count beside a model this small
}

TEST_CASE("local steps: --check-replicas lets replicas differ between moves, and names what must not") {
    if (!ranks_are_threads()) return;
    struct Flip {
        int rank;
        const char* state;   // "": the parameter
        const char* expected;
    };
    for (const Flip flip :
         {Flip{3, "", "ranks 2, 3 should have the same replica_1.parameter ln_f.weight"},
          Flip{1, "m", "ranks 0, 1 should have the same m ln_f.weight"},
          Flip{2, "outer_momentum", "rank 2 has another outer_momentum ln_f.weight than ranks 0, 1, 3"},
          Flip{0, "outer_weights", "rank 0 has another outer_weights ln_f.weight than ranks 1, 2, 3"}}) {
        on_ranks(replicas_of(2, 2), [&](TestRank& me) {
            Trainee own(local_steps(2), me.arena, me.stream, &me.world, 0);
            for (int step = 1; step <= 3; step++) own.train(step);
            auto differs = [&] {
                const ReplicaHashes hashes = replica_hashes(tensors_of(own.step), me.stream);
                me.require(differing_replicas(me.world.gather_text(hashes.groups)).empty() ==
                               differing_replicas(me.world.gather_text(hashes.tensors)).empty(),
                           "groups and tensors tell different things");
                return differing_replicas(me.world.gather_text(hashes.tensors));
            };
            me.require(!all_have(me, own.values()), "replicas are equal between moves");
            const std::string before = differs();
            me.require(before.empty(), before);
            if (me.rank() == flip.rank) {
                const std::string name = flip.state;
                if (name.empty()) {
                    flip_bit(own.stage.parameters().tensor("ln_f.weight"), me.stream);
                } else {
                    flip_bit(own.step.optimizer().state(name).tensor("ln_f.weight"), me.stream);
                }
            }
            const std::string found = differs();
            me.require(found.starts_with(flip.expected), "found: ", found);
        });
    }
}

TEST_CASE("local steps: 2 replicas resumed by 4, and these by 2: whom a checkpoint lacks begins as the first") {
    const SharedFolder folder;
    const std::string pair = folder / "pair", four = folder / "four";
    const std::vector<std::string> states{"", "m", "v", "outer_weights", "outer_momentum"};
    std::vector<std::string> of_two, of_four;   // what each replica saved, of all states
    auto all_states = [&](Trainee& own) {
        std::string all;
        for (const std::string& state : states) all += bits(own.values(state));
        return all;
    };
    on_ranks(replicas_of(2, 1), [&](TestRank& me) {
        Trainee own(local_steps(3), me.arena, me.stream, &me.world);
        for (int step = 1; step <= 4; step++) own.train(step);
        save(me, own, pair, 4);
        const std::vector<std::string> saved = me.world.gather_text(all_states(own));
        me.require(saved[0] != saved[1], "the replicas are equal");
        if (me.rank() == 0) of_two = saved;
    });
    if (!ranks_are_threads()) return;
    on_ranks(replicas_of(4, 1), [&](TestRank& me) {
        Trainee own(local_steps(3), me.arena, me.stream, &me.world);
        own.train(1);   // what is overwritten
        load(own, pair, 4);
        me.require(all_states(own) == of_two[me.rank() == 1 ? 1 : 0], "another state than the saved one");
        own.train(5);
        save(me, own, four, 5);
        const std::vector<std::string> saved = me.world.gather_text(all_states(own));
        me.require(saved[2] != saved[0], "replica 2 learns nothing of its own");
        own.train(6);
        me.require(all_have(me, own.values()), "no move after step 6");
        if (me.rank() == 0) of_four = saved;
    });
    on_ranks(replicas_of(2, 1), [&](TestRank& me) {
        Trainee own(local_steps(3), me.arena, me.stream, &me.world);
        load(own, four, 5);
        me.require(all_states(own) == of_four[static_cast<std::size_t>(me.rank())], "another state than the saved one");
        own.train(6);
        me.require(all_have(me, own.values()), "no move after step 6");
    });
}

TEST_CASE(
    "local steps: new moments leave the weights, and those from which all set out; a run without has no momentum") {
    const SharedFolder folder;
    const std::string apart = folder / "apart", together = folder / "together";
    on_ranks(replicas_of(2, 1), [&](TestRank& me) {
        Trainee own(local_steps(2), me.arena, me.stream, &me.world);
        for (int step = 1; step <= 3; step++) own.train(step);
        save(me, own, apart, 3);
        Trainee other(local_steps(2), me.arena, me.stream, &me.world);
        for (int step = 11; step <= 12; step++) other.train(step);
        me.require(
            !all_zero(other.values("outer_momentum")) && other.values("outer_weights") != own.values("outer_weights"),
            "nothing to overwrite");
        load(other, apart, 3, true);   // --reset-optimizer
        me.require(other.values() == own.values() && other.values("outer_weights") == own.values("outer_weights"),
                   "other weights");
        me.require(other.values() != other.values("outer_weights"), "the weights are those after the move");
        me.require(all_zero(other.values("outer_momentum")), "an old outer momentum");
    });
    on_ranks(2, [&](TestRank& me) {
        Trainee own(local_steps(0), me.arena, me.stream, &me.world);
        own.train(1);
        save(me, own, together, 1);
    });
    on_ranks(replicas_of(2, 1), [&](TestRank& me) {
        Trainee own(local_steps(2), me.arena, me.stream, &me.world);
        for (int step = 1; step <= 3; step++) own.train(step);
        load(own, together, 1);   // as --spike-rewind does
        me.require(all_zero(own.values("outer_momentum")), "an old outer momentum");
        me.require(own.values() == own.values("outer_weights") && all_have(me, own.values()), "other weights");
    });
}

namespace {

struct Compressed {
    OuterCompression how;
    double block_bytes, near;   // of 256 elements; how far a weight may be from that of moves in fp32
};
constexpr Compressed in_8_bits{OuterCompression::int8, 260, 1e-3}, in_2_bits{OuterCompression::int2_, 68, 1e-2};

}   // namespace

TEST_CASE("local steps: moves in 8 or 2 bits keep replicas bit-equal, near those in fp32, with fewer bytes; resumed") {
    auto check = [](const Compressed& compressed, int R) {
        const SharedFolder folder;
        const std::string saved = folder / "saved";
        on_ranks(replicas_of(R, 2), [&](TestRank& me) {
            OptimizerOptions how = local_steps(2);
            Trainee exact(how, me.arena, me.stream, &me.world, 1);
            how.local.compression = compressed.how;
            Trainee own(how, me.arena, me.stream, &me.world, 1), resumed(how, me.arena, me.stream, &me.world, 1);
            auto all_equal = [&](Trainee& of) {   // ranks that own the same part are of other replicas
                const std::vector<std::string> of_all = me.world.gather_text(bits(of.values()));
                for (std::size_t r = 0; r < of_all.size(); r++) {
                    if (of_all[r] != of_all[r % 2]) return false;
                }
                return true;
            };
            Communicator& outer = *own.groups.outer;
            for (int step = 1; step <= 4; step++) {
                outer.reset_traffic();
                exact.train(step);
                const double in_fp32 = outer.traffic().total();
                outer.reset_traffic();
                own.train(step);
                const double in_blocks = outer.traffic().total();
                if (step % 2 == 1) continue;
                me.require(all_equal(own), "step ", step, ": replicas differ after a move");
                const double apart = distance(own.values(), exact.values());
                me.require(apart > 0 && apart < compressed.near, "step ", step, ": a weight is ", apart,
                           " from that in fp32");
                // the pieces of a tensor have as many blocks
                double expected = 0;
                for (const TensorLayout& tensor : own.stage.storage().tensors()) {
                    const double elements =
                        static_cast<double>(own.stage.storage().padded_elements(tensor, StateKind::optimizer));
                    expected += 2 * (R - 1) * std::ceil(std::ceil(elements / 256) / R) * compressed.block_bytes;
                }
                me.require(in_blocks == expected && expected < 0.6 * in_fp32, in_blocks, " bytes, expected ", expected,
                           "; in fp32 ", in_fp32);
            }
            const std::vector<std::string> errors = me.world.gather_text(bits(own.values("outer_error")));
            me.require(!all_zero(own.values("outer_error")) && errors[0] != errors[2], "what was left out is not kept");
            own.train(5);
            save(me, own, saved, 5);
            resumed.train(1);   // what is overwritten
            load(resumed, saved, 5);
            for (int step = 6; step <= 8; step++) own.train(step), resumed.train(step);
            me.require(own.values() == resumed.values() && own.values("outer_error") == resumed.values("outer_error"),
                       "the resumed run goes on otherwise");
        });
    };
    for (const int R : {2, 3}) check(in_8_bits, R), check(in_2_bits, R);
}

// At rate 1 without momentum weights go the mean way of the replicas; what one move leaves out goes along in the next.
TEST_CASE("local steps: compressed, the ways of all replicas arrive, but for what they keep") {
    for (const OuterCompression compression : {OuterCompression::int8, OuterCompression::int2_}) {
        for (const int R : {2, 3}) {
            on_ranks(replicas_of(R, 1), [&](TestRank& me) {
                OptimizerOptions how = local_steps(1, 1, 0);
                how.local.compression = compression;
                Trainee own(how, me.arena, me.stream, &me.world);
                auto sum_of_all = [&](const Floats& values) {
                    std::vector<double> sum(values.size(), 0.0);
                    for (const std::string& of_one : me.world.gather_text(bits(values))) {
                        Floats one(values.size());
                        std::memcpy(one.data(), of_one.data(), of_one.size());
                        for (std::size_t i = 0; i < sum.size(); i++) sum[i] += static_cast<double>(one[i]);
                    }
                    return sum;
                };
                const Floats first = own.values();
                std::vector<bool> is_of_model;   // not a row that pads the vocabulary, which must stay 0
                for (const TensorLayout& tensor : own.stage.storage().tensors()) {
                    const auto exported = own.stage.table()[tensor.param].exported_elements();
                    for (std::int64_t i = 0; i < tensor.elements; i++) is_of_model.push_back(i < exported);
                }
                std::vector<double> ways(first.size(), 0.0);   // of all replicas
                for (int step = 1; step <= 6; step++) {
                    const Floats begin = own.values();
                    Floats weights, way;
                    for (std::size_t i = 0; i < begin.size(); i++) {
                        const std::uint64_t key = mix64(i * 16 + static_cast<std::uint64_t>(step));
                        const float goes = is_of_model[i] ? static_cast<float>(key % 1000) * 1e-4f : 0.0f;
                        weights.push_back(begin[i] - goes * static_cast<float>(me.rank() + 1));
                        way.push_back(begin[i] - weights.back());
                    }
                    own.set_weights(weights);
                    own.gradients(step);
                    own.step.skip_update(step);
                    own.step.result();
                    const std::vector<double> sum = sum_of_all(way);
                    for (std::size_t i = 0; i < ways.size(); i++) ways[i] += sum[i];
                }
                const std::vector<double> kept = sum_of_all(own.values("outer_error"));
                const Floats last = own.values();
                double most = 0, most_kept = 0;
                for (std::size_t i = 0; i < ways.size(); i++) {
                    const double arrived = R * (static_cast<double>(first[i]) - static_cast<double>(last[i]));
                    most = std::max(most, std::abs(arrived + kept[i] - ways[i]));
                    most_kept = std::max(most_kept, std::abs(kept[i]));
                    me.require(is_of_model[i] || last[i] == first[i], "padding ", i, " is ", last[i], ", was ",
                               first[i]);
                }
                me.require(most < 1e-5 && most_kept > 1e-4, "a weight is ", most, " from where all went, of ",
                           most_kept, " that is kept");
            });
        }
    }
}

TEST_CASE("local steps: a run whose moves were in fp32 goes on in 8 bits with nothing left out so far") {
    const SharedFolder folder;
    on_ranks(replicas_of(2, 1), [&](TestRank& me) {
        OptimizerOptions how = local_steps(2);
        Trainee exact(how, me.arena, me.stream, &me.world);
        how.local.compression = OuterCompression::int8;
        Trainee own(how, me.arena, me.stream, &me.world);
        for (int step = 1; step <= 3; step++) exact.train(step), own.train(step);
        me.require(!all_zero(own.values("outer_error")), "nothing to overwrite");
        save(me, exact, folder / "exact", 3);
        load(own, folder / "exact", 3);
        me.require(all_zero(own.values("outer_error")) && own.values() == exact.values(), "another state");
        own.train(4);
        me.require(all_have(me, own.values()), "replicas differ after a move");
    });
}
