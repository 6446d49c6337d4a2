// Attention for sm_90a on the models of its instructions: right, and found wrong without any one.
#include <algorithm>
#include <vector>

#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/cuda_on_cpu/ptx/left_out_testing.h"
#include "llmc/cuda_on_cpu/ptx/slow_warp_testing.h"
#include "llmc/kernels/attention/attention_testing.h"
#include "llmc/kernels/attention/sm90/attention_hopper_launch.h"

namespace {

AttentionShape shape_of(int B, int NH, int Tq, int Tk, int HS, bool causal, std::int64_t q0 = 0, std::int64_t k0 = 0) {
    return {B, NH, Tq, Tk, HS, 1.0f / std::sqrt(static_cast<float>(HS)), causal, q0, k0};
}

const char* const source = "attention_hopper_forward.cuh";

// 640 keys are five tiles of 128: more than the rings hold.
struct Problem {
    AttentionShape shape;
    AttentionInputs inputs = random_inputs<bf16>(shape);
    AttentionReference expected = reference_attention(shape, inputs.q, inputs.k, inputs.v);
};

// Returns what the kernel does wrong; empty if nothing.
std::string mistake(int slow_warp, int queries = 256) {
    host::TestDevice device(host::strict_checks());
    const host::SlowWarp slow(slow_warp);
    const Problem problem{shape_of(1, 1, queries, 640, 64, true, 640 - queries)};
    try {
        const auto found =
            run_forward<bf16, bf16>(launch_hopper_forward<64, bf16>, problem.shape, Layout::packed, problem.inputs);
        const double error = relative_error(found.out, problem.expected.out);
        return error < attention_tolerance<bf16>().out ? "" : text("differs by ", error);
    } catch (const Error& error) {
        return device->take_fault();
    }
}

// Calls that can be left out and nothing is wrong.
const std::vector<host::CallSite>& calls_that_do_not_show() {
    static const std::vector<host::CallSite> found = [] {
        std::vector<host::CallSite> result;
        const auto calls = host::calls_in(source, [] { CHECK(mistake(-1) == ""); });
        CHECK(calls.size() > 25);
        for (const host::CallSite& call : calls) {
            // threads that begin in another order show it: the stand-in tries that on the first launches of a shape
            const int queries = call.instruction == "__syncthreads" ? 384 : 256;
            auto shows = [&](int slow_warp, int count) {
                return host::without(call, [&] { return mistake(slow_warp, count); }) != "";
            };
            if (!shows(-1, queries) && !shows(7, 256)) result.push_back(call);
        }
        return result;
    }();
    return found;
}

}   // namespace

TEST_CASE("sm90: attention: it is right, whichever warp is behind") {
    for (int slow_warp : {-1, 4, 7, 9}) CHECK(mistake(slow_warp) == "");
}

TEST_CASE("sm90: attention: without any one of its instructions it is wrong for certain") {
    // but the one that orders groups for speed: the next test
    REQUIRE(calls_that_do_not_show().size() == 1);
    CHECK(calls_that_do_not_show()[0].instruction == "named_barrier_sync");
}

namespace {

// Which group started the batches of one block, in order.
std::vector<int> order_of_batches(int slow_warp) {
    host::TestDevice device(host::parse_checks("memory,poison"));
    const host::SlowWarp slow(slow_warp);
    const AttentionShape shape = shape_of(1, 1, 128, 640, 64, false);
    std::vector<int> log;
    ptx_model::commit_log = &log;
    run_forward<bf16, bf16>(launch_hopper_forward<64, bf16>, shape, Layout::packed, random_inputs<bf16>(shape));
    ptx_model::commit_log = nullptr;
    return log;
}

// Returns true if the groups take turns over five tiles: q k^T of the first, then four times q k^T and p v together.
// The last p v, a group's tenth batch, needs no turn.
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
        CHECK(takes_turns(order_of_batches(slow_warp)));
        CHECK(!takes_turns(host::without(calls_that_do_not_show().at(0), [&] { return order_of_batches(slow_warp); })));
    }
}
