// Attention for sm_90a, on such a device or on the models of its instructions.
#include <algorithm>
#include <array>
#include <vector>

#include "llmc/kernels/attention/attention_hopper_forward.cuh"
#include "llmc/kernels/attention/attention_kernels.h"
#include "llmc/kernels/attention/attention_testing.h"
#include "llmc/kernels/ptx/on_sm90_testing.h"

namespace {

AttentionShape shape_of(int B, int NH, int Tq, int Tk, int HS, bool causal, std::int64_t q0 = 0, std::int64_t k0 = 0) {
    return {B, NH, Tq, Tk, HS, 1.0f / std::sqrt(static_cast<float>(HS)), causal, q0, k0};
}

template <class O>
void check_forward(const AttentionShape& shape, Layout layout) {
    if (!on_sm90()) return;
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
    const AttentionReference found = run_forward<bf16, O>(launch_attention_forward_hopper<O>, shape, layout, inputs);
    CHECK(relative_error(found.out, expected.out) < attention_tolerance<bf16>().out);
    CHECK(lse_error(found.lse, expected.lse) < attention_tolerance<bf16>().lse);
}

template <class G>
void backward_in_own_workspace(const AttentionBackward<bf16, G>& a, cudaStream_t stream) {
    Arena arena;
    const auto workspace = arena.allocate<float>("test/workspace", sm90_attention_workspace(a.shape));
    sm90_attention_backward(a, {workspace.data(), workspace.size()}, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
}

template <class G>
void check_backward(const AttentionShape& shape, Layout layout, const AttentionInputs& inputs) {
    if (!on_sm90()) return;
    CAPTURE(shape.B);
    CAPTURE(shape.NH);
    CAPTURE(shape.Tq);
    CAPTURE(shape.Tk);
    CAPTURE(shape.HS);
    CAPTURE(shape.causal);
    CAPTURE(shape.q0);
    CAPTURE(shape.k0);
    CAPTURE(static_cast<int>(layout));
    const AttentionReference expected = reference_attention(shape, inputs.q, inputs.k, inputs.v, inputs.dout);
    const AttentionReference found =
        run_backward<bf16, G>(backward_in_own_workspace<G>, shape, layout, inputs, expected);
    const double tolerance = attention_tolerance<bf16>().gradient;
    CHECK(relative_error(found.dq, expected.dq) < tolerance);
    CHECK(relative_error(found.dk, expected.dk) < tolerance);
    CHECK(relative_error(found.dv, expected.dv) < tolerance);
}

template <class O>
void check_both(const AttentionShape& shape, Layout layout) {
    check_forward<O>(shape, layout);
    check_backward<O>(shape, layout, random_inputs<bf16>(shape));
}

}   // namespace

TEST_CASE("sm90: attention: every head size matches double precision") {
    for (int HS : {8, 16, 24, 32, 48, 64, 80, 96, 128}) {
        check_both<bf16>(shape_of(1, 2, 70, 70, HS, true), Layout::packed);
        check_both<float>(shape_of(1, 2, 70, 70, HS, true), Layout::packed);
    }
}

TEST_CASE("sm90: attention: every length matches, whole tiles or not, and more of them than rings hold") {
    for (int tokens : {1, 2, 17, 63, 64, 65, 127, 128, 129, 200, 256, 640, 1024})
        check_both<bf16>(shape_of(1, 1, tokens, tokens, 64, true), Layout::packed);
    for (int tokens : {1, 65, 128, 130, 400})
        check_both<bf16>(shape_of(1, 1, tokens, tokens, 128, true), Layout::packed);
}

TEST_CASE("sm90: attention: full attention, keys and queries of different counts") {
    for (auto [Tq, Tk] : {std::pair{5, 100}, {100, 5}, {64, 96}, {70, 70}, {130, 700}}) {
        check_both<bf16>(shape_of(1, 2, Tq, Tk, 64, false), Layout::head_major);
        check_both<float>(shape_of(1, 1, Tq, Tk, 128, false), Layout::head_major);
    }
}

TEST_CASE("sm90: attention: causal with offsets, including rows that see nothing") {
    const std::int64_t far = std::int64_t{1} << 40;
    for (auto [q0, k0] : {std::pair<std::int64_t, std::int64_t>{64, 0},
                          {0, 10},
                          {7, 3},
                          {0, 70},
                          {0, 1000},
                          {far, far},
                          {far + 30, far + 40}}) {
        check_both<bf16>(shape_of(1, 2, 140, 300, 32, true, q0, k0), Layout::spaced);
        check_both<float>(shape_of(1, 1, 200, 70, 96, true, q0, k0), Layout::spaced);
    }
}

TEST_CASE("sm90: attention: every layout and several batches and heads") {
    for (Layout layout : {Layout::packed, Layout::head_major, Layout::spaced}) {
        check_both<bf16>(shape_of(3, 3, 17, 17, 16, true), layout);
        check_both<bf16>(shape_of(2, 3, 150, 150, 80, true), layout);
        check_both<float>(shape_of(2, 3, 40, 40, 80, true), layout);
    }
}

TEST_CASE("sm90: attention: heads of queries share heads of keys and values") {
    for (int group : {2, 4}) {
        check_both<bf16>(self_attention_shape(2, 150, 4, 64, true, group), Layout::packed);
        check_both<float>(self_attention_shape(1, 70, 4, 128, false, group), Layout::spaced);
    }
}

TEST_CASE("sm90: attention: keys past the end add nothing where exp(-lse) is infinite") {
    const AttentionShape shape = shape_of(1, 1, 70, 70, 64, false);
    AttentionInputs inputs = random_inputs<bf16>(shape);
    for (std::size_t i = 0; i < inputs.q.size(); i += 64) inputs.q[i] = 120, inputs.k[i] = -10;   // scores about -150
    check_backward<bf16>(shape, Layout::packed, inputs);
}

TEST_CASE("sm90: attention: two runs are bit-identical") {
    if (!on_sm90()) return;
    const AttentionShape shape = shape_of(2, 2, 300, 300, 64, true);
    const AttentionInputs inputs = random_inputs<bf16>(shape);
    auto run = [&] {
        return run_forward<bf16, bf16>(launch_attention_forward_hopper<bf16>, shape, Layout::packed, inputs);
    };
    const AttentionReference once = run(), twice = run();
    CHECK(once.out == twice.out);
    CHECK(once.lse == twice.lse);
    const AttentionReference forward = reference_attention(shape, inputs.q, inputs.k, inputs.v);
    auto run_back = [&] {
        return run_backward<bf16, float>(backward_in_own_workspace<float>, shape, Layout::packed, inputs, forward);
    };
    const AttentionReference first = run_back(), second = run_back();
    CHECK(first.dq == second.dq);
    CHECK(first.dk == second.dk);
    CHECK(first.dv == second.dv);
}

// Blocks wait here for others that start only when some have ended. For a GPU: the models take a minute.
TEST_CASE("sm90: attention: more blocks than multiprocessors: as own attention, and the same bits again" *
          doctest::skip()) {
    if (!on_sm90()) return;
    for (const AttentionShape& shape : {shape_of(4, 12, 1024, 1024, 64, true), shape_of(2, 20, 640, 640, 128, false)}) {
        CAPTURE(shape.HS);
        const AttentionInputs inputs = random_inputs<bf16>(shape);
        const AttentionReference forward =
            run_forward<bf16, bf16>(own_attention_forward<bf16, bf16>, shape, Layout::packed, inputs);
        const AttentionReference backward =
            run_backward<bf16, float>(own_attention_backward<bf16, float>, shape, Layout::packed, inputs, forward);
        AttentionReference before;
        for (int time = 0; time < 3; time++) {
            AttentionReference found =
                run_forward<bf16, bf16>(launch_attention_forward_hopper<bf16>, shape, Layout::packed, inputs);
            CHECK(relative_error(found.out, forward.out) < attention_tolerance<bf16>().out);
            CHECK(lse_error(found.lse, forward.lse) < attention_tolerance<bf16>().lse);
            const AttentionReference gradients =
                run_backward<bf16, float>(backward_in_own_workspace<float>, shape, Layout::packed, inputs, forward);
            found.dq = gradients.dq, found.dk = gradients.dk, found.dv = gradients.dv;
            CHECK(relative_error(found.dq, backward.dq) < attention_tolerance<bf16>().gradient);
            CHECK(relative_error(found.dk, backward.dk) < attention_tolerance<bf16>().gradient);
            CHECK(relative_error(found.dv, backward.dv) < attention_tolerance<bf16>().gradient);
            if (time > 0) {
                CHECK(found.out == before.out);
                CHECK(found.lse == before.lse);
                CHECK(found.dq == before.dq);
                CHECK(found.dk == before.dk);
                CHECK(found.dv == before.dv);
            }
            before = found;
        }
    }
}

TEST_CASE("sm90: attention: blocks cover every tile of every head once, the longest first, some heads at a time") {
    for (auto [tiles, heads, together] : {std::array{1, 1, 1}, {8, 12, 5}, {3, 7, 7}, {4, 6, 3}, {5, 3, 1}}) {
        std::vector<int> uses(static_cast<std::size_t>(tiles * heads));
        HopperTile before{tiles, 0};
        for (int block = 0; block < tiles * heads; block++) {
            const HopperTile place = hopper_tile(block, tiles, heads, together);
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
