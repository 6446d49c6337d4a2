// For tests: damage of one bit in device memory.
#pragma once

#include "llmc/base/stream.h"

// Flips the lowest bit of a byte of the device, and waits for the stream.
inline void flip_bit(void* at, cudaStream_t stream) {
    char byte = 0;
    CUDA_CHECK(cudaMemcpyAsync(&byte, at, 1, cudaMemcpyDeviceToHost, stream));
    wait_for(stream);
    byte ^= 1;
    CUDA_CHECK(cudaMemcpyAsync(at, &byte, 1, cudaMemcpyHostToDevice, stream));
    wait_for(stream);
}
