// Library attention on a CPU (llmc/cuda_on_cpu/blas/attention.h): operations on the stream. Forward is one task per
// (batch, head, block of queries), backward one per (batch, head of keys and values).

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "llmc/base/check.h"
#include "llmc/cuda_on_cpu/blas/attention.h"
#include "llmc/cuda_on_cpu/blas/attention_workspace.h"
#include "llmc/cuda_on_cpu/exec/thread_pool.h"
#include "llmc/cuda_on_cpu/queue/queue.h"
#include "llmc/kernels/attention/attention_kinds.h"
#include "llmc/kernels/attention/attention_mask.h"
#include "llmc/kernels/attention/library/library_attention.h"

namespace {

// Declares that an operation reads a view, or writes one of elements that are not const.
template <class T>
void add(host::Operation& operation, const HeadsView<T>& view, const AttentionShape& s, int tokens, int heads) {
    operation.accesses.push_back({view.data, view_span(view, s, tokens, heads), !std::is_const_v<T>});
    operation.work.bytes += static_cast<double>(view_bytes(view, s, tokens, heads));
}
template <class... Views>
void add_queries(host::Operation& operation, const AttentionShape& s, const Views&... views) {
    (add(operation, views, s, s.Tq, s.NH), ...);
}
template <class... Views>
void add_keys(host::Operation& operation, const AttentionShape& s, const Views&... views) {
    (add(operation, views, s, s.Tk, s.kv_heads()), ...);
}

void add_rows(host::Operation& operation, const float* data, const AttentionShape& s, bool write) {
    const std::size_t bytes = sizeof(float) * s.B * s.NH * static_cast<std::size_t>(s.Tq);
    operation.accesses.push_back({data, bytes, write});
    operation.work.bytes += static_cast<double>(bytes);
}

void add_mask(host::Operation& operation, const AttentionShape& s) {
    if (!s.documents.first) return;
    const std::int64_t keys = (s.B - 1) * s.documents.batch + s.Tq;
    operation.accesses.push_back({s.documents.first, static_cast<std::size_t>(keys) * sizeof(int), false});
    operation.work.bytes += static_cast<double>(keys) * sizeof(int);
}

// Returns the FLOPs of one of attention's products, over all pairs of a query and a key that it may see. Documents and
// windows count where they come with their number of pairs.
double matmul_flops(const AttentionShape& s) {
    if (s.documents.step_pairs) return 2.0 * s.NH * s.HS * static_cast<double>(*s.documents.step_pairs);
    const AttentionMask mask = attention_mask<false>(s, 0);
    double pairs = 0;
    for (int q = 0; q < s.Tq; q++) pairs += std::max(mask.end(q) - mask.begin(q), 0);
    return 2.0 * s.B * s.NH * s.HS * pairs;
}

void check_shape(const AttentionShape& s) {
    ENSURE(s.B > 0 && s.NH > 0 && s.NH % s.group == 0 && s.Tq > 0 && s.Tk > 0 && s.HS > 0 && s.HS % 8 == 0 &&
               s.HS <= kLargestHead,
           "attention of B=", s.B, " NH=", s.NH, " Tq=", s.Tq, " Tk=", s.Tk, " HS=", s.HS);
}

}   // namespace

std::atomic<std::size_t> host::attention_workspace_bytes = 0, host::attention_workspace_bytes_of_sequence = 0;

struct LibraryAttention::Impl {
    Arena& arena;
    DeviceBuffer<std::uint8_t> workspace;
    void prepare(const AttentionShape& shape) {
        const std::size_t needed = LibraryAttention::workspace_bytes<float, float>(shape);
        if (workspace.bytes() >= needed) return;
        workspace = {};
        workspace = arena.allocate<std::uint8_t>("workspace/attention", needed);
    }
};

LibraryAttention::LibraryAttention(Arena& arena) : impl_(std::make_unique<Impl>(Impl{arena, {}})) {}
LibraryAttention::~LibraryAttention() = default;

const AttentionLimits& LibraryAttention::limits() {
    static const AttentionLimits onednn{};
    return onednn;
}

template <class T, class G>
std::string LibraryAttention::refusal(const AttentionShape&, bool) {
    return "";
}

template <class T, class G>
std::size_t LibraryAttention::workspace_bytes(const AttentionShape& shape, bool) {
    return host::attention_workspace_bytes +
           static_cast<std::size_t>(shape.B) * host::attention_workspace_bytes_of_sequence;
}

template <class T, class O>
void LibraryAttention::prepare(const AttentionForward<T, O>& a) {
    check_shape(a.shape);
    impl_->prepare(a.shape);
}
template <class T, class G>
void LibraryAttention::prepare(const AttentionBackward<T, G>& a) {
    check_shape(a.shape);
    impl_->prepare(a.shape);
}

template <class T, class O>
void LibraryAttention::forward(const AttentionForward<T, O>& a, cudaStream_t stream) {
    const AttentionShape& s = a.shape;
    prepare(a);
    host::Operation operation;
    operation.name = "library attention forward";
    operation.work.flops = 2 * matmul_flops(s);
    add_queries(operation, s, a.out, a.q);
    add_keys(operation, s, a.k, a.v);
    add_rows(operation, a.lse, s, true);
    add_mask(operation, s);
    operation.step = [a] {
        const int blocks = (a.shape.Tq + host::attention::query_block - 1) / host::attention::query_block;
        host::parallel_for(
            std::int64_t{a.shape.B} * a.shape.NH * blocks,
            [&](std::int64_t task) {
                std::int64_t head = task / blocks;
                // Longest first: with a causal mask the last queries see the most keys
                int block = blocks - 1 - static_cast<int>(task % blocks);
                const int b = static_cast<int>(head / a.shape.NH);
                host::attention::forward_block(a, attention_mask<true>(a.shape, b), b,
                                               static_cast<int>(head % a.shape.NH), block);
            },
            1);
        return true;
    };
    CUDA_CHECK(host::enqueue(stream, std::move(operation)));
}

template <class T, class G>
void LibraryAttention::backward(const AttentionBackward<T, G>& a, cudaStream_t stream) {
    const AttentionShape& s = a.shape;
    prepare(a);
    host::Operation operation;
    operation.name = "library attention backward";
    operation.work.flops = 5 * matmul_flops(s);
    add_queries(operation, s, a.dq, a.dout, a.out, a.q);
    add_keys(operation, s, a.dk, a.dv, a.k, a.v);
    add_rows(operation, a.delta, s, true);
    add_rows(operation, a.lse, s, false);
    add_mask(operation, s);
    operation.step = [a] {
        host::parallel_for(
            std::int64_t{a.shape.B} * a.shape.kv_heads(),
            [&](std::int64_t head) {
                const int b = static_cast<int>(head / a.shape.kv_heads());
                host::attention::backward_kv_head(a, attention_mask<true>(a.shape, b), b,
                                                  static_cast<int>(head % a.shape.kv_heads()));
            },
            1);
        return true;
    };
    CUDA_CHECK(host::enqueue(stream, std::move(operation)));
}

#define INSTANTIATE(T, G)                                                                       \
    template std::string LibraryAttention::refusal<T, G>(const AttentionShape&, bool);          \
    template std::size_t LibraryAttention::workspace_bytes<T, G>(const AttentionShape&, bool);  \
    template void LibraryAttention::prepare<T, G>(const AttentionForward<T, G>&);               \
    template void LibraryAttention::prepare<T, G>(const AttentionBackward<T, G>&);              \
    template void LibraryAttention::forward<T, G>(const AttentionForward<T, G>&, cudaStream_t); \
    template void LibraryAttention::backward<T, G>(const AttentionBackward<T, G>&, cudaStream_t);
INSTANTIATE(float, float)
INSTANTIATE(bf16, bf16)
INSTANTIATE(bf16, float)
