// Stand-in for CUDA's <driver_types.h>: the handles, codes and flags of the runtime calls this project makes.
//
// Values, names and texts are CUDA's own (dev/test/headers_test.sh compares them with the toolkit where there is one).
// Growing the subset means the call, its stand-in and its test.
#pragma once

#ifdef __CUDACC__
#error "llmc/cuda_on_cpu/include holds the CPU stand-ins of CUDA's headers: take it off nvcc's include path"
#endif

#include <cstddef>

// X(name, value, text): every error the stand-in can return, and those a caller may ask the name of.
#define HOST_CUDA_ERRORS(X)                                                                                     \
    X(cudaSuccess, 0, "no error")                                                                               \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                                             \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                                            \
    X(cudaErrorInitializationError, 3, "initialization error")                                                  \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                                       \
    X(cudaErrorInvalidPitchValue, 12, "invalid pitch argument")                                                 \
    X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                                              \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                                 \
    X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version")          \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                                            \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                             \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                                    \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device")         \
    X(cudaErrorOperatingSystem, 304, "OS call failed or operation not supported on this OS")                    \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                           \
    X(cudaErrorNotReady, 600, "device not ready")                                                               \
    X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                                 \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")                            \
    X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                                   \
    X(cudaErrorAssert, 710, "device-side assert triggered")                                                     \
    X(cudaErrorHostMemoryAlreadyRegistered, 712, "part or all of the requested memory range is already mapped") \
    X(cudaErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region")       \
    X(cudaErrorHardwareStackError, 714, "hardware stack error")                                                 \
    X(cudaErrorIllegalInstruction, 715, "an illegal instruction was encountered")                               \
    X(cudaErrorMisalignedAddress, 716, "misaligned address")                                                    \
    X(cudaErrorInvalidAddressSpace, 717, "operation not supported on global/shared address space")              \
    X(cudaErrorInvalidPc, 718, "invalid program counter")                                                       \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                                \
    X(cudaErrorCooperativeLaunchTooLarge, 720, "too many blocks in cooperative launch")                         \
    X(cudaErrorNotPermitted, 800, "operation not permitted")                                                    \
    X(cudaErrorNotSupported, 801, "operation not supported")                                                    \
    X(cudaErrorUnknown, 999, "unknown error")

enum cudaError {
#define X(name, value, text) name = value,
    HOST_CUDA_ERRORS(X)
#undef X
};
typedef enum cudaError cudaError_t;

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef void (*cudaHostFn_t)(void* user_data);

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)   // refused by every call: the project names its streams

#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaEventInterprocess 0x04   // refused
#define cudaEventRecordDefault 0x00
#define cudaEventWaitDefault 0x00

#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostAllocMapped 0x02
#define cudaHostAllocWriteCombined 0x04
#define cudaHostRegisterDefault 0x00
#define cudaHostRegisterPortable 0x01
#define cudaHostRegisterMapped 0x02
#define cudaHostRegisterReadOnly 0x08

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4   // the direction follows from the pointers
};

enum { cudaEnableDefault = 0 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0, cudaDriverEntryPointSymbolNotFound = 1 };

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

struct cudaFuncAttributes {
    std::size_t sharedSizeBytes;   // static shared memory
};

enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3
};

struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void* devicePointer;
    void* hostPointer;
};

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxBlockDimX = 2,
    cudaDevAttrMaxBlockDimY = 3,
    cudaDevAttrMaxBlockDimZ = 4,
    cudaDevAttrMaxGridDimX = 5,
    cudaDevAttrMaxGridDimY = 6,
    cudaDevAttrMaxGridDimZ = 7,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};

struct cudaDeviceProp {
    char name[256];
    std::size_t totalGlobalMem;      // bytes
    std::size_t sharedMemPerBlock;   // bytes, static
    int regsPerBlock;
    int warpSize;
    int maxThreadsPerBlock;
    int maxThreadsDim[3];
    int maxGridSize[3];
    int major;
    int minor;
    int multiProcessorCount;
    int unifiedAddressing;
    int memoryBusWidth;   // bits
    int l2CacheSize;      // bytes
    int maxThreadsPerMultiProcessor;
    int streamPrioritiesSupported;
    std::size_t sharedMemPerMultiprocessor;   // bytes
    std::size_t sharedMemPerBlockOptin;       // bytes, dynamic, after opting in
};
