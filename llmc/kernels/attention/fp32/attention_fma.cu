#include <type_traits>

#include "llmc/kernels/attention/attention_kernels.h"
#include "llmc/kernels/attention/fp32/attention_fma.cuh"

namespace {

// Calls `run` with the head size of the kernels (with_head_size). In bf16 only three sizes exist, because these kernels
// only replace others.
template <class T, class Run>
void with_padded_head_size(int HS, Run run) {
    if constexpr (std::is_same_v<T, float>) {
        with_head_size<32, 64, 96, 128, kLargestHead>(HS, run);
    } else {
        with_head_size<64, 128, kLargestHead>(HS, run);
    }
}

}   // namespace

template <class T, class O>
void launch_attention_forward_fma(const AttentionForward<T, O>& a, cudaStream_t stream) {
    const bool documents = a.shape.documents.first != nullptr;
    with_padded_head_size<T>(a.shape.HS, [&](auto head_size) {
        constexpr int D = head_size();
        dim3 grid(ceil_div(a.shape.Tq, FmaTile<D>::rows), a.shape.NH, a.shape.B);
        launch(documents ? attention_forward_fma<T, O, D, true> : attention_forward_fma<T, O, D>,
               forward_launch(a, grid, FmaTile<D>::threads, FmaTile<D>::forward_bytes, stream), a);
    });
}

template <class T, class G>
void launch_attention_backward_fma(const AttentionBackward<T, G>& a, cudaStream_t stream) {
    const bool documents = a.shape.documents.first != nullptr;
    with_padded_head_size<T>(a.shape.HS, [&](auto head_size) {
        constexpr int D = head_size();
        dim3 query_grid(ceil_div(a.shape.Tq, FmaTile<D>::rows), a.shape.NH, a.shape.B);
        const auto of_queries = a.shape.group > 1 ? documents ? attention_backward_queries_fma<T, G, D, true, true>
                                                              : attention_backward_queries_fma<T, G, D, true>
                                : documents ? attention_backward_queries_fma<T, G, D, false, true>
                                                  : attention_backward_queries_fma<T, G, D, false>;
        launch(of_queries,
               with_queries(backward_launch(a, query_grid, FmaTile<D>::threads, FmaTile<D>::backward_bytes, stream),
                            a.shape, a.dq),
               a);
        dim3 key_grid(ceil_div(a.shape.Tk, FmaTile<D>::rows), a.shape.kv_heads(), a.shape.B);
        launch(documents ? attention_backward_keys_fma<T, G, D, true> : attention_backward_keys_fma<T, G, D>,
               with_keys(backward_launch(a, key_grid, FmaTile<D>::threads, FmaTile<D>::backward_bytes, stream), a.shape,
                         a.dk, a.dv),
               a);
    });
}

template void launch_attention_forward_fma(const AttentionForward<float>&, cudaStream_t);
template void launch_attention_forward_fma(const AttentionForward<bf16>&, cudaStream_t);
template void launch_attention_forward_fma(const AttentionForward<bf16, float>&, cudaStream_t);
template void launch_attention_backward_fma(const AttentionBackward<float>&, cudaStream_t);
template void launch_attention_backward_fma(const AttentionBackward<bf16>&, cudaStream_t);
template void launch_attention_backward_fma(const AttentionBackward<bf16, float>&, cudaStream_t);
