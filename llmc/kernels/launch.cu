#include "llmc/kernels/launch.cuh"

#include <cxxabi.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "llmc/base/check.h"
#include "llmc/kernels/operation_timer.h"

#if !defined(HOST_EXECUTION_MODEL) && CUDART_VERSION < 12080
#error "train_gpt needs CUDA 12.8 or later, the first that knows sm_100a"
#endif

namespace {

// Limits of the device. Those of grid and block are the same on every GPU since Kepler.
constexpr unsigned most_threads = 1024, most_block_x = 1024, most_block_y = 1024, most_block_z = 64;
constexpr unsigned most_grid_x = 2147483647, most_grid_y = 65535, most_grid_z = 65535;

std::string shape(dim3 d) { return text("(", d.x, ",", d.y, ",", d.z, ")"); }

[[noreturn]] void refuse(cudaError_t status, const std::string& why, const Launch& how, const std::string& kernel) {
    throw Error(ErrorKind::bug, text(how.file(), ":", how.line(), ": launch of ", kernel, " with grid ",
                                     shape(how.grid()), ", block ", shape(how.block()), ", ", how.shared_bytes(),
                                     " bytes of shared memory failed: ", cudaGetErrorName(status), ": ", why));
}

// Returns what is wrong with the dimensions; empty if nothing is.
std::string wrong_dimensions(const Launch& how) {
    dim3 grid = how.grid(), block = how.block();
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return "a dimension is zero";
    if (block.x > most_block_x || block.y > most_block_y || block.z > most_block_z) {
        return text("a block is at most ", shape({most_block_x, most_block_y, most_block_z}));
    }
    unsigned threads = block.x * block.y * block.z;
    if (threads > most_threads) return text(threads, " threads per block, at most ", most_threads);
    if (grid.x > most_grid_x || grid.y > most_grid_y || grid.z > most_grid_z) {
        return text("a grid is at most ", shape({most_grid_x, most_grid_y, most_grid_z}));
    }
    return "";
}

std::string name_of(const void* kernel) {
    const char* symbol = nullptr;
    if (cudaFuncGetName(&symbol, kernel) != cudaSuccess || !symbol) {
        cudaGetLastError();
        return "a kernel";
    }
    int status = 0;   // a CPU's names are readable already; demangling takes "f" for float
    char* readable = symbol[0] == '_' ? abi::__cxa_demangle(symbol, nullptr, nullptr, &status) : nullptr;
    std::string name = readable ? readable : symbol;
    std::free(readable);
    return name;
}

// Returns the dynamic shared memory that the kernel may have: the limit that a block may opt in to, minus the kernel's
// static shared memory.
std::size_t most_shared_bytes(const void* kernel) {
    int device = 0, block_bytes = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    cudaFuncAttributes attributes;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    return static_cast<std::size_t>(block_bytes) - attributes.sharedSizeBytes;
}

void allow_shared_bytes(const void* kernel, std::size_t bytes) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

// Checks the size, and raises the kernel's limit to the device's at the kernel's first launch that needs it.
void check_shared_memory(const Launch& how, const void* kernel) {
    constexpr std::size_t granted_to_all = 48 << 10;
    static std::mutex mutex;
    static std::map<const void*, std::size_t> limits;
    if (how.shared_bytes() == 0) return;
    // Static shared memory counts against the first 48 KiB too, so only small requests need no check.
    if (how.shared_bytes() <= granted_to_all / 2) return;
    std::lock_guard<std::mutex> lock(mutex);
    auto found = limits.find(kernel);
    if (found == limits.end()) {
        std::size_t limit = most_shared_bytes(kernel);
        allow_shared_bytes(kernel, limit);
        found = limits.emplace(kernel, limit).first;
    }
    if (how.shared_bytes() > found->second) {
        refuse(cudaErrorInvalidValue,
               text("at most ", found->second, " bytes of dynamic shared memory for this kernel"), how,
               name_of(kernel));
    }
}

}   // namespace

void check_launch(const Launch& how, const void* kernel) {
    if (std::string wrong = wrong_dimensions(how); !wrong.empty()) {
        refuse(cudaErrorInvalidConfiguration, wrong, how, name_of(kernel));
    }
    check_shared_memory(how, kernel);
}

void check_launched(cudaError_t status, const Launch& how, const void* kernel) {
    if (status == cudaSuccess) {
        if (OperationTimer::watches(how.stream())) OperationTimer::note(how.stream(), name_of(kernel), how.bytes());
        return;
    }
    refuse(status, cudaGetErrorString(status), how, name_of(kernel));
}
