// Gradients that are applied a step late (--staleness 1): against a plain loop with two buffers of gradients, what a
// checkpoint restores, and which steps apply nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "llmc/run/stopping/health.h"
#include "llmc/run/trainee_testing.h"

using namespace trainee_testing;

namespace {

OptimizerOptions late(int staleness = 1) {
    OptimizerOptions how = options();
    how.staleness = staleness;
    return how;
}
std::vector<double> wide(const Floats& values) { return {values.begin(), values.end()}; }

// AdamW written down: a step computes gradients with the weights of now, and applies those of the step before.
struct PlainLoop {
    Trainee maker;   // of gradients
    std::vector<double> weights, m, v, before;
    int updates = 0;
    double norm = 0;   // of the gradients that the latest step applied

    PlainLoop(Arena& arena, cudaStream_t stream) : maker(late(0), arena, stream), weights(wide(maker.values())) {
        m.assign(weights.size(), 0), v.assign(weights.size(), 0);
    }
    void train(int number, int ranks) {
        maker.set_weights(Floats(weights.begin(), weights.end()));
        maker.gradients(number, {0, ranks});
        const std::vector<double> fresh = wide(maker.owned(maker.stage.gradients().kept().as<float>()));
        if (!before.empty()) apply(before);
        before = fresh;
    }
    void apply(const std::vector<double>& gradient) {
        const OptimizerOptions& how = maker.how;
        const double b1 = static_cast<double>(how.beta1), b2 = static_cast<double>(how.beta2);
        double squares = 0;
        for (double g : gradient) squares += g * g;
        norm = std::sqrt(squares), updates++;
        const double scale = std::min(1.0, static_cast<double>(how.grad_clip) / norm);
        for (std::size_t i = 0; i < gradient.size(); i++) {
            const double g = scale * gradient[i];
            m[i] = b1 * m[i] + (1 - b1) * g, v[i] = b2 * v[i] + (1 - b2) * g * g;
            const double mean = m[i] / (1 - std::pow(b1, updates)), square = v[i] / (1 - std::pow(b2, updates));
            weights[i] -= static_cast<double>(how.lr) * mean / (std::sqrt(square) + static_cast<double>(how.eps));
        }
    }
};

}   // namespace

TEST_CASE(
    "staleness: each step applies the gradients of the step before, as a plain loop does; the first applies none") {
    constexpr double tolerance = sizeof(floatX) == sizeof(float) ? 1e-6 : 1e-4;
    for (const int ranks : {1, 2}) {
        for (const int zero : {0, 1}) {
            on_ranks(ranks, [&](TestRank& me) {
                Trainee own(late(), me.arena, me.stream, &me.world, zero);
                PlainLoop plain(me.arena, me.stream);
                Trainee in_time(late(0), me.arena, me.stream, &me.world, zero);
                const Floats begin = own.values();
                for (int step = 1; step <= 6; step++) {
                    const StepResult result = own.train(step);
                    in_time.train(step);
                    plain.train(step, ranks);
                    const Floats after = own.values();
                    me.require((after == begin) == (step == 1), "step ", step, " moved: ", after != begin);
                    me.require(std::abs(result.grad_norm - plain.norm) <= 1e-2 * plain.norm, "step ", step, ": norm ",
                               result.grad_norm, " for ", plain.norm);
                    if (zero == 0 || ranks == 1) {
                        const double apart = distance(after, plain.weights);
                        me.require(apart < tolerance, "step ", step, ": a weight is ", apart, " from the plain loop's");
                        const double too_late = distance(in_time.values(), plain.weights);
                        me.require(too_late > 100 * tolerance || step == 1 || tolerance > 1e-5, "step ", step,
                                   ": gradients applied in time come as near: ", too_late);
                    }
                    const std::string differs = differing_replicas(
                        me.world.gather_text(replica_hashes(tensors_of(own.step), me.stream).tensors));
                    me.require(differs.empty(), "step ", step, ": ", differs);
                }
            });
        }
    }
}

TEST_CASE("staleness: a run cut after any step goes on to the bit") {
    for (const int zero : {0, 1}) {
        for (const int ranks : {1, 2}) {
            const SharedFolder folder;
            on_ranks(ranks, [&](TestRank& me) {
                Trainee own(late(), me.arena, me.stream, &me.world, zero);
                for (int step = 1; step <= 5; step++) {
                    own.train(step);
                    save(me, own, folder / "run", step);
                    me.require(!all_zero(own.values(kDelayedGradient)), "no gradients are kept");
                }
                for (int cut = 1; cut <= 4; cut++) {
                    Trainee resumed(late(), me.arena, me.stream, &me.world, zero);
                    resumed.train(1);   // what is overwritten, while it still travels
                    load(resumed, folder / "run", cut);
                    for (int step = cut + 1; step <= 5; step++) resumed.train(step);
                    me.require(resumed.values() == own.values(), "cut after step ", cut, ": other weights");
                    me.require(resumed.values("v") == own.values("v") &&
                                   resumed.values(kDelayedGradient) == own.values(kDelayedGradient),
                               "cut after step ", cut, ": another state");
                }
            });
        }
    }
}

TEST_CASE("staleness: one rank goes on with the gradients that two have kept, under ZeRO 0 and 1") {
    for (const int zero : {0, 1}) {
        const SharedFolder folder;
        Floats of_rank;   // of the first one, which owns all under ZeRO 0
        on_ranks(2, [&](TestRank& me) {
            Trainee own(late(), me.arena, me.stream, &me.world, zero);
            for (int step = 1; step <= 2; step++) own.train(step);
            save(me, own, folder / "two", 2);
            const Floats kept = own.values(kDelayedGradient);
            own.train(3);
            save(me, own, folder / "two", 3);   // whose weights are what one rank must come to
            if (me.rank() == 0) of_rank = kept;
        });
        if (!ranks_are_threads()) return;
        on_ranks(1, [&](TestRank& me) {
            Trainee own(late(), me.arena, me.stream), goal(late(), me.arena, me.stream);
            load(own, folder / "two", 2);
            load(goal, folder / "two", 3);
            const Floats kept = own.values(kDelayedGradient);
            me.require(!all_zero(kept) && (zero == 1 || kept == of_rank), "other gradients than were kept");
            own.gradients(3);   // any: they are not applied
            own.step.update(3, own.how.lr);
            const double apart = distance(own.values(), goal.values());
            me.require(apart < 1e-6, "a weight is ", apart, " from that of two ranks");
        });
    }
}

TEST_CASE("staleness: gradients that are not finite leave out the next step's update, and no other") {
    on_ranks(2, [&](TestRank& me) {
        for (const int zero : {0, 1}) {
            Trainee own(late(), me.arena, me.stream, &me.world, zero);
            for (int step = 1; step <= 6; step++) {
                const Floats before = own.values();
                const StepResult result = own.train(step, {.huge = step == 3});
                const bool moves = step != 1 && step != 4;
                me.require((own.values() != before) == moves, "step ", step, moves ? " applied nothing" : " moved");
                me.require(std::isfinite(result.grad_norm) == (step != 4), "step ", step, ": norm ", result.grad_norm);
            }
        }
    });
}

TEST_CASE("staleness: an update that the host leaves out costs the gradients of one step") {
    on_ranks(2, [&](TestRank& me) {
        Trainee own(late(), me.arena, me.stream, &me.world, 1);
        for (int step = 1; step <= 2; step++) own.train(step);
        const Floats before = own.values(), kept = own.values(kDelayedGradient);
        own.gradients(3);
        own.step.skip_update(3);
        own.step.result();
        me.require(own.values() == before, "a weight moved");
        me.require(own.values(kDelayedGradient) != kept, "the gradients that were left out are still kept");
        own.train(4);
        me.require(own.values() != before, "the next step applied nothing");
    });
}

TEST_CASE("staleness: a run without kept gradients, or with new moments, applies none in its first step") {
    const SharedFolder folder;
    on_ranks(2, [&](TestRank& me) {
        Trainee in_time(late(0), me.arena, me.stream, &me.world), own(late(), me.arena, me.stream, &me.world, 1);
        in_time.train(1);
        own.train(1);
        save(me, in_time, folder / "in time", 1);
        save(me, own, folder / "late", 1);
        for (const bool reset : {false, true}) {
            load(own, folder / (reset ? "late" : "in time"), 1, reset);
            me.require(all_zero(own.values(kDelayedGradient)), "gradients of another run");
            const Floats before = own.values();
            own.train(2);
            me.require(own.values() == before, "a weight moved in the first step");
            own.train(3);
            me.require(own.values() != before, "no weight moved in the second step");
        }
        load(in_time, folder / "late", 1);   // a run in time leaves them out
        in_time.train(2);
    });
}
