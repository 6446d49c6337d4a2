// Backward attention for sm_90a on the models of its instructions: right with all of its steps, and found wrong without
// any one.
#include <algorithm>
#include <optional>
#include <vector>

#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/kernels/attention/attention_hopper_launch.h"
#include "llmc/kernels/attention/attention_test.h"

namespace {

using Step = HopperBackwardStep;
using Tile = HopperBackwardTile<64>;

// The kernel without one step.
struct StepsBut {
    static inline std::optional<Step> left_out;
    static inline int added[Tile::groups];         // threads that have added to dq
    static inline bool passed_too_early = false;   // a group said so before all of it had

    static bool keeps(Step step) {
        const unsigned thread = host::thread_in_block(), group = thread / Tile::group_threads - 1;
        if (step == Step::turn_over) added[group]++;
        if (step == Step::turn_pass && added[group] % Tile::group_threads != 0) passed_too_early = true;
        return step != left_out;
    }
};
struct LeavingOut {
    LeavingOut(std::optional<Step> step, int slow_warp) {
        StepsBut::left_out = step;
        ptx_model::slow_warp = slow_warp;
        std::ranges::fill(StepsBut::added, 0);
        StepsBut::passed_too_early = false;
    }
    ~LeavingOut() {
        StepsBut::left_out.reset();
        ptx_model::slow_warp = -1;
    }
};

void backward_in_steps(const AttentionBackward<bf16, float>& a, cudaStream_t stream) {
    Arena arena;
    const auto workspace = arena.allocate<float>("test/workspace", sm90_attention_workspace(a.shape));
    launch_attention_delta(a, stream);
    launch_hopper_backward<64, StepsBut>(a, workspace.data(), stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
}

// 512 queries are eight tiles: more than the ring holds. The first tile of keys is seen by all of them.
AttentionShape shape_of(int keys) { return {1, 1, 512, keys, 64, 0.125f, true, 0, 0}; }

// What the kernel without `step` does wrong; empty if nothing.
std::string mistake(std::optional<Step> step, int slow_warp, int keys = 256) {
    host::TestDevice device(host::strict_checks());
    const LeavingOut without(step, slow_warp);
    const AttentionShape shape = shape_of(keys);
    const AttentionInputs inputs = random_inputs<bf16>(shape);
    const AttentionReference expected = reference_attention(shape, inputs.q, inputs.k, inputs.v, inputs.dout);
    try {
        const AttentionReference found =
            run_backward<bf16, float>(backward_in_steps, shape, Layout::packed, inputs, expected);
        if (StepsBut::passed_too_early) return "says too early that it has added to dq";
        const double error = std::max({relative_error(found.dq, expected.dq), relative_error(found.dk, expected.dk),
                                       relative_error(found.dv, expected.dv)});
        return error < attention_tolerance<bf16>().gradient ? "" : text("differs by ", error);
    } catch (const Error& error) {
        return device->take_fault();
    }
}

}   // namespace

TEST_CASE("sm90: attention backward: with all of its steps it is right, whichever warp is behind") {
    for (int slow_warp : {-1, 4, 7, 9}) CHECK(mistake({}, slow_warp) == "");
}

TEST_CASE("sm90: attention backward: without any one of its steps it is wrong for certain") {
    for (int step = 0; step < static_cast<int>(Step::count); step++) {
        const auto without = static_cast<Step>(step);
        if (without == Step::turn_wait || without == Step::turn_taken) continue;   // the next test
        CAPTURE(step);
        // threads that begin in another order show it: the stand-in tries that on the first launches of a shape
        const int keys = without == Step::barriers_made ? 384 : 256;
        std::string found = mistake(without, -1, keys);
        if (found.empty()) found = mistake(without, 7);
        CHECK(found != "");
    }
}

namespace {

struct Alone {
    std::string fault;
    bool dq_written = false;
};
// Starts the last of two blocks without the first one, which it has to wait for.
Alone last_block_alone(std::optional<Step> left_out) {
    host::TestDevice device(host::strict_checks());
    const LeavingOut without(left_out, -1);
    const AttentionShape shape = shape_of(256);
    const AttentionInputs inputs = random_inputs<bf16>(shape);
    Alone result;
    auto last_block = [&](const AttentionBackward<bf16, float>& a, cudaStream_t stream) {
        Arena arena;
        const HopperBackwardPlaces<64> places(shape);
        const auto workspace = arena.allocate<float>("test/workspace", places.all());
        workspace.zero(stream);
        const HopperBackwardShared in_memory = places.in(workspace.data());
        const int number = 1;
        CUDA_CHECK(cudaMemcpyAsync(in_memory.numbers, &number, sizeof(int), cudaMemcpyHostToDevice, stream));
        launch_attention_delta(a, stream);
        launch(attention_backward_hopper<float, 64, StepsBut>, Launch(1, Tile::threads, Tile::shared_bytes, stream), a,
               hopper_backward_maps<64>(a), in_memory, 1);
        const bool ended = cudaStreamSynchronize(stream) == cudaSuccess;
        if (!ended) result.fault = device->take_fault();
        std::vector<float> row(static_cast<std::size_t>(shape.HS));   // that sees keys of both blocks
        CUDA_CHECK(
            cudaMemcpy(row.data(), a.dq.data + 191 * a.dq.token, row.size() * sizeof(float), cudaMemcpyDeviceToHost));
        result.dq_written = std::ranges::count(row, GAP) == 0;
        if (!ended) throw Error(ErrorKind::bug, result.fault);
    };
    try {
        run_backward<bf16, float>(last_block, shape, Layout::packed, inputs,
                                  reference_attention(shape, inputs.q, inputs.k, inputs.v, inputs.dout));
    } catch (const Error&) {
    }
    return result;
}

}   // namespace

TEST_CASE("sm90: attention backward: a block adds to dq when those before it have, and all of its threads wait") {
    const Alone whole = last_block_alone({});
    CHECK(whole.fault.find("deadlock") != std::string::npos);
    CHECK(!whole.dq_written);
    const Alone hasty = last_block_alone(Step::turn_wait);
    CHECK(hasty.fault == "");
    CHECK(hasty.dq_written);
    const Alone one_waits = last_block_alone(Step::turn_taken);
    CHECK(one_waits.fault.find("deadlock") != std::string::npos);
    CHECK(one_waits.dq_written);
}
