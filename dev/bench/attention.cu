// Causal self-attention, our own and the library's, forward and backward, on packed q, k, v; also with grouped queries.
#include "llmc/kernels/attention/attention.h"

#include "dev/bench/operand.cuh"
#include "llmc/kernels/attention/library_attention.h"
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

const char* name_of(AttentionKind kind) {
    return kind == AttentionKind::library ? "library attention "
           : kind == AttentionKind::own   ? "own attention "
                                          : "own sm_90a attention ";
}
std::string refusal_of(AttentionKind kind, const AttentionShape& shape) {
    if (kind == AttentionKind::library) return LibraryAttention::refusal<floatX>(shape);
    if (kind == AttentionKind::own) return "";
    static const std::string sm90 = std::is_same_v<floatX, bf16> ? sm90_attention_refusal() : "for bf16 only";
    return sm90;   // a self-check: once, and only where it is asked for
}
template <class T>
void own_forward(AttentionKind kind, const AttentionForward<T>& args, cudaStream_t stream) {
    if constexpr (std::is_same_v<T, bf16>) {
        if (kind == AttentionKind::own_sm90) return sm90_attention_forward(args, stream);
    }
    own_attention_forward(args, stream);
}

template <class T>
void own_backward(AttentionKind kind, const AttentionBackward<T>& args, const DeviceBuffer<float>& workspace,
                  cudaStream_t stream) {
    if constexpr (std::is_same_v<T, bf16>) {
        if (kind == AttentionKind::own_sm90)
            return sm90_attention_backward(args, {workspace.data(), workspace.size()}, stream);
    }
    own_attention_backward(args, stream);
}

void measure(Bench& bench, const Sizes& s, AttentionKind kind) {
    const AttentionShape shape = self_attention_shape(s.B, s.T, s.NH, s.HS, true, s.group);
    const std::int64_t n = std::int64_t{s.B} * s.T * s.NH * s.HS, rows = std::int64_t{s.B} * s.T * s.NH,
                       packed = std::int64_t{s.B} * s.T * (s.NH + 2 * s.kv_heads()) * s.HS;
    const std::string where =
        text("B=", s.B, " NH=", s.NH, s.group > 1 ? text(" KV=", s.kv_heads()) : "", " T=", s.T, " HS=", s.HS);
    const std::string whose = name_of(kind);
    auto part = [&](floatX* qkv, int i) { return packed_heads(qkv, i, s.T, s.NH, s.HS, s.kv_heads()); };
    auto heads = [&](floatX* tensor) { return contiguous_heads(tensor, s.T, s.NH, s.HS); };
    for (bool backward : {false, true}) {
        auto timing = bench.begin({whose + (backward ? "backward" : "forward"), where, work_of(s, backward)});
        if (!timing) continue;
        if (const std::string refusal = refusal_of(kind, shape); !refusal.empty()) {
            std::printf("%s%s: %s\n", whose.c_str(), where.c_str(), refusal.c_str());
            return;
        }
        Operand<floatX> out(*timing, n), qkv(*timing, packed), dout(*timing, backward ? n : 1),
            dqkv(*timing, backward ? packed : 1);
        Operand<float> lse(*timing, rows), delta(*timing, rows);
        LibraryAttention* library = nullptr;
        std::unique_ptr<LibraryAttention> owner;
        if (kind == AttentionKind::library)
            library = (owner = std::make_unique<LibraryAttention>(timing->arena())).get();
        auto forward = [&](int set) {
            const AttentionForward<floatX> args{heads(out[set]),   lse[set],          part(qkv[set], 0),
                                                part(qkv[set], 1), part(qkv[set], 2), shape};
            if (library) return library_attention_forward(*library, args, bench.stream());
            own_forward(kind, args, bench.stream());
        };
        if (!backward) {
            timing->measure(forward);
            continue;
        }
        DeviceBuffer<float> workspace;
        if (kind == AttentionKind::own_sm90)
            workspace = timing->arena().allocate<float>("bench/workspace", sm90_attention_workspace(shape));
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
            if (library) return library_attention_backward(*library, args, bench.stream());
            own_backward(kind, args, workspace, bench.stream());
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
