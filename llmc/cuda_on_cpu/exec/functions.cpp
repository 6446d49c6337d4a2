// CUDA's runtime calls that describe a kernel, given its address.
#include <cuda_runtime_api.h>

#include "llmc/cuda_on_cpu/exec/grid.h"
#include "llmc/cuda_on_cpu/queue/device.h"

cudaError_t cudaFuncGetName(const char** name, const void* kernel) {
    if (!name || !kernel) return host::fail(cudaErrorInvalidValue, "no kernel, or no place for its name");
    *name = host::kernel_name(kernel).c_str();
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
    if (!attributes || !kernel) return host::fail(cudaErrorInvalidValue, "no kernel, or no place for its attributes");
    *attributes = {};
    return cudaSuccess;
}

// Allows every kernel as much shared memory as the device allows; refuses more, as CUDA does.
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    if (!kernel || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return host::fail(cudaErrorInvalidValue, "no kernel, or an attribute that the CPU stand-in does not know");
    if (value < 0 || static_cast<std::size_t>(value) > host::most_shared_bytes)
        return host::fail(cudaErrorInvalidValue, "more shared memory than the device has");
    return cudaSuccess;
}
