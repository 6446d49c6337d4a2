#include "llmc/base/check.h"

#include "llmc/base/stand_in.h"

std::string how_to_save_memory() {
    std::string how =
        "Lower --micro-batch or --seq-len, give --recompute block or --moments bf16, or shard over more devices with "
        "--zero.";
    const std::uint64_t addresses = own_memory_limits().addresses;
    if (const MemoryLimits* const limits = stand_in() ? &stand_in()->memory_limits() : nullptr) {
        how += text(" The limit that counts is ", limits->tightest().words(), ", of which ",
                    limits->tightest().free >> 20, " MiB were free at the start.");
    } else if (addresses != UINT64_MAX) {
        how += text(" This process is limited to ", addresses >> 20, " MiB of address space (ulimit -v).");
    }
    return how;
}

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
        throw Error(ErrorKind::no_device, message, "The device has too little free memory. " + how_to_save_memory());
    }
    if (status == cudaErrorOperatingSystem) {
        throw Error(ErrorKind::no_device, message,
                    "If no thread can be started: too little memory (ulimit -v), or too many processes (ulimit -u).");
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
