// Causal self-attention, our own and the library's, forward and backward, on packed q, k, v; also with grouped queries.
#include "llmc/model/attention/attention_choice.h"

#include "dev/bench/operand.cuh"
#include "llmc/model/precision.h"

namespace {

struct Sizes {
    int B, NH, T, HS;
    int group = 1;   // heads of q that share one of k and v
    int kv_heads() const { return NH / group; }
};

// Half of the T x T scores count. Forward multiplies twice with them (2 HS flops each), backward five times.
Work work_of(const Sizes& s, bool backward) {
    const double rows = double{1} * s.B * s.T, heads = 2 * s.NH + 2 * s.kv_heads();   // of q, out, k, v
    const double pairs = double{1} * s.B * s.NH * s.T * s.T / 2;
    const double times = backward ? 2 : 1;             // backward their gradients, too
    const double floats_per_head = backward ? 3 : 1;   // lse; and delta, written and read
    return {.bytes = times * heads * rows * s.HS * sizeof(floatX) + 4 * floats_per_head * rows * s.NH,
            .flops = (backward ? 10 : 4) * pairs * s.HS,
            .tokens = rows};
}

const char* whose_is(AttentionKind kind) {
    return kind == AttentionKind::library ? "library attention "
           : kind == AttentionKind::own   ? "own attention "
                                          : "own sm_90a attention ";
}

void measure(Bench& bench, const Sizes& s, AttentionKind kind) {
    const AttentionShape shape = self_attention_shape(s.B, s.T, s.NH, s.HS, true, s.group);
    const std::int64_t n = std::int64_t{s.B} * s.T * s.NH * s.HS, rows = std::int64_t{s.B} * s.T * s.NH,
                       packed = std::int64_t{s.B} * s.T * (s.NH + 2 * s.kv_heads()) * s.HS;
    const std::string where =
        text("B=", s.B, " NH=", s.NH, s.group > 1 ? text(" KV=", s.kv_heads()) : "", " T=", s.T, " HS=", s.HS);
    const std::string whose = whose_is(kind);
    auto part = [&](floatX* qkv, int i) { return packed_heads(qkv, i, s.T, s.NH, s.HS, s.kv_heads()); };
    auto heads = [&](floatX* tensor) { return contiguous_heads(tensor, s.T, s.NH, s.HS); };
    for (bool backward : {false, true}) {
        auto timing = bench.begin({whose + (backward ? "backward" : "forward"), where, work_of(s, backward)});
        if (!timing) continue;
        if (const std::string refusal = attention_refusal<floatX, floatX>(kind, shape); !refusal.empty()) {
            std::printf("%s%s: %s\n", whose.c_str(), where.c_str(), refusal.c_str());
            return;
        }
        Operand<floatX> out(*timing, n), qkv(*timing, packed), dout(*timing, backward ? n : 1),
            dqkv(*timing, backward ? packed : 1);
        Operand<float> lse(*timing, rows), delta(*timing, rows);
        const AttentionChoice<floatX> attention(kind, shape, timing->arena(), {.backward = backward});
        auto forward = [&](int set) {
            const AttentionForward<floatX> args{heads(out[set]),   lse[set],          part(qkv[set], 0),
                                                part(qkv[set], 1), part(qkv[set], 2), shape};
            attention.forward(args, bench.stream());
        };
        if (!backward) {
            timing->measure(forward);
            continue;
        }
        for (int set = 0; set < timing->sets(); set++) forward(set);   // makes `out` and `lse` what backward expects
        timing->measure([&](int set) {
            const AttentionBackward<floatX> args{part(dqkv[set], 0),
                                                 part(dqkv[set], 1),
                                                 part(dqkv[set], 2),
                                                 delta[set],
                                                 heads(dout[set]),
                                                 heads(out[set]),
                                                 lse[set],
                                                 part(qkv[set], 0),
                                                 part(qkv[set], 1),
                                                 part(qkv[set], 2),
                                                 shape};
            attention.backward(args, bench.stream());
        });
    }
}

void run(Bench& bench) {
    std::vector<Sizes> sizes;
    if (bench.on_gpu()) {
        sizes = {{16, 12, 1024, 64}, {16, 32, 1024, 80},   {16, 16, 1024, 96},    {16, 16, 1024, 128},
                 {4, 16, 4096, 128}, {16, 9, 1024, 64, 3}, {16, 32, 1024, 128, 4}};
        if (bench.long_run()) sizes.push_back({1, 16, 16384, 128});
    } else {
        const int T = bench.long_run() ? 1024 : 256;
        sizes = {{1, 4, T, 64}, {1, 4, T, 80}, {1, 4, T, 96}, {1, 4, T, 128}, {1, 9, T, 64, 3}};
    }
    for (const Sizes& s : sizes) {
        measure(bench, s, AttentionKind::own);
        measure(bench, s, AttentionKind::library);
    }
    if (!bench.on_gpu() || !bench.long_run()) return;   // a CPU would time a model of it
    for (const Sizes& s : sizes) measure(bench, s, AttentionKind::own_sm90);
}
const Benchmark registered("attention", run);

}   // namespace
