#include "llmc/kernels/attention/sm80/attention_mma_launch.cuh"

template void launch_attention_forward_mma<bf16, false>(const AttentionForward<bf16, bf16>&, cudaStream_t);
template void launch_attention_forward_mma<float, false>(const AttentionForward<bf16, float>&, cudaStream_t);
template void launch_attention_backward_mma<bf16, false>(const AttentionBackward<bf16, bf16>&, cudaStream_t);
template void launch_attention_backward_mma<float, false>(const AttentionBackward<bf16, float>&, cudaStream_t);
