// Attention as chosen, with outputs of the model's precision and of fp32.
#include "llmc/model/attention/attention_choice.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "llmc/base/rng.h"
#include "llmc/base/stream.h"
#include "llmc/model/precision.h"

namespace {

const AttentionShape shape = self_attention_shape(1, 24, 2, 16);

// Outputs and gradients of a kind in fp32 are those in the model's precision before rounding.
void check_widths(AttentionKind kind) {
    const std::size_t count = 24 * 2 * 16;
    OwnedStream stream;
    Arena arena;
    auto random = [&](std::uint64_t key) {
        std::vector<floatX> values(count);
        for (std::size_t i = 0; i < count; i++) values[i] = static_cast<floatX>(normal(key, i));
        auto buffer = arena.allocate<floatX>("test/in", count);
        buffer.upload(values, stream.get());
        return buffer;
    };
    const auto q = random(1), k = random(2), v = random(3), dout = random(4);
    const auto lse = arena.allocate<float>("test/lse", 48), delta = arena.allocate<float>("test/delta", 48);
    auto heads = [&](auto* data) { return contiguous_heads(data, 24, 2, 16); };
    auto input = [&](const DeviceBuffer<floatX>& buffer) { return HeadsView<const floatX>(heads(buffer.data())); };
    auto run = [&]<class O>(const AttentionChoice<floatX>& attention, O) {
        const auto out = arena.allocate<O>("test/out", count);
        const auto dq = arena.allocate<O>("test/dq", count), dk = arena.allocate<O>("test/dk", count),
                   dv = arena.allocate<O>("test/dv", count);
        const AttentionForward<floatX, O> forward{heads(out.data()), lse.data(), input(q), input(k), input(v), shape};
        const AttentionBackward<floatX, O> backward{
            heads(dq.data()), heads(dk.data()), heads(dv.data()), delta.data(), input(dout), input(q),
            lse.data(),       input(q),         input(k),         input(v),     shape};
        attention.prepare(forward, backward);
        attention.forward(forward, stream.get());
        attention.backward(backward, stream.get());
        std::vector<float> all;
        for (const auto& buffer : {out, dq, dk, dv}) {
            for (O value : buffer.download(stream.get())) all.push_back(static_cast<float>(value));
        }
        return all;
    };
    const AttentionChoice<floatX> attention(kind, shape, arena);
    CHECK(attention.chosen() == kind);
    const std::vector<float> narrow = run(attention, floatX{}), wide = run(attention, float{});
    std::size_t rounded = 0;
    for (std::size_t i = 0; i < wide.size(); i++) {
        CHECK(static_cast<float>(static_cast<floatX>(wide[i])) == narrow[i]);
        rounded += wide[i] != narrow[i];
    }
    CHECK((sizeof(floatX) == 4 ? rounded == 0 : rounded > wide.size() / 2));
}

}   // namespace

TEST_CASE("attention choice: outputs and gradients in fp32 are those in the model's precision before rounding") {
    for (AttentionKind kind : {AttentionKind::own, AttentionKind::library}) {
        if (kind == AttentionKind::library && !attention_refusal<floatX, float>(AttentionKind::library, shape).empty())
            continue;
        check_widths(kind);
    }
}

TEST_CASE("attention choice: the kernels for sm_90a are a candidate where they can run, and refused elsewhere") {
    Arena arena;
    const AttentionChoice<floatX> automatic(AttentionKind::auto_, shape, arena);
    const bool serve = sizeof(floatX) == 2 && sm90_attention_refusal().empty();
    const std::vector<AttentionKind> candidates = automatic.candidates(shape);
    CHECK(std::ranges::count(candidates, AttentionKind::own_sm90) == (serve ? 1 : 0));
    CHECK(std::ranges::count(candidates, AttentionKind::own) == 1);
    AttentionChoice<float> fp32(AttentionKind::own, shape, arena);
    CHECK_THROWS_WITH_AS(fp32.take(AttentionKind::own_sm90, shape),
                         doctest::Contains("no own-sm90 attention: it is for bf16"), Error);
    CHECK(fp32.chosen() == AttentionKind::own);
}

TEST_CASE("attention choice: sm_90a's workspace is the most over all shapes, of grouped queries, too") {
    // --seq-len 1024 --seq-len-schedule 1:32, as many tokens: tiles of queries are half empty
    const AttentionShape whole = self_attention_shape(4, 1024, 12, 64), cut = self_attention_shape(128, 32, 12, 64);
    const std::size_t needed = sm90_attention_workspace(cut);
    CHECK(needed > sm90_attention_workspace(whole));
    CHECK(sm90_attention_workspace(whole, {.other_shapes = {cut}}) == needed);
    CHECK(sm90_attention_workspace(cut, {.other_shapes = {whole}}) == needed);
    CHECK(sm90_attention_workspace(whole, {}) == sm90_attention_workspace(whole));
    AttentionShape grouped = whole, grouped_cut = cut;
    grouped.group = grouped_cut.group = 4;
    CHECK(sm90_attention_workspace(grouped, {.other_shapes = {grouped_cut}}) == needed);   // dq of as many heads
}

// They run the kernel: apart from the others, by name (dev/test/gpu_check.sh).
TEST_CASE("sm90: attention choice: outputs in fp32 are those in bf16 before rounding") {
    if (sizeof(floatX) == 4 || !sm90_attention_refusal().empty()) return;
    check_widths(AttentionKind::own_sm90);
}

TEST_CASE("sm90: attention choice: memory for backward only where it will be asked for") {
    if (sizeof(floatX) == 4 || !sm90_attention_refusal().empty()) return;
    Arena with, without;
    const AttentionChoice<floatX> both(AttentionKind::own_sm90, shape, with);
    const AttentionChoice<floatX> forward(AttentionKind::own_sm90, shape, without, {.backward = false});
    AttentionShape longer = shape;
    longer.B = 1000;
    Arena of_both;
    const AttentionChoice<floatX> other(AttentionKind::own_sm90, shape, of_both, {.other_shapes = {longer}});
    CHECK(of_both.bytes() >= sm90_attention_workspace(longer) * sizeof(float));
    CHECK(with.bytes() >= sm90_attention_workspace(shape) * sizeof(float));
    CHECK(without.bytes() == 0);
}

TEST_CASE("sm90: attention choice: taken and left") {
    if (sizeof(floatX) == 4 || !sm90_attention_refusal().empty()) return;
    Arena arena;
    AttentionChoice<floatX> attention(AttentionKind::own, shape, arena);
    attention.take(AttentionKind::own_sm90, shape);
    CHECK(attention.chosen() == AttentionKind::own_sm90);
    // its backward it is that is called: that one looks at the workspace, which is for `shape`
    AttentionShape longer = shape;
    longer.Tq = 1000;
    const HeadsView<floatX> none = contiguous_heads<floatX>(nullptr, 1000, longer.NH, longer.HS);
    const AttentionBackward<floatX> backward{none, none, none, nullptr, none, none, nullptr, none, none, none, longer};
    CHECK_THROWS_WITH_AS(attention.backward(backward, nullptr), doctest::Contains("a workspace of "), Error);
    attention.take(AttentionKind::own, shape);
    CHECK(attention.chosen() == AttentionKind::own);
}
