// Attention for sm_90a on the models of its instructions: right with all of its steps, and found wrong without any one.
#include <algorithm>
#include <optional>
#include <vector>

#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/kernels/attention_hopper_forward.cuh"
#include "llmc/kernels/attention_kernels.h"
#include "llmc/kernels/attention_test.h"
#include "llmc/kernels/launch.cuh"

namespace {

AttentionShape shape_of(int B, int NH, int Tq, int Tk, int HS, bool causal, std::int64_t q0 = 0, std::int64_t k0 = 0) {
    return {B, NH, Tq, Tk, HS, 1.0f / std::sqrt(static_cast<float>(HS)), causal, q0, k0};
}

template <class O>
void check_forward(const AttentionShape& shape, Layout layout) {
    CAPTURE(shape.B);
    CAPTURE(shape.NH);
    CAPTURE(shape.Tq);
    CAPTURE(shape.Tk);
    CAPTURE(shape.HS);
    CAPTURE(shape.causal);
    CAPTURE(shape.q0);
    CAPTURE(shape.k0);
    CAPTURE(static_cast<int>(layout));
    const AttentionInputs inputs = random_inputs<bf16>(shape);
    const AttentionReference expected = reference_attention(shape, inputs.q, inputs.k, inputs.v);
    const AttentionReference found =
        run_forward<bf16, O>(launch_attention_forward_hopper<O>, shape, layout, inputs);
    CHECK(relative_error(found.out, expected.out) < attention_tolerance<bf16>().out);
    CHECK(lse_error(found.lse, expected.lse) < attention_tolerance<bf16>().lse);
}

}   // namespace

TEST_CASE("attention_hopper: every head size matches double precision") {
    for (int HS : {8, 16, 24, 32, 48, 64, 80, 96, 128}) {
        check_forward<bf16>(shape_of(1, 2, 70, 70, HS, true), Layout::packed);
        check_forward<float>(shape_of(1, 2, 70, 70, HS, true), Layout::packed);
    }
}

TEST_CASE("attention_hopper: every length matches, whole tiles or not, and more of them than rings hold") {
    for (int tokens : {1, 2, 17, 63, 64, 65, 127, 128, 129, 200, 256, 640})
        check_forward<bf16>(shape_of(1, 1, tokens, tokens, 64, true), Layout::packed);
    for (int tokens : {1, 65, 128, 130, 400}) check_forward<bf16>(shape_of(1, 1, tokens, tokens, 128, true), Layout::packed);
}

TEST_CASE("attention_hopper: full attention, keys and queries of different counts") {
    for (auto [Tq, Tk] : {std::pair{5, 100}, {100, 5}, {64, 96}, {70, 70}, {130, 700}}) {
        check_forward<bf16>(shape_of(1, 2, Tq, Tk, 64, false), Layout::head_major);
        check_forward<float>(shape_of(1, 1, Tq, Tk, 128, false), Layout::head_major);
    }
}

TEST_CASE("attention_hopper: causal with offsets, including rows that see nothing") {
    const std::int64_t far = std::int64_t{1} << 40;
    for (auto [q0, k0] : {std::pair<std::int64_t, std::int64_t>{64, 0}, {0, 10}, {7, 3}, {0, 70}, {0, 1000}, {far, far},
                          {far + 30, far + 40}}) {
        check_forward<bf16>(shape_of(1, 2, 140, 300, 32, true, q0, k0), Layout::spaced);
        check_forward<float>(shape_of(1, 1, 200, 70, 96, true, q0, k0), Layout::spaced);
    }
}

TEST_CASE("attention_hopper: every layout and several batches and heads") {
    for (Layout layout : {Layout::packed, Layout::head_major, Layout::spaced}) {
        check_forward<bf16>(shape_of(3, 3, 17, 17, 16, true), layout);
        check_forward<bf16>(shape_of(2, 3, 150, 150, 80, true), layout);
        check_forward<float>(shape_of(2, 3, 40, 40, 80, true), layout);
    }
}

TEST_CASE("attention_hopper: two runs are bit-identical") {
    const AttentionShape shape = shape_of(2, 2, 300, 300, 64, true);
    const AttentionInputs inputs = random_inputs<bf16>(shape);
    auto run = [&] { return run_forward<bf16, bf16>(launch_attention_forward_hopper<bf16>, shape, Layout::packed, inputs); };
    const AttentionReference once = run(), twice = run();
    CHECK(once.out == twice.out);
    CHECK(once.lse == twice.lse);
}

TEST_CASE("attention_hopper: blocks cover every tile of every head once, the longest first, some heads at a time") {
    for (auto [tiles, heads, together] : {std::array{1, 1, 1}, {8, 12, 5}, {3, 7, 7}, {4, 6, 3}, {5, 3, 1}}) {
        std::vector<int> uses(static_cast<std::size_t>(tiles * heads));
        HopperPlace before{tiles, 0};
        for (int block = 0; block < tiles * heads; block++) {
            const HopperPlace place = hopper_place(block, tiles, heads, together);
            REQUIRE(place.tile >= 0);
            REQUIRE(place.tile < tiles);
            REQUIRE(place.head >= 0);
            REQUIRE(place.head < heads);
            uses[static_cast<std::size_t>(place.tile * heads + place.head)]++;
            if (place.head / together == before.head / together) CHECK(place.tile <= before.tile);
            CHECK(place.head / together >= before.head / together);
            before = place;
        }
        CHECK(std::ranges::count(uses, 1) == tiles * heads);
    }
}

namespace {

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

TensorMap map_of(const HeadsView<const bf16>& view, const AttentionShape& shape, int tokens, unsigned rows) {
    auto bytes = [](std::int64_t elements) { return static_cast<std::uint64_t>(2 * elements); };
    auto size = [](int count) { return static_cast<std::uint64_t>(count); };
    return make_tensor_map(view.data, {size(shape.HS), size(tokens), size(shape.NH), size(shape.B)},
                           {bytes(view.token), bytes(view.head), bytes(view.batch)}, {rows, 1, 1});
}

void forward_in_steps(const AttentionForward<bf16>& a, cudaStream_t stream) {
    using Tile = HopperForwardTile<64>;
    const AttentionShape& shape = a.shape;
    const HopperForwardMaps maps{map_of(a.q, shape, shape.Tq, Tile::queries), map_of(a.k, shape, shape.Tk, Tile::keys),
                                 map_of(a.v, shape, shape.Tk, Tile::keys),
                                 map_of(a.out, shape, shape.Tq, Tile::group_queries)};
    const unsigned blocks = static_cast<unsigned>(ceil_div(shape.Tq, Tile::queries) * shape.NH * shape.B);
    launch(attention_forward_hopper<bf16, 64, StepsBut>, Launch(blocks, Tile::threads, Tile::shared_bytes, stream), a,
           maps, shape.NH * shape.B);
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

TEST_CASE("attention_hopper: with all of its steps it is right, whichever warp is behind") {
    for (int slow_warp : {-1, 4, 7, 9}) CHECK(mistake({}, slow_warp) == "");
}

TEST_CASE("attention_hopper: without any one of its waits, fences, barriers and commits it is wrong for certain") {
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

TEST_CASE("attention_hopper: the two groups take turns to start products") {
    for (int slow_warp : {-1, 4, 8}) {
        CHECK(takes_turns(order_of_batches({}, slow_warp)));
        CHECK(!takes_turns(order_of_batches(HopperStep::turn_wait, slow_warp)));
    }
}
