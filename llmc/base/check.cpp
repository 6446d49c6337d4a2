#include "llmc/base/check.h"

void cuda_failed(cudaError_t status, const char* call, const char* file, int line) {
    bool no_device = status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver;
    std::string message =
        text(file, ":", line, ": ", call, " failed: ", cudaGetErrorName(status), ": ", cudaGetErrorString(status));
    if (no_device) {
        throw Error(
            ErrorKind::no_device, message,
            "This build needs an NVIDIA GPU and its driver; `make DEVICE=cpu` builds for machines without one.");
    }
    if (status == cudaErrorMemoryAllocation) {
        throw Error(ErrorKind::no_device, message,
                    std::string("The device has too little free memory. ") + kHowToSaveMemory);
    }
    throw Error(ErrorKind::bug, message);
}

cudaDeviceProp device_properties() {
    int device = 0;
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    return properties;
}
