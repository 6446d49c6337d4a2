#include <type_traits>

#include "llmc/kernels/attention_fma.cuh"
#include "llmc/kernels/attention_kernels.h"

namespace {

// Calls run(std::integral_constant<int, D>{}) with the smallest head size D that kernels exist for and that holds HS.
template <class Run>
void with_padded_head_size(int HS, Run run) {
    if (HS <= 32) return run(std::integral_constant<int, 32>{});
    if (HS <= 64) return run(std::integral_constant<int, 64>{});
    if (HS <= 96) return run(std::integral_constant<int, 96>{});
    run(std::integral_constant<int, 128>{});
}

}   // namespace

void launch_attention_forward_fma(const AttentionForward<float>& a, cudaStream_t stream) {
    with_padded_head_size(a.shape.HS, [&](auto head_size) {
        constexpr int D = head_size();
        dim3 grid(ceil_div(a.shape.Tq, FmaTile<D>::rows), a.shape.NH, a.shape.B);
        launch(attention_forward_fma<float, float, D>,
               forward_launch(a, grid, FmaTile<D>::threads, FmaTile<D>::forward_bytes, stream), a);
    });
}

void launch_attention_backward_fma(const AttentionBackward<float>& a, cudaStream_t stream) {
    with_padded_head_size(a.shape.HS, [&](auto head_size) {
        constexpr int D = head_size();
        dim3 query_grid(ceil_div(a.shape.Tq, FmaTile<D>::rows), a.shape.NH, a.shape.B);
        launch(attention_backward_queries_fma<float, float, D>,
               backward_launch(a, query_grid, FmaTile<D>::threads, FmaTile<D>::backward_bytes, stream)
                   .writes(a.dq.data, view_bytes(a.dq, a.shape, a.shape.Tq)),
               a);
        dim3 key_grid(ceil_div(a.shape.Tk, FmaTile<D>::rows), a.shape.NH, a.shape.B);
        launch(attention_backward_keys_fma<float, float, D>,
               backward_launch(a, key_grid, FmaTile<D>::threads, FmaTile<D>::backward_bytes, stream)
                   .writes(a.dk.data, view_bytes(a.dk, a.shape, a.shape.Tk))
                   .writes(a.dv.data, view_bytes(a.dv, a.shape, a.shape.Tk)),
               a);
    });
}
