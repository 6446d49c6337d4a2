// Who is waited for, of ranks one of which is made slow.
#include "llmc/run/metrics/slowest_rank.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/step/step.h"

TEST_CASE("slowest_rank: the last rank of the slowest replica, and how long the others waited for it") {
    const MeshShape three{1, 3, 1, 1};
    const Waiting second = slowest_rank(three, std::vector<double>{1, 4, 2}, 10);
    CHECK(second.rank == 1);
    CHECK(second.share == doctest::Approx((3 + 2) / 2.0 / 10));
    const MeshShape pairs{1, 2, 1, 2};   // ranks 0 and 1 are a replica
    const Waiting pair = slowest_rank(pairs, std::vector<double>{1, 4, 2, 3}, 10);
    CHECK(pair.rank == 1);
    CHECK(pair.share == doctest::Approx(0.1));
    CHECK(slowest_rank(three, std::vector<double>{2, 2, 2}, 10).share == 0);
    CHECK(slowest_rank(three, std::vector<double>{0, 9, 0}, 3).share == 1);
}

TEST_CASE("slowest_rank: who stays the slowest for 50 steps is named once, with the host") {
    const std::vector<std::string> hosts{"a", "b", "c"};
    SlowestStreak streak;
    auto steps = [&](int count, int rank, double share) {   // the warnings of so many steps
        std::string found;
        for (int i = 0; i < count; i++) found += streak.warning({rank, share}, hosts);
        return found;
    };
    CHECK(steps(49, 1, 0.2).empty());
    CHECK(steps(1, 2, 0.2).empty());   // another one: the count begins anew
    CHECK(steps(49, 1, 0.2).empty());
    CHECK(steps(1, 1, 0.01).empty());   // nobody waited for long
    CHECK(steps(49, 1, 0.1).empty());
    CHECK(
        steps(1, 1, 0.6).starts_with("rank 1 on b was the slowest of all in 50 steps in a row, and the others waited "
                                     "for it for 11.0% of the time: "));
    CHECK(steps(200, 1, 0.2).empty());   // said once
    CHECK(steps(50, 0, 0.05).starts_with("rank 0 on a "));
    CHECK(steps(200, 1, 0.2).empty());
    CHECK(steps(1000, 2, 0.049).empty());
    SlowestStreak alone;
    std::string found;
    for (int i = 0; i < 50; i++) found += alone.warning({3, 0.3}, {});
    CHECK(found.starts_with("rank 3 was the slowest "));
}

namespace {

struct Found {
    int named = 0;       // how often it was `slow`
    double waited = 0;   // for the slowest, seconds of a step, median
};

// Steps of all ranks, of which `slow` needs so much longer to read. The same on every rank.
Found take_steps(TestRank& me, Stage& model, Step& step, int slow, std::chrono::duration<double> pause) {
    SlowestRank slowest(model, &me.all, me.world.mesh(), me.arena);
    auto read = [&](int, const MicroBatch& to) {
        if (me.rank() == slow) std::this_thread::sleep_for(pause);
        std::fill(to.tokens.begin(), to.tokens.end(), 1);
        std::fill(to.targets.begin(), to.targets.end(), 2);
    };
    Found found;
    std::vector<double> waited;
    for (int i = 1; i <= 4; i++) {
        slowest.step_begins();
        step.gradients(one_stage_schedule(1), read, 1.0f / static_cast<float>(model.tokens() * me.ranks()), [&] {
            slowest.passes_end();
            return StopVotes{};
        });
        step.update(i, 1e-3f);
        step.result();
        const std::optional<Waiting> waiting = slowest.step_ended(1);   // so shares are seconds
        me.require(waiting.has_value() == (i > 1), "step ", i);
        if (!waiting) continue;
        found.named += waiting->rank == slow;
        waited.push_back(waiting->share);
    }
    std::ranges::sort(waited);
    found.waited = waited[1];
    return found;
}

}   // namespace

TEST_CASE("slowest_rank: a rank that reads slowly is named under every stage of ZeRO, and none is far off without") {
    constexpr double pause = 0.3;
    for (int zero : {0, 1, 2, 3}) {
        for (int slow : {-1, 1}) {
            CAPTURE(zero);
            CAPTURE(slow);
            on_ranks(2, [&](TestRank& me) {
                StageOptions options;
                options.B = 2, options.T = 16;
                options.place = {me.world.mesh(), me.world.at(), zero};
                Stage model(custom_model_config(2, 2, 32, 16, 61), options, me.arena, me.stream);
                initialize_parameters(model.parameters(), 1, model.stream());
                Step step(model, {}, me.arena, training_groups(me.world));
                Found found;
                for (int attempt = 1; attempt <= 20; attempt++) {   // a busy machine may delay any rank
                    found = take_steps(me, model, step, slow, std::chrono::duration<double>(pause));
                    if (slow < 0 ? found.waited < pause / 3
                                 : found.named == 3 && found.waited > 0.6 * pause && found.waited < 1.5 * pause) {
                        return;
                    }
                }
                me.require(false, "named ", found.named, " times, waited for ", found.waited, " s");
            });
        }
    }
}
