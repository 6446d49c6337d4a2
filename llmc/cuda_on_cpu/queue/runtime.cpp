// The runtime calls on devices, errors, streams and events. Memory and copies are in copy.cpp.
#include <cuda_runtime_api.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <thread>

#include "llmc/base/error.h"
#include "llmc/cuda_on_cpu/queue/device.h"
#include "llmc/cuda_on_cpu/queue/services.h"

namespace host {
namespace {

// Result of the last failing call of this thread, and a text with more than the code.
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaError_t detailed_error = cudaSuccess;
thread_local std::string detail_text;

constexpr int least_priority = 0;
constexpr int greatest_priority = -5;   // as on current GPUs

}   // namespace

cudaError_t fail(cudaError_t error, std::string detail) {
    last_error = error;
    if (!detail.empty()) {
        detailed_error = error;
        detail_text = std::move(detail);
    }
    return error;
}

std::string place(const char* file, int line) {
    return file && *file ? text(file, ":", line) : std::string("an unknown place");
}

namespace {

// Locks the device for each call below, and refuses to go on after a fault or inside an operation.
struct Call {
    Device& device = host::device();
    std::lock_guard<std::recursive_mutex> lock{device.mutex};
    cudaError_t error = device.usable();

    CUstream_st* stream(cudaStream_t handle) {
        if (error != cudaSuccess) {
            pass_on(error);
            return nullptr;
        }
        CUstream_st* found = device.find(handle);
        if (!found)
            error = fail(cudaErrorInvalidResourceHandle,
                         handle == cudaStreamPerThread ? "the per-thread default stream is not offered: create a stream"
                                                       : "no such stream, or it has been destroyed");
        return found;
    }
    CUevent_st* event(cudaEvent_t handle) {
        if (error != cudaSuccess) {
            pass_on(error);
            return nullptr;
        }
        CUevent_st* found = device.find(handle);
        if (!found) error = fail(cudaErrorInvalidResourceHandle, "no such event, or it has been destroyed");
        return found;
    }
};

std::string processor_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string row; std::getline(file, row);)
        if (row.starts_with("model name")) return row.substr(std::min(row.size(), row.find(':') + 2));
    return "unknown processor";
}

// Returns the limits of a current GPU (compute capability 9.0), so that a launch that fits here fits there.
cudaDeviceProp properties_of_device() {
    cudaDeviceProp p{};
    std::string name = "CPU stand-in on " + processor_name();
    std::strncpy(p.name, name.c_str(), sizeof p.name - 1);
    p.totalGlobalMem = device().memory.bytes_total();
    p.sharedMemPerBlock = 48 << 10;
    p.regsPerBlock = 65536;
    p.warpSize = 32;
    p.maxThreadsPerBlock = 1024;
    const int block_limits[3] = {1024, 1024, 64}, grid_limits[3] = {2147483647, 65535, 65535};
    std::copy_n(block_limits, 3, p.maxThreadsDim);
    std::copy_n(grid_limits, 3, p.maxGridSize);
    p.major = 9;
    p.minor = 0;
    p.multiProcessorCount = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    p.unifiedAddressing = 1;
    p.memoryBusWidth = 128;
    const long last_level = sysconf(_SC_LEVEL3_CACHE_SIZE);   // 0 or -1 where it is not known
    p.l2CacheSize = last_level > 0 ? static_cast<int>(std::min(last_level, 1L << 30)) : 32 << 20;
    p.maxThreadsPerMultiProcessor = 2048;
    p.streamPrioritiesSupported = 1;
    p.sharedMemPerMultiprocessor = 228 << 10;
    p.sharedMemPerBlockOptin = 227 << 10;
    return p;
}

}   // namespace
}   // namespace host

using host::Call;
using host::fail;
using host::pass_on;

// ---------------------------------------------------------------------------------------------------------------------
// Devices

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    return device == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice, "the CPU stand-in has one device, number 0");
}

cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (cudaError_t error = cudaSetDevice(device); error != cudaSuccess) return error;
    *properties = host::properties_of_device();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (cudaError_t error = cudaSetDevice(device); error != cudaSuccess) return error;
    const cudaDeviceProp p = host::properties_of_device();
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
        case cudaDevAttrMaxBlockDimX: *value = p.maxThreadsDim[0]; break;
        case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[1]; break;
        case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
        case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
        case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
        case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[2]; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
        case cudaDevAttrWarpSize: *value = p.warpSize; break;
        case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
        case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            *value = static_cast<int>(p.sharedMemPerMultiprocessor);
            break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); break;
        default: return fail(cudaErrorInvalidValue, "an attribute that the CPU stand-in does not know");
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    Call call;
    return pass_on(call.error != cudaSuccess ? call.error : call.device.wait_for_all());
}

cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// ---------------------------------------------------------------------------------------------------------------------
// Errors

cudaError_t cudaPeekAtLastError() {
    cudaError_t fault = host::device().fault();
    return fault != cudaSuccess ? fault : host::last_error;
}

cudaError_t cudaGetLastError() {
    cudaError_t error = cudaPeekAtLastError();
    host::last_error = cudaSuccess;
    return error;
}

const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define X(name, value, text) \
    case name: return #name;
        HOST_CUDA_ERRORS(X)
#undef X
    }
    return "unrecognized error code";
}

// Returns CUDA's text, followed by the stand-in's, if this is the thread's latest error or the device's fault.
const char* cudaGetErrorString(cudaError_t error) {
    static thread_local std::string whole;
    const char* plain = "unrecognized error code";
    switch (error) {
#define X(name, value, text) \
    case name: plain = text; break;
        HOST_CUDA_ERRORS(X)
#undef X
    }
    if (error == cudaSuccess) return plain;
    std::string detail;
    if (host::device().fault() == error)
        detail = host::device().fault_message();
    else if (error == host::detailed_error)
        detail = host::detail_text;
    if (detail.empty()) return plain;
    whole = text(plain, ": ", detail);
    return whole.c_str();
}

// ---------------------------------------------------------------------------------------------------------------------
// Streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    Call call;
    if (call.error != cudaSuccess) return pass_on(call.error);
    if (!stream || (flags & ~unsigned{cudaStreamNonBlocking}))
        return fail(cudaErrorInvalidValue, "unknown stream flags");
    priority = std::clamp(priority, host::greatest_priority, host::least_priority);
    *stream = call.device.create_stream(flags, priority);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, host::least_priority);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    if (least) *least = host::least_priority;
    if (greatest) *greatest = host::greatest_priority;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    Call call;
    CUstream_st* found = call.stream(stream);
    if (!found) return call.error;
    *priority = found->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
    Call call;
    CUstream_st* found = call.stream(stream);
    if (!found) return call.error;
    *flags = found->flags;
    return cudaSuccess;
}

// Performs the stream's work at once, while CUDA lets it finish later. That orders nothing: later work must still wait
// for what it needs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    host::Device& device = host::device();
    std::lock_guard lock(device.mutex);
    CUstream_st* found = device.find(stream);
    if (!found || found == device.streams()[0].get())
        return fail(cudaErrorInvalidResourceHandle, "no such stream, or it has been destroyed");
    cudaError_t error = device.perform(*found);
    if (error == cudaErrorNotPermitted) return error;
    device.destroy_stream(found);
    return pass_on(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    Call call;
    CUstream_st* found = call.stream(stream);
    return found ? pass_on(call.device.wait_for(*found)) : call.error;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    Call call;
    CUstream_st* found = call.stream(stream);
    if (!found) return call.error;
    if (!found->queue.empty()) call.device.poll();
    if (!found->queue.empty()) return cudaErrorNotReady;
    return pass_on(call.device.wait_for(*found));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags, const char* file, int line) {
    Call call;
    CUstream_st* waiting = call.stream(stream);
    CUevent_st* found = waiting ? call.event(event) : nullptr;
    if (!found) return call.error;
    if (flags != cudaEventWaitDefault) return fail(cudaErrorInvalidValue, "unknown flags");
    return pass_on(call.device.wait_in_stream(*waiting, *found, file, line));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user_data, const char* file,
                               int line) {
    Call call;
    CUstream_st* found = call.stream(stream);
    if (!found) return call.error;
    if (!function) return fail(cudaErrorInvalidValue, "no function");
    host::Operation operation{"host function", file, line, {}, {}, {}, {}, host::Touches::nothing};
    operation.step = [function, user_data, &device = call.device] {
        const int open_count = device.memory.open_count();
        device.close_memory();   // memory stays closed to the host
        function(user_data);
        device.memory.restore_open_count(open_count);
        return true;
    };
    return pass_on(call.device.enqueue(*found, std::move(operation)));
}

// ---------------------------------------------------------------------------------------------------------------------
// Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    Call call;
    if (call.error != cudaSuccess) return pass_on(call.error);
    if (flags & ~unsigned{cudaEventBlockingSync | cudaEventDisableTiming})
        return fail(cudaErrorInvalidValue, "flags other than cudaEventBlockingSync and cudaEventDisableTiming");
    *event = call.device.create_event(flags);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    host::Device& device = host::device();
    std::lock_guard lock(device.mutex);
    CUevent_st* found = device.find(event);
    if (!found) return fail(cudaErrorInvalidResourceHandle, "no such event, or it has been destroyed");
    device.destroy_event(found);   // waits and records in flight keep what they need
    return pass_on(device.fault());
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream, const char* file, int line) {
    Call call;
    CUstream_st* recorded = call.stream(stream);
    CUevent_st* found = recorded ? call.event(event) : nullptr;
    if (!found) return call.error;
    return pass_on(call.device.record_event(*found, *recorded, file, line));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    Call call;
    CUevent_st* found = call.event(event);
    if (!found) return call.error;
    if (!found->record) return cudaSuccess;
    auto record = found->record;
    if (!record->finished()) call.device.poll();
    if (!record->finished()) return cudaErrorNotReady;
    return pass_on(call.device.wait_for(*record));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Call call;
    CUevent_st* found = call.event(event);
    if (!found) return call.error;
    auto record = found->record;   // kept alive while waiting
    return record ? pass_on(call.device.wait_for(*record)) : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
    Call call;
    CUevent_st* first = call.event(start);
    CUevent_st* second = first ? call.event(stop) : nullptr;
    if (!second) return call.error;
    if ((first->flags | second->flags) & cudaEventDisableTiming)
        return fail(cudaErrorInvalidResourceHandle, "an event created with cudaEventDisableTiming");
    if (!first->record || !second->record) return fail(cudaErrorInvalidResourceHandle, "an event never recorded");
    if (!first->record->finished() || !second->record->finished()) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(second->record->time - first->record->time).count();
    return cudaSuccess;
}

// Here because a library's file that only weak references name is not linked.
extern "C" StandIn* stand_in_of_build() { return &host::services(); }
