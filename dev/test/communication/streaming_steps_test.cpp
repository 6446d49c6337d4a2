// Local steps whose moves are of a fragment of the model at a time, and on their way beside the steps: against single
// processes averaged by hand; what a checkpoint restores; what travels.
#include <doctest/doctest.h>

#include <memory>

#include "llmc/run/stopping/health.h"
#include "llmc/run/trainee_testing.h"

using namespace trainee_testing;

namespace {

const LocalSteps streams[] = {
    {.every = 3, .fragments = 2},
    {.every = 4, .fragments = 3, .delay = 1, .blend = 0.5f},
    {.every = 5, .fragments = 4, .delay = 4},   // three on their way at a time
    {.every = 3, .delay = 2, .blend = 0.25f},
    {.every = 2, .fragments = 2, .blend = 0.75f},   // arrive at once, and are blended
};

// Returns the fragment of each of a rank's weights, in the order of Trainee::values().
std::vector<int> fragments_of(Trainee& own, int fragments) {
    std::vector<int> of_weights;
    for (const TensorLayout& tensor : own.stage.storage().tensors()) {
        const int fragment = own.stage.table()[tensor.param].unit % fragments;
        of_weights.insert(of_weights.end(), static_cast<std::size_t>(tensor.elements), fragment);
    }
    return of_weights;
}

// Whether a fragment leaves after a step.
bool leaves(const LocalSteps& local, int fragment, int step) {
    return step % local.every == (fragment + 1) * local.every / local.fragments % local.every;
}

}   // namespace

TEST_CASE("streaming steps: fragments of two and of three replicas are single processes averaged by hand") {
    constexpr double tolerance = sizeof(floatX) == sizeof(float) ? 2e-5 : 1e-4;
    constexpr int last = 11;
    auto check = [](const LocalSteps& local, int R) {
        on_ranks(replicas_of(R, 1), [&](TestRank& me) {
            Trainee own(options(local), me.arena, me.stream, &me.world);
            own.step.optimizer().ends_after(last);
            std::vector<std::unique_ptr<Trainee>> alone;
            for (int k = 0; k < R; k++) {
                alone.push_back(std::make_unique<Trainee>(options({}), me.arena, me.stream));
            }
            const std::vector<int> fragment_of = fragments_of(own, local.fragments);
            const Floats begin = alone[0]->values();
            REQUIRE(begin.size() == fragment_of.size());
            std::vector<double> together(begin.begin(), begin.end()), m(together.size(), 0.0), sent(together);
            std::vector<int> left(static_cast<std::size_t>(local.fragments), 0);
            for (int step = 1; step <= last; step++) {
                own.train(step);
                std::vector<Floats> weights;
                for (int k = 0; k < R; k++) {
                    Trainee& one = *alone[static_cast<std::size_t>(k)];
                    one.gradients(step, {.rank = k});
                    one.step.update(step, one.how.lr);
                    one.step.result();
                    weights.push_back(one.values());
                }
                for (int f = 0; f < local.fragments; f++) {
                    int& its_left = left[static_cast<std::size_t>(f)];
                    auto for_all = [&](auto&& use) {
                        for (std::size_t i = 0; i < together.size(); i++) {
                            if (fragment_of[i] == f) use(i);
                        }
                    };
                    auto send = [&] {
                        for_all([&](std::size_t i) {
                            sent[i] = 0;
                            for (const Floats& of_one : weights) sent[i] += of_one[i] / static_cast<double>(R);
                        });
                    };
                    auto move = [&](float blend) {
                        for_all([&](std::size_t i) {
                            const double d = together[i] - sent[i];
                            m[i] = local.momentum * m[i] + d;
                            together[i] -= local.lr * (d + local.momentum * m[i]);
                            for (Floats& of_one : weights) {
                                of_one[i] = static_cast<float>(together[i] + blend * (of_one[i] - together[i]));
                            }
                        });
                    };
                    if (step == last) {
                        send(), move(0);
                        continue;
                    }
                    if (its_left > 0 && step == its_left + local.delay) move(local.blend), its_left = 0;
                    if (!leaves(local, f, step)) continue;
                    send(), its_left = step;
                    if (local.delay == 0) move(local.blend), its_left = 0;
                }
                for (int k = 0; k < R; k++) {
                    alone[static_cast<std::size_t>(k)]->set_weights(weights[static_cast<std::size_t>(k)]);
                }
                const double apart = distance(own.values(), weights[static_cast<std::size_t>(own.stage.data_rank())]),
                             begins = distance(own.values("outer_weights"), together);
                me.require(apart < tolerance && begins < tolerance, "step ", step, " of ", local.every, ", ",
                           local.fragments, " fragments: a weight is ", apart, " from that by hand, ", begins,
                           " where all are together");
            }
            me.require(all_have(me, own.values()), "replicas differ after the last step");
        });
    };
    for (const LocalSteps& local : streams) check(local, 2);
    check(streams[1], 3);
}

TEST_CASE("streaming steps: resumed after every step to the bit, whatever is on its way") {
    for (const int zero : {0, 2}) {
        for (const LocalSteps& local : {streams[1], streams[2]}) {
            const SharedFolder folder;
            on_ranks(replicas_of(2, zero > 0 ? 2 : 1), [&](TestRank& me) {
                constexpr int last = 7;
                Trainee whole(options(local), me.arena, me.stream, &me.world, zero);
                for (int step = 1; step <= last; step++) {
                    whole.train(step);
                    save(me, whole, folder / "runs", step);
                }
                Trainee resumed(options(local), me.arena, me.stream, &me.world, zero);
                for (int step = 1; step <= last; step++) resumed.train(step);   // nobody waits for what is on its way
                me.require(bits(resumed.values()) == bits(whole.values()), "a look at the weights changes them");
                for (int from = 1; from < last; from++) {
                    load(resumed, folder / "runs", from);
                    for (int step = from + 1; step <= last; step++) resumed.train(step);
                    for (const char* state : {"", "m", "outer_weights", "outer_momentum", "outer_flight"}) {
                        me.require(bits(resumed.values(state)) == bits(whole.values(state)), "resumed after step ",
                                   from, ": another ", state);
                    }
                }
            });
        }
    }
}

TEST_CASE("streaming steps: what is on its way stays out of a run that deals out other fragments or starts anew") {
    const SharedFolder folder;
    on_ranks(replicas_of(2, 1), [&](TestRank& me) {
        const LocalSteps local = streams[1];   // fragment 0 leaves after 1, fragment 1 after 2 and arrives after 3
        Trainee whole(options(local), me.arena, me.stream, &me.world);
        for (int step = 1; step <= 2; step++) whole.train(step);
        save(me, whole, folder / "two", 2);
        const std::vector<int> left = whole.step.optimizer().flights();
        me.require(left == std::vector<int>{0, 2, 0}, "on their way: ", left[0], ", ", left[1], ", ", left[2]);
        const Floats together = whole.values("outer_weights");
        auto after_step_3 = [&](const LocalSteps& other, bool reset) {
            Trainee own(options(other), me.arena, me.stream, &me.world);
            load(own, folder / "two", 2, reset);
            own.train(3);
            return own.values("outer_weights");
        };
        me.require(after_step_3(local, false) != together, "fragment 1 has not arrived");
        me.require(after_step_3(local, true) == together, "fragment 1 arrives though moments begin anew");
        LocalSteps other = local;
        other.every = 8, other.fragments = 2;
        me.require(after_step_3(other, false) == together, "what left as another fragment arrives");
        other = local, other.every = 3, other.delay = 2;   // 1 leaves after 2 and 5, and would be on its way until 4
        me.require(after_step_3(other, false) == together, "fragment 1 arrives early");
        other.every = 4, other.delay = 3;
        OptimizerOptions how = options(other);
        Trainee own(how, me.arena, me.stream, &me.world);
        load(own, folder / "two", 2);
        own.step.optimizer().restore_flights({0, 1, 0});
        own.gradients(6);
        own.step.skip_update(6);   // its turn comes again
        own.step.result();
        me.require(own.values("outer_weights") != together && own.step.optimizer().flights()[1] == 6,
                   "a fragment leaves again before it has arrived");
        const auto is_restored = [&](const std::vector<int>& flights) {
            return whole.step.optimizer().restore_flights(flights).empty();
        };
        me.require(!is_restored({0, 2}) && is_restored({}) && is_restored({0, 2, 0}), "what can be restored");
    });
}

TEST_CASE("streaming steps: what was left out of a fragment that never arrives is forgotten, and of no other") {
    for (const OuterCompression compression : {OuterCompression::int2_, OuterCompression::topk}) {
        const SharedFolder folder;
        on_ranks(replicas_of(2, 1), [&](TestRank& me) {
            LocalSteps local{.every = 4, .compression = compression, .topk = 0.1f, .fragments = 3, .delay = 2};
            Trainee whole(options(local), me.arena, me.stream, &me.world);
            for (int step = 1; step <= 7; step++) whole.train(step);
            save(me, whole, folder / "seven", 7);   // 0 left after 5 and has arrived, 1 after 6
            const Floats left_out = whole.values("outer_error");
            const std::vector<int> fragment_of = fragments_of(whole, 3);
            auto forgets = [&](Trainee& own) {
                const Floats now = own.values("outer_error");
                std::vector<bool> has(3, false);
                for (std::size_t i = 0; i < now.size(); i++) {
                    if (now[i] != 0) has[static_cast<std::size_t>(fragment_of[i])] = true;
                }
                return has == std::vector<bool>{true, false, true};
            };
            local.delay = 0;
            Trainee at_once(options(local), me.arena, me.stream, &me.world);
            load(at_once, folder / "seven", 7);
            me.require(!all_zero(left_out) && forgets(at_once), "a run without delay keeps, or forgets, other errors");
            me.require(all_have(me, whole.values("outer_flight")), "replicas have other fragments on their way");
            whole.step.optimizer().ends_after(8);
            whole.train(8);
            me.require(all_have(me, whole.values()) && whole.values() == whole.values("outer_weights"),
                       "replicas differ after the last step");
        });
    }
}

TEST_CASE("streaming steps: a fragment's move sends its bytes alone, as many in all, between the steps' sums") {
    on_ranks(replicas_of(2, 1), [&](TestRank& me) {
        for (const LocalSteps& local : {streams[0], streams[1], streams[2]}) {
            Trainee own(options(local), me.arena, me.stream, &me.world);
            std::vector<double> elements(static_cast<std::size_t>(local.fragments), 0.0);
            for (const TensorLayout& tensor : own.stage.storage().tensors()) {
                elements[static_cast<std::size_t>(own.stage.table()[tensor.param].unit % local.fragments)] +=
                    static_cast<double>(own.stage.storage().padded_elements(tensor, StateKind::optimizer));
            }
            for (int step = 1; step <= 2 * local.every; step++) {
                own.groups.outer->reset_traffic();
                own.train(step);
                double expected = 0;   // 8P (R - 1) / R
                for (int f = 0; f < local.fragments; f++) {
                    if (leaves(local, f, step)) expected += 4 * elements[static_cast<std::size_t>(f)];
                }
                const double sent = own.groups.outer->traffic().total();
                me.require(sent == expected, "step ", step, " sent ", sent, " bytes, expected ", expected);
            }
        }
    });
}

TEST_CASE("streaming steps: in 8 or 2 bits replicas find the same, near that in fp32; what is left out is kept") {
    for (const OuterCompression compression : {OuterCompression::int8, OuterCompression::int2_}) {
        const double near = compression == OuterCompression::int8 ? 1e-3 : 1e-2;
        on_ranks(replicas_of(2, 2), [&](TestRank& me) {
            LocalSteps local = streams[1];
            Trainee exact(options(local), me.arena, me.stream, &me.world, 1);
            local.compression = compression;
            Trainee own(options(local), me.arena, me.stream, &me.world, 1);
            for (int step = 1; step <= 8; step++) {
                exact.train(step), own.train(step);
                const ReplicaHashes hashes = replica_hashes(tensors_of(own.step), me.stream);
                const std::string differs = differing_replicas(me.world.gather_text(hashes.tensors));
                me.require(differs.empty(), "step ", step, ": ", differs);
                const double apart = distance(own.values(), exact.values());
                me.require(apart < near && (apart > 0 || step < 2), "step ", step, ": a weight is ", apart,
                           " from that in fp32");
            }
            me.require(!all_zero(own.values("outer_error")), "nothing was left out");
        });
    }
}
