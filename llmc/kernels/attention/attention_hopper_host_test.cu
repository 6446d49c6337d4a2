// Attention for sm_90a on the models of its instructions: right with all of its steps, and found wrong without any one.
#include <algorithm>
#include <optional>
#include <vector>

#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/kernels/attention/attention_hopper_launch.h"
#include "llmc/kernels/attention/attention_test.h"

namespace {

AttentionShape shape_of(int B, int NH, int Tq, int Tk, int HS, bool causal, std::int64_t q0 = 0, std::int64_t k0 = 0) {
    return {B, NH, Tq, Tk, HS, 1.0f / std::sqrt(static_cast<float>(HS)), causal, q0, k0};
}

// The kernel without one step.
struct StepsBut {
    static inline std::optional<HopperStep> left_out;
    static bool keeps(HopperStep step) { return step != left_out; }
};
struct LeavingOut {
    explicit LeavingOut(std::optional<HopperStep> step) { StepsBut::left_out = step; }
    ~LeavingOut() {
        StepsBut::left_out.reset();
        ptx_model::slow_warp = -1;
    }
};

void forward_in_steps(const AttentionForward<bf16>& a, cudaStream_t stream) {
    launch_hopper_forward<64, StepsBut>(a, stream);
}

// 640 keys are five tiles of 128: more than the rings hold.
struct Problem {
    AttentionShape shape;
    AttentionInputs inputs = random_inputs<bf16>(shape);
    AttentionReference expected = reference_attention(shape, inputs.q, inputs.k, inputs.v);
};

// What the kernel without `step` does wrong; empty if nothing.
std::string mistake(std::optional<HopperStep> step, int slow_warp, int queries = 256) {
    host::TestDevice device(host::strict_checks());
    const LeavingOut without(step);
    ptx_model::slow_warp = slow_warp;
    const Problem problem{shape_of(1, 1, queries, 640, 64, true, 640 - queries)};
    try {
        const auto found = run_forward<bf16, bf16>(forward_in_steps, problem.shape, Layout::packed, problem.inputs);
        const double error = relative_error(found.out, problem.expected.out);
        return error < attention_tolerance<bf16>().out ? "" : text("differs by ", error);
    } catch (const Error& error) {
        return device->take_fault();
    }
}

}   // namespace

TEST_CASE("sm90: attention: with all of its steps it is right, whichever warp is behind") {
    for (int slow_warp : {-1, 4, 7, 9}) CHECK(mistake({}, slow_warp) == "");
}

TEST_CASE("sm90: attention: without any one of its waits, fences, barriers and commits it is wrong for certain") {
    for (int step = 0; step < static_cast<int>(HopperStep::count); step++) {
        const auto without = static_cast<HopperStep>(step);
        if (without == HopperStep::turn_wait) continue;   // orders groups for speed: the next test
        CAPTURE(step);
        // threads that begin in another order show it: the stand-in tries that on the first launches of a shape
        const int queries = without == HopperStep::barriers_made ? 384 : 256;
        std::string found = mistake(without, -1, queries);
        if (found.empty()) found = mistake(without, 7);
        CHECK(found != "");
    }
}

namespace {

// Which group started the batches of one block, in order.
std::vector<int> order_of_batches(std::optional<HopperStep> left_out, int slow_warp) {
    host::TestDevice device(host::parse_checks("memory,poison"));
    const LeavingOut without(left_out);
    const AttentionShape shape = shape_of(1, 1, 128, 640, 64, false);
    std::vector<int> log;
    ptx_model::commit_log = &log;
    ptx_model::slow_warp = slow_warp;
    run_forward<bf16, bf16>(forward_in_steps, shape, Layout::packed, random_inputs<bf16>(shape));
    ptx_model::commit_log = nullptr;
    return log;
}

// Of five tiles: q k^T of the first, then four times q k^T and p v together. The last p v, a group's tenth batch, needs
// no turn.
bool takes_turns(const std::vector<int>& log) {
    std::vector<int> expected{1, 2}, found;
    for (int i = 0; i < 4; i++) expected.insert(expected.end(), {1, 1, 2, 2});
    for (int group : log)
        if (std::ranges::count(found, group) < 9) found.push_back(group);
    return log.size() == 20 && found == expected;
}

}   // namespace

TEST_CASE("sm90: attention: the two groups take turns to start products") {
    for (int slow_warp : {-1, 4, 8}) {
        CHECK(takes_turns(order_of_batches({}, slow_warp)));
        CHECK(!takes_turns(order_of_batches(HopperStep::turn_wait, slow_warp)));
    }
}
