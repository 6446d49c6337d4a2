// Lists of all pipelines: complete, without a fault, and as long and as large as DESIGN section 5 says.
#include <doctest/doctest.h>

#include <cmath>

#include "llmc/base/ensure.h"
#include "llmc/parallel/schedule.h"

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
            const auto& [kind, p, m, v] = shape;
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
        const auto& [kind, p, m, v] = shape;
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
