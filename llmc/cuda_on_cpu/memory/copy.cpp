// The runtime calls on memory, copies and fills, with CUDA's rules on when they return
// ("API synchronization behavior" in the runtime's manual):
//   pageable host to device   reads its source before returning; the device may get it later
//   device to pageable host   complete on return
//   host to host              complete on return
//   pinned, either direction  deferred when asynchronous, complete on return when not
//   device to device, memset  deferred, also the calls without Async
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/rng.h"
#include "llmc/cuda_on_cpu/queue/device.h"

namespace host {
namespace {

// Limit of staging: pageable sources up to this size are copied aside, longer ones wait for the stream, as in CUDA.
constexpr std::size_t staging_limit_bytes = 64 << 10;

enum class Where { device, pinned, pageable };

// `height` rows of `width` bytes, the beginnings of rows `pitch` bytes apart. Plain copies have one row.
struct Rows {
    const char* begin;
    std::size_t pitch;
    std::size_t width;
    std::size_t height;

    std::size_t span() const { return height == 0 || width == 0 ? 0 : (height - 1) * pitch + width; }
};

struct Copy {
    const char* name;
    Rows to;
    Rows from;
    cudaMemcpyKind kind;
    bool asynchronous;
    const char* file;
    int line;
};

void copy_rows(const Rows& to, const Rows& from) {
    char* target = const_cast<char*>(to.begin);
    if (to.pitch == to.width && from.pitch == from.width) {
        std::memcpy(target, from.begin, to.width * to.height);
        return;
    }
    for (std::size_t row = 0; row < to.height; row++)
        std::memcpy(target + row * to.pitch, from.begin + row * from.pitch, to.width);
}

// Finds the kind of memory of a range. Returns an error with a detail if part of it is not usable.
cudaError_t locate(Device& device, const Rows& rows, Where* where) {
    const std::size_t bytes = rows.span();
    if (!rows.begin) return fail(cudaErrorInvalidValue, "a null pointer");
    if (device.memory.owns(rows.begin)) {
        *where = Where::device;
        if (device.memory.is_live(rows.begin, bytes)) return cudaSuccess;
        return fail(cudaErrorInvalidValue, text(bytes, " bytes that begin at ", device.memory.describe(rows.begin),
                                                " do not lie within one allocation"));
    }
    *where = is_pinned(rows.begin, bytes) ? Where::pinned : Where::pageable;
    if (*where == Where::pageable)
        if (std::string other = describe_address(rows.begin); !other.empty())
            return fail(cudaErrorInvalidValue, text(bytes, " bytes that begin at ", other,
                                                    " belong to another device or reach past pinned memory"));
    return cudaSuccess;
}

cudaError_t check_direction(cudaMemcpyKind kind, Where to, Where from) {
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return fail(cudaErrorInvalidMemcpyDirection);
    if (kind == cudaMemcpyDefault) return cudaSuccess;
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    auto name = [](bool is_device) { return is_device ? "device" : "host"; };
    if (to_device != (to == Where::device))
        return fail(cudaErrorInvalidValue, text("the direction says that the destination is ", name(to_device),
                                                " memory, but it is ", name(!to_device), " memory"));
    if (from_device != (from == Where::device))
        return fail(cudaErrorInvalidValue, text("the direction says that the source is ", name(from_device),
                                                " memory, but it is ", name(!from_device), " memory"));
    return cudaSuccess;
}

std::uint64_t fingerprint(const Rows& rows) {
    std::uint64_t value = 0;
    for (std::size_t row = 0; row < rows.height; row++) {
        const char* at = rows.begin + row * rows.pitch;
        for (std::size_t i = 0; i < rows.width; i += 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, at + i, std::min<std::size_t>(8, rows.width - i));
            value = mix64(value ^ word);
        }
    }
    return value;
}

// Returns the step of a deferred copy from pinned memory, which also detects that the host changed the source too
// early.
std::function<bool()> pinned_upload(const Copy& copy) {
    const std::uint64_t before = fingerprint(copy.from);
    return [copy, before] {
        if (fingerprint(copy.from) != before)
            report_fault(cudaErrorLaunchFailure, text("race: the host changed the pinned source of '", copy.name, "' (",
                                                      place(copy.file, copy.line), "), ",
                                                      describe_address(copy.from.begin), ", before the copy was done"));
        copy_rows(copy.to, copy.from);
        return true;
    };
}

// Returns true if no queued operation may legitimately fill the source first.
bool source_is_settled(const Device& device, const Rows& rows) {
    int stream = 0;
    if (device.queued_on(rows.begin, rows.span(), &stream)) return false;
    for (const auto& queue : device.streams())
        for (const auto& queued : queue->queue)
            if (queued.operation.accesses.empty() && queued.operation.name == "host function") return false;
    return true;
}

cudaError_t enqueue_copy(Device& device, CUstream_st& stream, Copy copy) {
    if (copy.to.span() == 0) return cudaSuccess;
    Where to, from;
    if (cudaError_t error = locate(device, copy.to, &to); error != cudaSuccess) return error;
    if (cudaError_t error = locate(device, copy.from, &from); error != cudaSuccess) return error;
    if (cudaError_t error = check_direction(copy.kind, to, from); error != cudaSuccess) return error;
    if (copy.to.begin < copy.from.begin + copy.from.span() && copy.from.begin < copy.to.begin + copy.to.span())
        return fail(cudaErrorInvalidValue, "source and destination overlap");

    Operation operation{copy.name, copy.file, copy.line, {}, {}, {}, {}};
    operation.step = [to = copy.to, from = copy.from] { return copy_rows(to, from), true; };
    if (checks().races || checks().memory) {
        operation.touches = Touches::declared;
        if (to != Where::pageable) operation.accesses.push_back({copy.to.begin, copy.to.span(), true});
        if (from != Where::pageable) operation.accesses.push_back({copy.from.begin, copy.from.span(), false});
    }

    // Pageable sources must have been read on return: from a copy of their own, or by performing the stream now.
    const bool upload = to == Where::device && from == Where::pageable;
    const std::size_t bytes = copy.to.width * copy.to.height;
    const bool staged = upload && (checks().random_order || (!stream.queue.empty() && bytes <= staging_limit_bytes));
    if (staged) {
        auto staging = std::make_shared<std::vector<char>>(bytes);
        const Rows packed{staging->data(), copy.to.width, copy.to.width, copy.to.height};
        copy_rows(packed, copy.from);
        operation.step = [to = copy.to, packed, staging] { return copy_rows(to, packed), true; };
    } else if (from == Where::pinned && to == Where::device && checks().races && source_is_settled(device, copy.from)) {
        operation.step = pinned_upload(copy);
    }

    // On a GPU the host waits for the stream before it copies a long source: a recording must show that.
    if (upload && bytes > staging_limit_bytes && device.recorder) {
        device.recorder->host_waited_for_stream(stream.progress->id);
    }
    if (cudaError_t error = device.enqueue(stream, std::move(operation)); error != cudaSuccess) return error;
    if (upload) return staged ? cudaSuccess : device.perform(stream);
    if (to == Where::device && from == Where::device) return cudaSuccess;
    const bool host_only = to != Where::device && from != Where::device;
    if (!copy.asynchronous || to == Where::pageable || host_only) return device.wait_for(stream);
    return cudaSuccess;
}

// Runs `work` as the calls below need it: with the lock, the stream and the device's state.
template <class Work>
cudaError_t on_stream(cudaStream_t handle, Work work) {
    Device& device = host::device();
    std::lock_guard lock(device.mutex);
    if (cudaError_t error = device.usable(); error != cudaSuccess) return pass_on(error);
    CUstream_st* stream = device.find(handle);
    if (!stream) return fail(cudaErrorInvalidResourceHandle, "no such stream, or it has been destroyed");
    return pass_on(work(device, *stream));
}

Rows one_row(const void* begin, std::size_t bytes) { return {static_cast<const char*>(begin), bytes, bytes, 1}; }

cudaError_t fill(Device& device, CUstream_st& stream, const char* name, void* to, int value, std::size_t bytes,
                 bool asynchronous, const char* file, int line) {
    if (bytes == 0) return cudaSuccess;
    Where where;
    if (cudaError_t error = locate(device, one_row(to, bytes), &where); error != cudaSuccess) return error;
    if (where == Where::pageable) return fail(cudaErrorInvalidValue, "the destination is pageable host memory");
    Operation operation{name, file, line, {}, {}, {}, {}};
    operation.step = [=] { return std::memset(to, value, bytes), true; };
    if (checks().races || checks().memory) {
        operation.touches = Touches::declared;
        operation.accesses.push_back({to, bytes, true});
    }
    if (cudaError_t error = device.enqueue(stream, std::move(operation)); error != cudaSuccess) return error;
    return where == Where::pinned && !asynchronous ? device.wait_for(stream) : cudaSuccess;
}

}   // namespace
}   // namespace host

using host::Device;
using host::fail;
using host::pass_on;

// ---------------------------------------------------------------------------------------------------------------------
// Device memory

cudaError_t cudaMalloc(void** pointer, std::size_t bytes, const char* file, int line) {
    Device& device = host::device();
    std::lock_guard lock(device.mutex);
    if (cudaError_t error = device.usable(); error != cudaSuccess) return pass_on(error);
    if (!pointer) return fail(cudaErrorInvalidValue, "no place for the address");
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    *pointer = device.memory.allocate(bytes, file, line);
    if (*pointer) return cudaSuccess;
    return fail(cudaErrorMemoryAllocation, text(bytes, " bytes asked for, ", device.memory.bytes_used(), " of ",
                                                device.memory.bytes_total(), " in use"));
}

// Waits for the device before it frees, as CUDA does. But freeing under queued work is reported: the next version of
// the program, or a memory pool, would free too early. Not reported while an exception unwinds: its cause matters then.
cudaError_t cudaFree(void* pointer, const char* file, int line) {
    if (!pointer) return cudaSuccess;
    Device& device = host::device();
    std::lock_guard lock(device.mutex);
    if (cudaError_t error = device.usable(); error == cudaErrorNotPermitted) return error;
    const std::size_t bytes = device.memory.bytes_of(pointer);
    if (bytes == 0) {
        std::string where = host::describe_address(pointer);
        return fail(cudaErrorInvalidValue, where.empty() ? "not device memory" : "cannot be freed: " + where);
    }
    int stream = 0;
    const bool reports = host::checks().memory && std::uncaught_exceptions() == 0;
    if (const host::Operation* user = reports ? device.queued_on(pointer, bytes, &stream) : nullptr)
        device.report_fault(cudaErrorIllegalAddress,
                            text("use after free: ", device.memory.describe(pointer), " is freed (",
                                 host::place(file, line), ") while '", user->name, "' (",
                                 host::place(user->file, user->line), "), queued in stream ", stream, ", uses it"));
    device.perform_all();
    if (host::checks().memory && device.fault() == cudaSuccess)
        if (auto damage = device.memory.damage_of(pointer)) device.report_fault(cudaErrorIllegalAddress, *damage);
    device.memory.release(pointer);
    device.races.forget(pointer, bytes);
    return pass_on(device.fault());
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
    Device& device = host::device();
    std::lock_guard lock(device.mutex);
    *total_bytes = device.memory.bytes_total();
    *free_bytes = device.memory.bytes_free();
    return pass_on(device.usable());
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    Device& device = host::device();
    std::lock_guard lock(device.mutex);
    void* same = const_cast<void*>(pointer);
    if (device.memory.is_live(pointer, 1)) {
        *attributes = {cudaMemoryTypeDevice, 0, same, nullptr};
    } else if (host::is_pinned(pointer, 1)) {
        *attributes = {cudaMemoryTypeHost, 0, same, same};
    } else {
        *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, same};
    }
    return pass_on(device.usable());
}

// ---------------------------------------------------------------------------------------------------------------------
// Pinned host memory

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
    constexpr unsigned known = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    if (!pointer || (flags & ~known)) return fail(cudaErrorInvalidValue, "unknown flags");
    if (cudaError_t error = host::device().fault(); error != cudaSuccess) return pass_on(error);
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    *pointer = host::allocate_pinned(bytes);
    return *pointer ? cudaSuccess : fail(cudaErrorMemoryAllocation, text(bytes, " bytes of pinned host memory"));
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
    return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* pointer) {
    if (!pointer) return cudaSuccess;
    Device& device = host::device();
    std::lock_guard lock(device.mutex);
    if (cudaError_t error = device.usable(); error == cudaErrorNotPermitted) return error;
    device.perform_all();
    if (!host::release_pinned(pointer))
        return fail(cudaErrorInvalidValue, "not memory of cudaMallocHost, or freed already");
    return pass_on(device.fault());
}

cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
    constexpr unsigned known = cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly;
    if (!pointer || bytes == 0 || (flags & ~known)) return fail(cudaErrorInvalidValue, "no memory, or unknown flags");
    if (cudaError_t error = host::device().fault(); error != cudaSuccess) return pass_on(error);
    return host::register_pinned(pointer, bytes) ? cudaSuccess : fail(cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* pointer) {
    Device& device = host::device();
    std::lock_guard lock(device.mutex);
    if (cudaError_t error = device.usable(); error == cudaErrorNotPermitted) return error;
    device.perform_all();
    if (!host::unregister_pinned(pointer)) return fail(cudaErrorHostMemoryNotRegistered);
    return pass_on(device.fault());
}

// ---------------------------------------------------------------------------------------------------------------------
// Copies and fills

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, const char* file, int line) {
    return host::on_stream(cudaStreamLegacy, [&](Device& device, CUstream_st& stream) {
        return host::enqueue_copy(
            device, stream,
            {"cudaMemcpy", host::one_row(to, bytes), host::one_row(from, bytes), kind, false, file, line});
    });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t handle,
                            const char* file, int line) {
    return host::on_stream(handle, [&](Device& device, CUstream_st& stream) {
        return host::enqueue_copy(
            device, stream,
            {"cudaMemcpyAsync", host::one_row(to, bytes), host::one_row(from, bytes), kind, true, file, line});
    });
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width_bytes, std::size_t height, cudaMemcpyKind kind, cudaStream_t handle,
                              const char* file, int line) {
    if (width_bytes > to_pitch || width_bytes > from_pitch)
        return fail(cudaErrorInvalidPitchValue, "rows are wider than their pitch");
    const host::Rows target{static_cast<const char*>(to), to_pitch, width_bytes, height};
    const host::Rows source{static_cast<const char*>(from), from_pitch, width_bytes, height};
    return host::on_stream(handle, [&](Device& device, CUstream_st& stream) {
        return host::enqueue_copy(device, stream, {"cudaMemcpy2DAsync", target, source, kind, true, file, line});
    });
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes, const char* file, int line) {
    return host::on_stream(cudaStreamLegacy, [&](Device& device, CUstream_st& stream) {
        return host::fill(device, stream, "cudaMemset", to, value, bytes, false, file, line);
    });
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t handle, const char* file, int line) {
    return host::on_stream(handle, [&](Device& device, CUstream_st& stream) {
        return host::fill(device, stream, "cudaMemsetAsync", to, value, bytes, true, file, line);
    });
}
