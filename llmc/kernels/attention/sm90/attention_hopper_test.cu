// Attention for sm_90a, on such a device or on the models of its instructions.
#include <algorithm>
#include <array>
#include <vector>

#include "llmc/kernels/attention/attention_kernels.h"
#include "llmc/kernels/attention/attention_testing.h"
#include "llmc/kernels/attention/sm90/attention_hopper_forward.cuh"
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
    check_both<float>(self_attention_shape(1, 200, 3, 64, true, 3), Layout::head_major);
    check_both<bf16>(self_attention_shape(2, 140, 4, 128, true, 4), Layout::packed);
    check_both<bf16>(self_attention_shape(1, 130, 8, 128, true, 8), Layout::spaced);
    check_both<float>(self_attention_shape(1, 70, 16, 64, false, 8), Layout::packed);
    for (auto [q0, k0] : {std::pair{64, 0}, {7, 20}, {0, 70}, {0, 1000}}) {   // some queries see nothing, or all
        for (int HS : {64, 128}) {
            AttentionShape shape = shape_of(1, 2, 140, 300, HS, true, q0, k0);
            shape.group = 2;
            check_both<bf16>(shape, Layout::spaced);
        }
    }
}

namespace {

// Returns (B, T, heads, HS) of `values` (B, T, from / step heads, HS), head h being that of `first + h * step`.
std::vector<double> heads_of(const std::vector<double>& values, int HS, int heads, int from, int first, int step) {
    std::vector<double> result;
    const std::size_t size = static_cast<std::size_t>(HS);
    for (std::size_t row = 0; row < values.size(); row += size * static_cast<std::size_t>(from)) {
        for (int h = 0; h < heads; h++) {
            const auto begin =
                values.begin() + static_cast<std::ptrdiff_t>(row + size * static_cast<std::size_t>(first + h * step));
            result.insert(result.end(), begin, begin + HS);
        }
    }
    return result;
}

// Checks that grouped queries get the bits of kernels without groups: dq those of any head, and dk and dv, where all
// other heads of the group have no gradient, those of the only head that has one.
void check_bits_of_groups(const AttentionShape& grouped) {
    const int HS = grouped.HS, NH = grouped.NH, group = grouped.group, kv_heads = grouped.kv_heads();
    const AttentionInputs inputs = random_inputs<bf16>(grouped);
    const AttentionReference forward = reference_attention(grouped, inputs.q, inputs.k, inputs.v);
    auto run = [](const AttentionShape& shape, const AttentionInputs& in, const AttentionReference& results) {
        return run_backward<bf16, float>(backward_in_own_workspace<float>, shape, Layout::packed, in, results);
    };
    const AttentionReference whole = run(grouped, inputs, forward);
    for (int member = 0; member < group; member++) {
        CAPTURE(member);
        // every head of keys with this head of its group alone
        auto members = [&](const std::vector<double>& of_queries) {
            return heads_of(of_queries, HS, kv_heads, NH, member, group);
        };
        AttentionShape single = grouped;
        single.NH = kv_heads, single.group = 1;
        const AttentionInputs alone = {members(inputs.q), inputs.k, inputs.v, members(inputs.dout)};
        const AttentionReference expected = run(single, alone, reference_attention(single, alone.q, alone.k, alone.v));
        CHECK(members(whole.dq) == expected.dq);
        AttentionInputs others_zero = inputs;
        for (std::size_t i = 0; i < inputs.dout.size(); i++) {
            if (static_cast<int>(i) / HS % NH % group != member) others_zero.dout[i] = 0;
        }
        const AttentionReference found = run(grouped, others_zero, forward);
        CHECK(found.dk == expected.dk);
        CHECK(found.dv == expected.dv);
    }
}

}   // namespace

TEST_CASE("sm90: attention: each head of a group gives the bits of a head alone") {
    if (!on_sm90()) return;
    check_bits_of_groups(self_attention_shape(2, 150, 4, 64, true, 2));
    check_bits_of_groups(self_attention_shape(1, 70, 4, 128, false, 4));
    check_bits_of_groups(self_attention_shape(1, 130, 8, 40, true, 8));
}

TEST_CASE("sm90: attention: keys past the end add nothing where exp(-lse) is infinite") {
    const AttentionShape shape = shape_of(1, 1, 70, 70, 64, false);
    AttentionInputs inputs = random_inputs<bf16>(shape);
    for (std::size_t i = 0; i < inputs.q.size(); i += 64) inputs.q[i] = 120, inputs.k[i] = -10;   // scores about -150
    check_backward<bf16>(shape, Layout::packed, inputs);
}

TEST_CASE("sm90: attention: two runs are bit-identical") {
    if (!on_sm90()) return;
    for (const AttentionShape& shape :
         {shape_of(2, 2, 300, 300, 64, true), self_attention_shape(1, 300, 4, 64, true, 4)}) {
        CAPTURE(shape.group);
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
}

// Blocks wait here for others that start only when some have ended. For a GPU: the models take a minute.
TEST_CASE("sm90: attention: more blocks than multiprocessors: as own attention, and the same bits again" *
          doctest::skip()) {
    if (!on_sm90()) return;
    for (const AttentionShape& shape :
         {shape_of(4, 12, 1024, 1024, 64, true), shape_of(2, 20, 640, 640, 128, false),
          self_attention_shape(4, 1024, 32, 64, true, 4), self_attention_shape(5, 700, 32, 128, true, 4)}) {
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
