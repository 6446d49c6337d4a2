// Pinned host memory: the device copies from and to it while the host goes on (pageable memory would make the host wait
// for the stream). Refill it only after the copies from it are done; record an event to know.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <utility>

#include "llmc/base/check.h"

template <class T>
class PinnedBuffer {
public:
    PinnedBuffer() = default;
    explicit PinnedBuffer(std::size_t count) : count_(count) {
        void* memory = nullptr;
        const std::size_t bytes = count * sizeof(T);
        const cudaError_t status = count > 0 ? cudaMallocHost(&memory, bytes) : cudaSuccess;
        if (status == cudaErrorMemoryAllocation) {
            cudaGetLastError();   // clears the error, which is reported here
            throw Error(ErrorKind::no_device, text("no ", bytes, " bytes of pinned host memory"),
                        "This is the machine's own memory, which may not be swapped out: give the container more, "
                        "raise `ulimit -l`, or run fewer ranks a machine.");
        }
        CUDA_CHECK(status);
        data_ = static_cast<T*>(memory);
    }
    ~PinnedBuffer() {
        if (data_ != nullptr) cudaFreeHost(data_);
    }
    PinnedBuffer(PinnedBuffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
    PinnedBuffer& operator=(PinnedBuffer&&) = delete;

    std::span<T> values() const { return {data_, count_}; }

private:
    T* data_ = nullptr;
    std::size_t count_ = 0;
};
