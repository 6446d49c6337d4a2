// Lists of all pipelines: complete, without a fault, and as long and as large as docs/parallelism.md says.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "llmc/base/ensure.h"
#include "llmc/base/error.h"
#include "llmc/parallel/schedule.h"
#include "llmc/parallel/schedule_edits_testing.h"
#include "llmc/parallel/schedule_picture.h"

namespace {

using Kind = Action::Kind;

template <class Use>
void for_shapes(Use&& use) {
    for (const PipelineKind kind : {PipelineKind::naive, PipelineKind::gpipe, PipelineKind::one_f_one_b,
                                    PipelineKind::interleaved, PipelineKind::zero_bubble}) {
        for (int p = 2; p <= 16; p++) {
            for (int m = 1; m <= 64; m++) {
                const bool interleaved = kind == PipelineKind::interleaved;
                for (int v = interleaved ? 2 : 1; v <= (interleaved ? 4 : 1); v++) {
                    if (!interleaved || m % p == 0) use(PipelineShape{kind, p, m, v});
                }
            }
        }
    }
}

PipelineCosts same_costs(const PipelineShape& shape, const ActionCosts& costs) {
    return {std::vector<ActionCosts>(static_cast<std::size_t>(shape.stages * shape.chunks), costs), 0};
}

}   // namespace

TEST_CASE("schedule: every list of every pipeline is complete and always ends") {
    int shapes = 0;
    for_shapes([&](const PipelineShape& shape) {
        const std::string fault = fault_in(pipeline_schedules(shape), shape.chunks, shape.micro_batches);
        if (!fault.empty())
            FAIL(static_cast<int>(shape.kind), " ", shape.stages, " ", shape.micro_batches, ": ", fault);
        shapes++;
    });
    CHECK(shapes > 4 * 15 * 64);
    for (int p = 1; p <= 8; p++) {
        for (int v = 1; v <= 3; v++) CHECK(fault_in(forward_schedules(p, v, 5), v, 5, false) == "");
    }
    CHECK(fault_in(pipeline_schedules({PipelineKind::gpipe, 1, 3, 2}), 2, 3) == "");
}

TEST_CASE("schedule: makespans are the design's formulas") {
    for (const ActionCosts& costs : {ActionCosts{1, 1, 1}, ActionCosts{1.5, 2, 1.25}, ActionCosts{1, 1.75, 0.5}}) {
        for_shapes([&](const PipelineShape& shape) {
            const auto& [kind, p, m, v, warmup] = shape;
            const double all = costs.all();
            double expected = 0;
            switch (kind) {
                case PipelineKind::naive: expected = m * p * all; break;
                case PipelineKind::gpipe:
                case PipelineKind::one_f_one_b: expected = (m + p - 1) * all; break;
                case PipelineKind::interleaved: expected = (m * v + p - 1) * all; break;
                case PipelineKind::zero_bubble:
                    if (m < p) return;
                    expected = m * all + (p - 1) * (all - 2 * costs.weight);
                    break;
            }
            const Simulation found = simulate(pipeline_schedules(shape), v, same_costs(shape, costs));
            if (std::abs(found.makespan - expected) > 1e-9) {
                FAIL(static_cast<int>(kind), " p ", p, " m ", m, " v ", v, ": ", found.makespan, ", expected ",
                     expected);
            }
        });
    }
}

TEST_CASE("schedule: peaks of live activations are the design's formulas") {
    for_shapes([&](const PipelineShape& shape) {
        const auto& [kind, p, m, v, warmup] = shape;
        const std::vector<PipelineSchedule> lists = pipeline_schedules(shape);
        for (int i = 0; i < p; i++) {
            const LivePeak found = live_peak(lists[static_cast<std::size_t>(i)]);
            LivePeak expected;
            switch (kind) {
                case PipelineKind::naive: expected = {1, 1}; break;
                case PipelineKind::gpipe: expected = {m, m}; break;
                case PipelineKind::one_f_one_b: expected.to_input = expected.to_weight = std::min(p - i, m); break;
                case PipelineKind::interleaved:
                    expected.to_input = expected.to_weight = std::min(m * v, 2 * (p - i - 1) + (v - 1) * p + 1);
                    break;
                case PipelineKind::zero_bubble: expected = {std::min(p - i, m), std::min(p, m)}; break;
            }
            if (found.to_input != expected.to_input || found.to_weight != expected.to_weight) {
                FAIL(static_cast<int>(kind), " p ", p, " m ", m, " v ", v, " stage ", i, ": ", found.to_input, " ",
                     found.to_weight, ", expected ", expected.to_input, " ", expected.to_weight);
            }
        }
    });
}

TEST_CASE("schedule: a longer warm-up is a sound list that keeps so many sets more") {
    for_shapes([&](const PipelineShape& shape) {
        if (!warms_up(shape.kind) || shape.stages > 8 || shape.micro_batches > 32) return;
        const auto& [kind, p, m, v, none] = shape;
        for (const int n : {1, 2, 5}) {
            PipelineShape longer = shape;
            longer.warmup = n;
            const std::vector<PipelineSchedule> lists = pipeline_schedules(longer);
            const std::string fault = fault_in(lists, v, m);
            if (!fault.empty()) FAIL(name_of(kind), " p ", p, " m ", m, " warm-up ", n, ": ", fault);
            for (int i = 0; i < p; i++) {
                const int further = p - 1 - i, found = live_peak(lists[static_cast<std::size_t>(i)]).to_weight;
                const int expected = kind == PipelineKind::zero_bubble ? p + n * further : (1 + n) * further + 1;
                if (found != std::min(expected, m)) {
                    FAIL(name_of(kind), " p ", p, " m ", m, " warm-up ", n, " stage ", i, ": ", found, ", expected ",
                         expected);
                }
            }
        }
    });
}

// If a link takes t, a micro-batch goes to the next stage and back in 2 t + F + B (B: both parts). In that time a stage
// with a warm-up n does the work of 1 + n others: nothing would be lost if 2 t <= n (F + B), were transfers not
// launched in the order of lists. Without a warm-up each micro-batch loses t.
TEST_CASE("schedule: a longer warm-up hides slow links") {
    constexpr int p = 4, m = 64;
    const double t = 0.75;
    const ActionCosts work{1, 1, 1};
    for (const PipelineKind kind : {PipelineKind::one_f_one_b, PipelineKind::zero_bubble}) {
        auto makespan = [&](int warmup, double transfer) {
            PipelineCosts costs{std::vector<ActionCosts>(p, work), transfer};
            return simulate(pipeline_schedules({kind, p, m, 1, warmup}), 1, costs).makespan;
        };
        const double there_and_back = 2 * (p - 1) * t;   // before the first backward of stage 0
        CHECK(makespan(1, 0) == doctest::Approx(makespan(0, 0)));
        CHECK(makespan(1, t) < makespan(0, t) - m / 4 * t);
        CHECK(makespan(0, t) > makespan(0, 0) + there_and_back + m / 4 * t);
    }
}

TEST_CASE("schedule: what is wrong with a list is said") {
    const PipelineShape shape{PipelineKind::zero_bubble, 2, 3, 1};
    const std::vector<PipelineSchedule> sound = pipeline_schedules(shape);
    auto place = [](PipelineSchedule& list, const Action& action) {
        return std::find(list.begin(), list.end(), action);
    };
    auto fault = [&](auto&& damage) {
        std::vector<PipelineSchedule> lists = sound;
        damage(lists);
        return fault_in(lists, 1, 3);
    };
    CHECK(fault([](auto&) {}) == "");
    CHECK(fault([&](auto& lists) {
              lists[0].erase(place(lists[0], {Kind::forward, 0, 1}));
          }) == "stage 0: sending the output of micro-batch 1, chunk 0 before forward of micro-batch 1, chunk 0");
    CHECK(fault([&](auto& lists) { lists[1].pop_back(); }) ==
          "stage 1: backward of weights of micro-batch 2, chunk 0 is missing");
    CHECK(fault([&](auto& lists) {
              lists[1].push_back({Kind::backward_weight, 0, 2});
          }) == "stage 1: backward of weights of micro-batch 2, chunk 0 twice");
    CHECK(fault([&](auto& lists) {
              lists[1].push_back({Kind::send_output, 0, 2});
          }) == "stage 1: sending the output of micro-batch 2, chunk 0 does not belong there");
    CHECK(
        fault([&](auto& lists) {   // W before B
            std::swap(*place(lists[0], {Kind::backward_weight, 0, 0}), *place(lists[0], {Kind::backward_input, 0, 0}));
        }) ==
        "stage 0: backward of weights of micro-batch 0, chunk 0 before backward of inputs of micro-batch 0, chunk 0");
    CHECK(
        fault([&](auto& lists) {
            std::swap(*place(lists[1], {Kind::backward_weight, 0, 0}), *place(lists[1], {Kind::backward_weight, 0, 1}));
        }).find("out of order") != std::string::npos);
    // two sends swapped, where both have been computed: only the other end shows that
    const PipelineShape all_first{PipelineKind::gpipe, 2, 3, 1};
    std::vector<PipelineSchedule> swapped = pipeline_schedules(all_first);
    PipelineSchedule& first = swapped[0];
    auto later = first.insert(place(first, {Kind::forward, 0, 1}) + 1, *place(first, {Kind::send_output, 0, 0}));
    first.erase(place(first, {Kind::send_output, 0, 0}));
    CHECK(fault_in(swapped, 1, 3) == "");
    later = place(first, {Kind::send_output, 0, 0});
    std::swap(*later, *place(first, {Kind::send_output, 0, 1}));
    CHECK(fault_in(swapped, 1, 3)
              .starts_with("stages wait for each other for ever: stage 0 in sending the output of "
                           "micro-batch 1, chunk 0 for stage 1; stage 1 in receiving the input of "
                           "micro-batch 0, chunk 0 for stage 0"));
}

TEST_CASE("schedule: of random edits of lists some are sound, all others are refused with a reason") {
    ListEdits edits(1);
    int sound = 0, refused = 0;
    for (int i = 0; i < 10000; i++) {
        const PipelineKind kind = i % 4 == 0   ? PipelineKind::zero_bubble
                                  : i % 4 == 1 ? PipelineKind::interleaved
                                  : i % 4 == 2 ? PipelineKind::one_f_one_b
                                               : PipelineKind::gpipe;
        const int p = 2 + i % 3, chunks = kind == PipelineKind::interleaved ? 2 : 1, m = 2 * p;
        const std::vector<PipelineSchedule> lists = edits.edited(pipeline_schedules({kind, p, m, chunks}), m);
        const std::string fault = fault_in(lists, chunks, m);
        if (fault.empty()) {
            sound++;
            PipelineCosts costs;
            costs.pieces.resize(static_cast<std::size_t>(p * chunks));
            simulate(lists, chunks, costs);   // ends
        }
        refused += !fault.empty();
    }
    MESSAGE(sound, " sound, ", refused, " refused");
    CHECK(sound >= 500);
    CHECK(refused >= 5000);
}

TEST_CASE("schedule: a link that takes longer than work delays it, and carries one boundary at a time") {
    // two stages, gpipe, two micro-batches: forward 0..1, 1..2; on the link 1..4 and 4..7
    PipelineCosts costs;
    costs.pieces.resize(2);
    costs.transfer = 3;
    const Simulation found = simulate(pipeline_schedules({PipelineKind::gpipe, 2, 2, 1}), 1, costs);
    CHECK(found.stages[1][0].begin == 4);
    CHECK(found.stages[1][1].begin == 7);
    CHECK(found.stages[1][2].end == 10);
    CHECK(found.stages[0][2].begin == 13);
    CHECK(found.makespan == 18);   // the second one's gradient: 12, on the link 13..16
    CHECK(found.busy == 12);
    CHECK(found.overhead() == doctest::Approx(2));
    CHECK(found.idle_share() == doctest::Approx(2.0 / 3));
}

TEST_CASE("schedule: pictures show every action where it is done") {
    CHECK(schedule_text({PipelineKind::one_f_one_b, 2, 2, 1}) ==
          "1f1b, 2 stages, 2 micro-batches; forward, gradients of inputs and of weights take one unit each\n"
          "stage  0 | F0 F1 .  .  B0 B0 .  B1 B1 \n"
          "stage  1 | .  F0 B0 B0 F1 B1 B1 .  .  \n"
          "makespan 9 units; bubble 50.00% over the ideal, 33.33% of the time\n"
          "sets of activations that the stages keep at most: 2 1\n");
    CHECK(schedule_text({PipelineKind::one_f_one_b, 2, 3, 1, 1}, drawn_costs_from("1,1,0.5,0.5")) ==
          "1f1b, 2 stages, 3 micro-batches, warm-up 1; forward, gradients of inputs and of weights take 1, 1 and 0.5 "
          "units, a link 0.5\n"
          "stage  0 | F0 F0 F1 F1 F2 F2 .  .  .  B0 B0 B0 .  .  B1 B1 B1 .  .  B2 B2 B2 \n"
          "stage  1 | .  .  .  F0 F0 B0 B0 B0 F1 F1 B1 B1 B1 F2 F2 B2 B2 B2 .  .  .  .  \n"
          "makespan 11 units; bubble 46.67% over the ideal, 31.82% of the time\n"
          "sets of activations that the stages keep at most: 3 1; without the longer warm-up: 2 1\n");
    for (const char* wrong : {"", "1,1,1", "1,1,1,0,", "0,1,1,0", "1,1,1,-1", "1,1,1,nan", "a,b,c,d"}) {
        CHECK_THROWS_AS(drawn_costs_from(wrong), Error);
    }
    const std::string svg = schedule_svg({PipelineKind::interleaved, 2, 4, 2});
    CHECK(svg.starts_with("<svg"));
    CHECK(svg.find(">F3b<") != std::string::npos);
    std::size_t boxes = 0;
    for (std::size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) boxes++;
    CHECK(boxes == 2 * 2 * 2 * 4 + 1);   // and the ground
}
