// Damage that the certificate's own tests do to traffic.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>

namespace certificate {

// Doubles `count` elements of device memory in place, on the stream: x += x. Returns false, and changes nothing, where
// `type` is neither fp32 nor bf16, which gradients, parameters and activations are.
bool double_values(void* data, ncclDataType_t type, std::size_t count, cudaStream_t stream);

}   // namespace certificate
