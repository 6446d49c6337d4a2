#include "llmc/kernels/attention/sm90/attention_hopper_launch.h"

// Calls `run` with the head size of the kernels (with_head_size).
template <class Run>
static auto with_hopper_head_size(int HS, Run run) {
    return with_head_size<64, 128>(HS, run);
}

template <class O>
void launch_attention_forward_hopper(const AttentionForward<bf16, O>& a, cudaStream_t stream) {
    with_hopper_head_size(a.shape.HS, [&](auto head_size) { launch_hopper_forward<head_size()>(a, stream); });
}

std::size_t sm90_attention_workspace(const AttentionShape& shape) {
    return with_hopper_head_size(shape.HS,
                                 [&](auto head_size) { return HopperBackwardPlaces<head_size()>(shape).all(); });
}

template <class G>
void launch_attention_backward_hopper(const AttentionBackward<bf16, G>& a, float* workspace, cudaStream_t stream) {
    with_hopper_head_size(a.shape.HS,
                          [&](auto head_size) { launch_hopper_backward<head_size()>(a, workspace, stream); });
}

template void launch_attention_forward_hopper(const AttentionForward<bf16, bf16>&, cudaStream_t);
template void launch_attention_forward_hopper(const AttentionForward<bf16, float>&, cudaStream_t);
template void launch_attention_backward_hopper(const AttentionBackward<bf16, bf16>&, float*, cudaStream_t);
template void launch_attention_backward_hopper(const AttentionBackward<bf16, float>&, float*, cudaStream_t);
