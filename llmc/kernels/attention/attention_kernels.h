// Own attention's two implementations behind own_attention_forward and own_attention_backward (attention.cu), which
// have checked the arguments and, for backward, computed delta. Each is compiled in a file of its own: there are many
// instances.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "llmc/base/dtype.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/launch.cuh"

// Calls run(std::integral_constant<int, D>{}) with the first of the head sizes, which ascend, that holds HS channels:
// kernels are compiled for these, and channels from HS to D are zero.
template <int D, int... kLarger, class Run>
auto with_head_size(int HS, Run run) {
    if constexpr (sizeof...(kLarger) > 0) {
        if (HS > D) return with_head_size<kLarger...>(HS, run);
    }
    return run(std::integral_constant<int, D>{});
}

// fp32 multiply-adds (attention_fma.cu), for all of attention.h.
template <class T, class O>
void launch_attention_forward_fma(const AttentionForward<T, O>& arguments, cudaStream_t stream);
template <class T, class G>
void launch_attention_backward_fma(const AttentionBackward<T, G>& arguments, cudaStream_t stream);

// Computes delta, which both backward implementations read (attention.cu).
template <class T, class G>
void launch_attention_delta(const AttentionBackward<T, G>& arguments, cudaStream_t stream);

// Tensor cores (attention_mma_launch.cuh), for O, G = bf16 and float. DOCUMENTS: with masks of documents.
template <class O, bool DOCUMENTS = false>
void launch_attention_forward_mma(const AttentionForward<bf16, O>& arguments, cudaStream_t stream);
template <class G, bool DOCUMENTS = false>
void launch_attention_backward_mma(const AttentionBackward<bf16, G>& arguments, cudaStream_t stream);

// sm_90a (attention_hopper.cu), for O, G = bf16 and float. `workspace`: see sm90_attention_backward.
template <class O>
void launch_attention_forward_hopper(const AttentionForward<bf16, O>& arguments, cudaStream_t stream);
template <class G>
void launch_attention_backward_hopper(const AttentionBackward<bf16, G>& arguments, float* workspace,
                                      cudaStream_t stream);

// Declares that a kernel reads a view, or writes one of elements that are not const.
template <class T>
void declare_view(Launch& where, const HeadsView<T>& view, const AttentionShape& s, int tokens, int heads) {
    const std::size_t span = view_span(view, s, tokens, heads), bytes = view_bytes(view, s, tokens, heads);
    if constexpr (std::is_const_v<T>) {
        where.reads(view.data, span, bytes);
    } else {
        where.writes(view.data, span, bytes);
    }
}
// Return the launch with views declared: of queries' shape, and of keys'.
template <class... Views>
Launch with_queries(Launch where, const AttentionShape& shape, const Views&... views) {
    (declare_view(where, views, shape, shape.Tq, shape.NH), ...);
    return where;
}
template <class... Views>
Launch with_keys(Launch where, const AttentionShape& shape, const Views&... views) {
    (declare_view(where, views, shape, shape.Tk, shape.kv_heads()), ...);
    return where;
}
inline std::size_t row_bytes(const AttentionShape& shape) {
    return sizeof(float) * shape.B * static_cast<std::size_t>(shape.NH) * shape.Tq;
}
inline std::size_t first_keys_bytes(const AttentionShape& shape) {
    return sizeof(int) * static_cast<std::size_t>((shape.B - 1) * shape.documents.batch + shape.Tq);
}

// Returns a launch that declares what the mask reads.
inline Launch attention_launch(const AttentionShape& shape, dim3 grid, int threads, int shared_bytes,
                               cudaStream_t stream) {
    Launch where(grid, threads, shared_bytes, stream);
    if (shape.documents.first) where.reads(shape.documents.first, first_keys_bytes(shape));
    return where;
}

template <class T, class O>
Launch forward_launch(const AttentionForward<T, O>& a, dim3 grid, int threads, int shared_bytes, cudaStream_t stream) {
    Launch where = attention_launch(a.shape, grid, threads, shared_bytes, stream).writes(a.lse, row_bytes(a.shape));
    return with_queries(with_keys(where, a.shape, a.k, a.v), a.shape, a.q, a.out);
}

// Returns a launch that declares what both kernels of backward read; each adds what it writes.
template <class T, class G>
Launch backward_launch(const AttentionBackward<T, G>& a, dim3 grid, int threads, int shared_bytes,
                       cudaStream_t stream) {
    Launch where = attention_launch(a.shape, grid, threads, shared_bytes, stream)
                       .reads(a.lse, row_bytes(a.shape))
                       .reads(a.delta, row_bytes(a.shape));
    return with_queries(with_keys(where, a.shape, a.k, a.v), a.shape, a.q, a.dout);
}
