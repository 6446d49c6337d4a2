// Late updates: what is not late is plain training, one step late is --staleness 1, bounds hold, gates shrink.
#include <doctest/doctest.h>

#include "dev/bench/asynchrony/late_moves.h"
#include "dev/bench/asynchrony/parameter_server.h"
#include "llmc/process/on_ranks_testing.h"

namespace {

constexpr int B = 2, T = 16, vocabulary = 61;
const ModelConfig config = custom_model_config(2, 2, 32, T, vocabulary);

Samples samples() {
    auto read = [](std::uint64_t number, const MicroBatch& to) {
        for (std::size_t i = 0; i < to.tokens.size(); i++) {
            const std::uint64_t key = mix64(number * 1024 + i);
            to.tokens[i] = static_cast<std::int32_t>(key % vocabulary);
            to.targets[i] = static_cast<std::int32_t>((key >> 32) % vocabulary);
        }
    };
    return {read, read, 2};
}
float rate(int) { return 1e-3f; }

}   // namespace

TEST_CASE("asynchrony: one worker trains as a plain loop, two of equal speed as --staleness 1, to the bit") {
    on_ranks(1, [&](TestRank& me) {
        const Samples read = samples();
        constexpr int updates = 6;
        for (const int workers : {1, 2}) {
            OptimizerOptions how;
            WorkerModel server(config, B, how, read, 1, me.arena, me.stream);
            how.staleness = workers - 1;
            WorkerModel plain(config, B, how, read, 1, me.arena, me.stream);
            const ServerRun run = train_with_server(server, {.workers = workers, .bound = 1}, updates, rate);
            for (int step = 1; step <= updates + how.staleness; step++) {
                plain.gradients(static_cast<std::uint64_t>(step) - 1);
                plain.update(step, rate(step));
            }
            me.require(server.weights() == plain.weights(), workers, " workers: other weights");
            me.require(server.validation_loss() == plain.validation_loss(), workers, " workers: another loss");
            me.require(std::abs(run.mean_lateness - (workers - 1) * (updates - 1.0) / updates) < 1e-9, workers,
                       " workers: ", run.mean_lateness, " updates late");
        }
    });
}

TEST_CASE("asynchrony: a worker is never more steps ahead than the bound, and a tighter one takes longer") {
    on_ranks(1, [&](TestRank& me) {
        const Samples read = samples();
        std::vector<ServerRun> runs;
        for (const int bound : {0, 2, 1000}) {
            WorkerModel model(config, B, {}, read, 1, me.arena, me.stream);
            runs.push_back(train_with_server(model, {.workers = 4, .bound = bound, .spread = 1}, 80, rate));
            me.require(runs.back().most_ahead <= bound, "bound ", bound, ": ", runs.back().most_ahead, " steps ahead");
        }
        me.require(runs[1].most_ahead == 2 && runs[2].most_ahead > 2, "no worker waits");
        me.require(runs[0].seconds > runs[1].seconds && runs[1].seconds > runs[2].seconds, "times: ", runs[0].seconds,
                   ", ", runs[1].seconds, ", ", runs[2].seconds);
        me.require(std::abs(runs[0].mean_lateness - 1.5) < 1e-9, "in lock step: ", runs[0].mean_lateness, " late");
        me.require(runs[2].mean_lateness > 2 && runs[2].mean_lateness < 3.2, runs[2].mean_lateness, " late");
    });
}

TEST_CASE(
    "asynchrony: moves of one worker at rate 1 are its steps; those of three come late, and a gate shrinks them") {
    on_ranks(1, [&](TestRank& me) {
        const Samples read = samples();
        auto some = [&](int count) {
            std::vector<std::unique_ptr<WorkerModel>> models;
            for (int w = 0; w < count; w++) {
                models.push_back(
                    std::make_unique<WorkerModel>(config, B, OptimizerOptions{}, read, 1, me.arena, me.stream));
            }
            return models;
        };
        auto farthest = [](const std::vector<float>& a, const std::vector<float>& b) {
            double most = 0;
            for (std::size_t i = 0; i < a.size(); i++) {
                most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
            }
            return most;
        };
        auto plain = some(1), one = some(1), gated = some(1);
        for (int step = 1; step <= 6; step++) {
            plain[0]->gradients(static_cast<std::uint64_t>(step) - 1);
            plain[0]->update(step, rate(step));
        }
        const std::vector<float> moved = train_with_late_moves(one, {3, 1, 0, 0}, 2, rate);
        me.require(farthest(moved, plain[0]->weights()) < 1e-6, "another way");
        me.require(train_with_late_moves(gated, {3, 1, 0, 0.5f}, 2, rate) == moved, "a gate for what is not late");

        // three workers, two moves: the second is one late, from where all began
        auto apart = some(2), three = some(3);
        const std::vector<float> begin = apart[0]->weights();
        std::vector<double> expected(begin.begin(), begin.end());
        for (std::size_t w = 0; w < 2; w++) {
            for (int step = 1; step <= 3; step++) {
                apart[w]->gradients(3 * w + static_cast<std::uint64_t>(step) - 1);
                apart[w]->update(step, rate(step));
            }
            const std::vector<float> weights = apart[w]->weights();
            const double share = w == 0 ? 1 : std::exp(-0.7);
            for (std::size_t i = 0; i < begin.size(); i++) {
                expected[i] += share * (static_cast<double>(weights[i]) - static_cast<double>(begin[i]));
            }
        }
        const std::vector<float> late = train_with_late_moves(three, {3, 1, 0, 0.7f}, 2, rate);
        me.require(farthest(late, std::vector<float>(expected.begin(), expected.end())) < 1e-6, "another way of two");
    });
}
