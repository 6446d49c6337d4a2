#include <type_traits>

#include "llmc/kernels/attention/attention_hopper_launch.h"

namespace {

// Calls run(std::integral_constant<int, D>{}) with the smallest head size D that kernels exist for and that holds HS.
template <class Run>
auto with_padded_head_size(int HS, Run run) {
    if (HS <= 64) return run(std::integral_constant<int, 64>{});
    return run(std::integral_constant<int, 128>{});
}

}   // namespace

template <class O>
void launch_attention_forward_hopper(const AttentionForward<bf16, O>& a, cudaStream_t stream) {
    with_padded_head_size(a.shape.HS, [&](auto head_size) { launch_hopper_forward<head_size()>(a, stream); });
}

std::size_t sm90_attention_workspace(const AttentionShape& shape) {
    if (shape.HS > kLargestHeadSm90) return 0;   // kernels of attention_mma.cuh
    return with_padded_head_size(shape.HS,
                                 [&](auto head_size) { return HopperBackwardPlaces<head_size()>(shape).all(); });
}

template <class G>
void launch_attention_backward_hopper(const AttentionBackward<bf16, G>& a, float* workspace, cudaStream_t stream) {
    with_padded_head_size(a.shape.HS,
                          [&](auto head_size) { launch_hopper_backward<head_size()>(a, workspace, stream); });
}

template void launch_attention_forward_hopper(const AttentionForward<bf16, bf16>&, cudaStream_t);
template void launch_attention_forward_hopper(const AttentionForward<bf16, float>&, cudaStream_t);
template void launch_attention_backward_hopper(const AttentionBackward<bf16, bf16>&, float*, cudaStream_t);
template void launch_attention_backward_hopper(const AttentionBackward<bf16, float>&, float*, cudaStream_t);
