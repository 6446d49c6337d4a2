// Stand-in for CUDA's <cuda_runtime_api.h>: the host side of the runtime, served by llmc/cuda_on_cpu.
//
// Work given to a stream is deferred: it is performed, stream by stream in order, only while the host waits
// (synchronises, copies from pageable memory, frees, or runs into the limit of queued operations). Eager execution
// would deadlock on correct programs (two ranks that both send before they receive).
//
// Stricter than a GPU, where checks are on (llmc/cuda_on_cpu/checks/checks.h): see memory.h and races.h.
// The legacy default stream (0) has its blocking semantics: it waits for all earlier work of the blocking streams, and
// their later work waits for it. Copies report their call site, hence the defaulted `file` and `line`.
#pragma once

#ifdef __CUDACC__
#error "llmc/cuda_on_cpu/include holds the CPU stand-ins of CUDA's headers: take it off nvcc's include path"
#endif

#include <driver_types.h>

#define CUDART_VERSION 13000

#define HOST_CALL_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// ---- devices: there is one, the machine's processor
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
// Finds cuTensorMapEncodeTiled (cuda.h); ignores version and flags.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* result);

// ---- errors. A fault (a wrong access in a kernel, a race, no progress) is sticky: every later call returns it, and
// cudaGetErrorString adds the stand-in's message to CUDA's text.
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

// ---- kernels. Names are readable, not mangled; static shared memory is not counted.
cudaError_t cudaFuncGetName(const char** name, const void* kernel);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

// ---- memory
cudaError_t cudaMalloc(void** pointer, std::size_t bytes, HOST_CALL_SITE);
cudaError_t cudaFree(void* pointer, HOST_CALL_SITE);
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes);
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* pointer);
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);

template <class T>
inline cudaError_t cudaMalloc(T** pointer, std::size_t bytes, HOST_CALL_SITE) {
    return cudaMalloc(reinterpret_cast<void**>(pointer), bytes, file, line);
}
template <class T>
inline cudaError_t cudaMallocHost(T** pointer, std::size_t bytes) {
    return cudaMallocHost(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
inline cudaError_t cudaHostAlloc(T** pointer, std::size_t bytes, unsigned flags) {
    return cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}

// ---- copies and fills
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, HOST_CALL_SITE);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr, HOST_CALL_SITE);
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width_bytes, std::size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream = nullptr, HOST_CALL_SITE);
cudaError_t cudaMemset(void* to, int value, std::size_t bytes, HOST_CALL_SITE);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream = nullptr, HOST_CALL_SITE);

// ---- streams and events
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority);
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0, HOST_CALL_SITE);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user_data, HOST_CALL_SITE);

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr, HOST_CALL_SITE);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop);
