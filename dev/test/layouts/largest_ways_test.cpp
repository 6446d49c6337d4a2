// Local steps whose moves send only the largest ways (--outer-compression topk), against the same made by hand.
#include <doctest/doctest.h>

#include <cstring>

#include "llmc/kernels/optim/topk_chunks.h"
#include "llmc/run/trainee_testing.h"

using namespace trainee_testing;

namespace {

const LocalSteps some{.every = 2, .momentum = 0.95f, .compression = OuterCompression::topk, .topk = 0.05f};

// Returns the values of all replicas, of ranks that own all.
std::vector<Floats> of_all(TestRank& me, const Floats& own) {
    std::vector<Floats> all;
    for (const std::string& of_one : me.world.gather_text(bits(own))) {
        all.emplace_back(own.size());
        std::memcpy(all.back().data(), of_one.data(), of_one.size());
    }
    return all;
}

}   // namespace

TEST_CASE("largest ways: moves of two and of three replicas are those made by hand, and so is what is left out") {
    for (const int R : {2, 3}) {
        on_ranks(replicas_of(R, 1), [&](TestRank& me) {
            Trainee own(options(some), me.arena, me.stream, &me.world);
            std::vector<Floats> errors(static_cast<std::size_t>(R), Floats(own.values().size(), 0.0f));
            std::vector<Floats> weights;
            for (int step = 1; step <= 6; step++) {
                const Floats together = own.values("outer_weights");
                own.gradients(step);
                if (step % 2 == 1) {
                    own.step.update(step, own.how.lr);
                    own.step.result();
                    weights = of_all(me, own.values());
                    continue;
                }
                own.step.skip_update(step);   // moves from the weights of the step before
                own.step.result();
                const Floats moved = own.values();
                std::vector<double> mean(together.size(), 0.0);
                std::size_t first = 0, sent = 0;
                for (const TensorLayout& tensor : own.stage.storage().tensors()) {
                    const auto exported = static_cast<std::size_t>(own.stage.table()[tensor.param].exported_elements());
                    for (std::size_t chunk = 0; chunk < exported; chunk += kTopkChunk) {
                        const std::size_t begin = first + chunk,
                                          count = std::min<std::size_t>(kTopkChunk, exported - chunk);
                        const auto travel = static_cast<std::size_t>(topk_entries(static_cast<int>(count), some.topk));
                        for (int r = 0; r < R; r++) {
                            Floats& error = errors[static_cast<std::size_t>(r)];
                            std::vector<std::size_t> order;
                            for (std::size_t i = begin; i < begin + count; i++) {
                                error[i] = std::fmaf(some.momentum, error[i],
                                                     together[i] - weights[static_cast<std::size_t>(r)][i]);
                                order.push_back(i);
                            }
                            std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
                                return std::abs(error[a]) > std::abs(error[b]);
                            });
                            for (std::size_t e = 0; e < travel; e++) {
                                mean[order[e]] += static_cast<double>(error[order[e]]) / R;
                                error[order[e]] = 0;
                            }
                        }
                        sent += travel;
                    }
                    first += static_cast<std::size_t>(tensor.elements);
                }
                std::vector<double> expected;
                for (std::size_t i = 0; i < together.size(); i++) expected.push_back(together[i] - some.lr * mean[i]);
                const double apart_by = distance(moved, expected);
                me.require(apart_by < 1e-6 && all_have(me, moved), "step ", step, ": a weight is ", apart_by,
                           " from that by hand");
                const Floats& own_error = errors[static_cast<std::size_t>(me.rank())];
                me.require(bits(own.values("outer_error")) == bits(own_error) && !all_zero(own_error), "step ", step,
                           ": something else is left out");
                me.require(sent > 0 && distance(moved, together) > 0, "nothing moves");
            }
        });
    }
}

TEST_CASE("largest ways: all of them, without momentum, are a move in fp32") {
    on_ranks(replicas_of(2, 2), [&](TestRank& me) {
        LocalSteps local{.every = 2, .momentum = 0};
        Trainee exact(options(local), me.arena, me.stream, &me.world, 1);
        local.compression = OuterCompression::topk, local.topk = 1;
        Trainee own(options(local), me.arena, me.stream, &me.world, 1);
        for (int step = 1; step <= 4; step++) exact.train(step), own.train(step);
        const double apart = distance(own.values(), exact.values());
        me.require(apart < 1e-6 && all_zero(own.values("outer_error")), "a weight is ", apart, " away");
    });
}

TEST_CASE("largest ways: 8 bytes each, to every other replica; resumed after every step to the bit") {
    for (const int R : {2, 3}) {
        const SharedFolder folder;
        on_ranks(replicas_of(R, 2), [&](TestRank& me) {
            Trainee own(options(some), me.arena, me.stream, &me.world, 1);
            double entries = 0;
            for (const TensorLayout& tensor : own.stage.storage().tensors()) {
                const std::vector<OwnedRange> ranges =
                    own.stage.storage().exported_ranges(tensor, StateKind::optimizer);
                if (ranges.empty()) continue;
                const std::int64_t count = ranges.back().local_begin + ranges.back().length;
                entries += static_cast<double>(topk_chunks(1, count, some.topk).of_shard());
            }
            for (int step = 1; step <= 6; step++) {
                own.groups.outer->reset_traffic();
                own.train(step);
                const double sent = own.groups.outer->traffic().total(),
                             expected = step % 2 == 0 ? 8 * entries * (R - 1) : 0;
                me.require(sent == expected, "step ", step, " sent ", sent, " bytes, expected ", expected);
                save(me, own, folder / "runs", step);
            }
            Trainee resumed(options(some), me.arena, me.stream, &me.world, 1);
            for (int from = 1; from < 6; from++) {
                load(resumed, folder / "runs", from);
                for (int step = from + 1; step <= 6; step++) resumed.train(step);
                me.require(bits(resumed.values()) == bits(own.values()) &&
                               bits(resumed.values("outer_error")) == bits(own.values("outer_error")),
                           "resumed after step ", from);
            }
        });
    }
}
