// A CUDA stream and a CUDA event as values that free themselves, and the order between two streams.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "llmc/base/check.h"

enum class StreamPriority { usual, greatest };

class OwnedStream {
public:
    explicit OwnedStream(StreamPriority priority = StreamPriority::usual) {
        int least = 0, greatest = 0;
        CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        const int chosen = priority == StreamPriority::greatest ? greatest : 0;
        CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, chosen));
    }
    ~OwnedStream() { cudaStreamDestroy(stream_); }
    OwnedStream(const OwnedStream&) = delete;
    OwnedStream& operator=(const OwnedStream&) = delete;
    cudaStream_t get() const { return stream_; }

private:
    cudaStream_t stream_ = nullptr;
};

// A point in the work of a stream that another stream can wait for, again and again.
class OwnedEvent {
public:
    OwnedEvent() { CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
    ~OwnedEvent() {
        if (event_ != nullptr) cudaEventDestroy(event_);
    }
    OwnedEvent(OwnedEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    OwnedEvent& operator=(OwnedEvent&&) = delete;
    cudaEvent_t get() const { return event_; }

    // All work given to `stream` so far.
    void record(cudaStream_t stream) const { CUDA_CHECK(cudaEventRecord(event_, stream)); }
    // Later work of `stream` begins after what was recorded last; at once where nothing was.
    void wait(cudaStream_t stream) const { CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0)); }

private:
    cudaEvent_t event_ = nullptr;
};
