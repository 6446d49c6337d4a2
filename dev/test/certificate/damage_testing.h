// Damage that the certificate's own tests do to traffic.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>

namespace certificate {

// Doubles elements [first, first + count) of device memory in place, on the stream: x += x. `type` must be fp32 or
// bf16, as gradients, parameters and activations are.
void double_values(void* data, ncclDataType_t type, std::size_t first, std::size_t count, cudaStream_t stream);

}   // namespace certificate
