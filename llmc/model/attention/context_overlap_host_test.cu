// How much of what travels in a ring is hidden behind attention, judged on the stand-in's virtual clock
// (llmc/cuda_on_cpu/clock/record.h): the times are modelled, the order of work is the program's own. What travels takes
// 16 of 132 multiprocessors from the work beside it.
#include <cmath>
#include <string>

#include "llmc/cuda_on_cpu/clock/record.h"
#include "llmc/kernels/init.cuh"
#include "llmc/mesh/context_cut.h"
#include "llmc/model/attention/ring.h"
#include "llmc/process/on_ranks_testing.h"

namespace {

constexpr int N = 4, T = 16, NH = 2, HS = 16;   // sizes on a rank

// Work beside the ring: gradients of weights for the last hop to hide behind, and a mistake.
struct Beside {
    bool weight_gradients = false;
    bool stray_wait = false;   // the host waits for the device before it asks for that work
};

std::vector<host::Recording> record_ring(bool backward, const Beside& beside) {
    std::vector<host::Recording> recordings(N);
    on_ranks(MeshShape{1, 1, N, 1}, [&](TestRank& me) {
        Communicator& group = *me.world.group("cp ring", ContextCut{N, 1, me.rank()}.ring_members());
        const AttentionShape s = self_attention_shape(1, T, NH, HS);
        Ring ring(group, me.arena, me.stream);
        ring.reserve(s);
        const AttentionChoice<floatX> attention(AttentionKind::library, s, me.arena, {.fp32_results = true});
        const auto qkv = me.arena.allocate<floatX>("test/qkv", 3 * T * NH * HS),
                   dqkv = me.arena.allocate<floatX>("test/dqkv", 3 * T * NH * HS),
                   out = me.arena.allocate<floatX>("test/out", T * NH * HS);
        const auto lse = me.arena.allocate<float>("test/lse", T * NH),
                   delta = me.arena.allocate<float>("test/d", T * NH);
        fill_normal(qkv.data(), std::int64_t{3} * T * NH * HS, 1.0f, 1, GlobalSpan{}, me.stream);
        auto part = [&](auto* data, int i) { return packed_heads(data, i, T, NH, HS); };
        const floatX *q = qkv.data(), *y = out.data();
        const AttentionForward<floatX> forward{
            contiguous_heads(out.data(), T, NH, HS), lse.data(), part(q, 0), part(q, 1), part(q, 2), s};
        const auto y_heads = contiguous_heads(y, T, NH, HS);
        const AttentionBackward<floatX> gradients{
            part(dqkv.data(), 0), part(dqkv.data(), 1), part(dqkv.data(), 2), delta.data(), y_heads, y_heads,
            lse.data(),           part(q, 0),           part(q, 1),           part(q, 2),   s};
        ring.forward(attention, forward);
        CUDA_CHECK(cudaDeviceSynchronize());
        recordings[static_cast<std::size_t>(me.rank())] = host::record([&] {
            if (!backward) return ring.forward(attention, forward);
            WeightGradientQueue queue(WeightGradients::behind_collective);
            if (beside.weight_gradients) {
                queue.add({.run = [&] {
                    if (beside.stray_wait) CUDA_CHECK(cudaDeviceSynchronize());
                    fill_normal(qkv.data(), 8, 1.0f, 1, GlobalSpan{}, me.stream);
                }});
            }
            ring.backward(attention, gradients, {}, queue);
        });
        CUDA_CHECK(cudaDeviceSynchronize());
    });
    return recordings;
}

// A call of attention takes `attention` seconds, the work in the queue `weights`, keys and values of a hop `hop`.
struct Times {
    double attention, weights, hop;
    double gradients() const { return hop * 4 / sizeof(floatX); }   // a hop of gradients of keys and values, in fp32
};

double seconds(const std::vector<host::Recording>& recordings, const Times& times) {
    host::CostModel costs;
    costs.seconds_per_exchanged_byte = times.hop / (2.0 * T * NH * HS * sizeof(floatX));
    costs.compute_seconds = [&](const host::RecordedStep& step) {
        if (step.name.starts_with("library attention")) return times.attention;
        return step.name.find("fill_normal") != std::string::npos ? times.weights : 0.0;
    };
    return host::replay(recordings, costs.charged()).seconds;
}

// How long `work` and `travel` take side by side, from one beginning: work loses 16 of 132 multiprocessors meanwhile.
double together(double work, double travel) { return std::max(travel, work + travel * 16 / 132); }

bool within(double found, double expected, double share) { return std::abs(found - expected) <= share * expected; }

}   // namespace

TEST_CASE("ring: a hop costs its multiprocessors, and what it travels longer than is computed beside it") {
    for (double hop : {0.1, 0.5, 0.9, 1.1, 2.0, 5.0}) {   // in units of a call of attention
        CAPTURE(hop);
        const Times times{1.0, 0.7, hop};
        const double g = times.gradients();
        double forward = 0, backward = 0;
        for (int step = 0; step < N; step++) {
            forward += together(1.0, step + 1 < N ? hop : 0.0);
            backward += together(1.0, (step + 1 < N ? hop : 0.0) + (step >= 2 ? g : 0.0));
        }
        CHECK(within(seconds(record_ring(false, {}), times), forward, 0.01));
        CHECK(within(seconds(record_ring(true, {}), times), backward + g, 0.01));
        CHECK(within(seconds(record_ring(true, {true, false}), times), backward + together(0.7, g), 0.01));
    }
}

TEST_CASE("ring: keys and values are copied, added to and rounded at once, and only bytes that are moved count") {
    const double s = T * NH * HS, element = sizeof(floatX), rounded = sizeof(floatX) < 4 ? 1 : 0,
                 rows = 4.0 * T * NH;   // bytes of lse
    struct Kernels {
        double count = 0, bytes = 0;
    };
    auto kernels = [](const host::Recording& recording, const char* name) {
        Kernels found;
        for (const host::RecordedStep& step : recording) {
            if (step.name.find(name) == std::string::npos) continue;
            found.count++, found.bytes += step.work.bytes;
        }
        return found;
    };
    const host::Recording forward = record_ring(false, {})[0], backward = record_ring(true, {})[0];
    const Kernels copies = kernels(forward, "copy_heads"), merges = kernels(forward, "merge_attention"),
                  gradients = kernels(backward, "copy_heads"), attention = kernels(backward, "library attention");
    CHECK(copies.count == 1 + rounded);
    CHECK(copies.bytes == 4 * s * element + rounded * s * (4 + element));
    CHECK(merges.count == N - 1);
    CHECK(merges.bytes == (N - 1) * (s / 2 * 3 * 4 + rows / 2 * 3));
    CHECK(gradients.count == 1 + (N - 1) + (N - 2) + 1 + 2 * rounded);
    CHECK(gradients.bytes == 4 * s * element + (N - 1) * s / 2 * 3 * 4 + (N - 2) * 2 * s * 3 * 4 + 2 * s * 3 * 4 +
                                 rounded * 3 * s * (4 + element));
    CHECK(attention.count == N);
    const double queries = s * (4 + 3 * element) + 2 * rows, keys = s * (8 + 2 * element);
    CHECK(attention.bytes == queries + keys + (N - 1) * (queries / 2 + keys));
}

TEST_CASE("ring: a host that waits while the last hop is under way shows") {
    const Times times{1.0, 0.7, 0.7 * sizeof(floatX) / 4};   // the last hop takes as long as the weights' gradients
    CHECK(seconds(record_ring(true, {true, true}), times) > 1.1 * seconds(record_ring(true, {true, false}), times));
}

namespace {

// How long a hop takes and a block of attention, over `tokens` of each rank: links carry an element of one head's keys
// and values in `per_token` seconds, attention takes as many microseconds as a rank has pairs of tokens.
RingTimes on_the_clock(int tokens, double per_token) {
    std::vector<host::Recording> hops(N), blocks(N);
    on_ranks(MeshShape{1, 1, N, 1}, [&](TestRank& me) {
        const AttentionShape s = self_attention_shape(1, tokens, NH, HS);
        const std::size_t elements = static_cast<std::size_t>(tokens) * NH * HS;
        Ring ring(*me.world.group("cp ring", ContextCut{N, 1, me.rank()}.ring_members()), me.arena, me.stream);
        ring.reserve(s);
        const AttentionChoice<floatX> attention(AttentionKind::library, s, me.arena, {.fp32_results = true});
        const auto qkv = me.arena.allocate<floatX>("test/qkv", 3 * elements),
                   out = me.arena.allocate<floatX>("test/out", elements);
        const auto lse = me.arena.allocate<float>("test/lse", static_cast<std::size_t>(tokens) * NH);
        fill_normal(qkv.data(), static_cast<std::int64_t>(3 * elements), 1.0f, 1, GlobalSpan{}, me.stream);
        auto part = [&](int i) { return packed_heads(static_cast<const floatX*>(qkv.data()), i, tokens, NH, HS); };
        const RingStep step = ring.step(
            attention, {contiguous_heads(out.data(), tokens, NH, HS), lse.data(), part(0), part(1), part(2), s});
        CUDA_CHECK(cudaDeviceSynchronize());
        hops[static_cast<std::size_t>(me.rank())] = host::record(step.hop);
        blocks[static_cast<std::size_t>(me.rank())] = host::record(step.block);
        CUDA_CHECK(cudaDeviceSynchronize());
    });
    host::CostModel costs;
    costs.seconds_per_exchanged_byte = per_token / (2.0 * NH * HS * sizeof(floatX));
    costs.compute_seconds = [&](const host::RecordedStep& step) {
        return step.name.starts_with("library attention") ? 1e-6 * tokens * tokens : 0.0;
    };
    return {host::replay(hops, costs).seconds, host::replay(blocks, costs).seconds};
}

}   // namespace

TEST_CASE("ring: where links are too slow to hide, the length of sequences is said that hides them") {
    constexpr double fast = 15e-6, slow = 52.7e-6;   // a hop of 16 tokens against 256 pairs
    auto doubt = [](int tokens, double per_token) {
        return ring_warning(on_the_clock(tokens, per_token), N * tokens, 2 * N);
    };
    CHECK(doubt(16, fast) == "");
    CHECK(doubt(16, slow) ==
          "a hop of the ring takes 0.843 ms, the block of attention that it is to hide behind 0.256 "
          "ms: --seq-len 216 would hide it");
    CHECK(doubt(216 / N, slow) == "");
    CHECK(doubt(208 / N, slow).find("--seq-len 216") != std::string::npos);
}
