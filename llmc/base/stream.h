// Owners of a CUDA stream and a CUDA event, the order between two streams, and the host's waits.
//
// Streams and events are made at their first use: what only counts memory makes none, and needs no device. Each is
// used by one host thread.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <utility>

#include "llmc/base/check.h"

enum class StreamPriority { usual, greatest };

class OwnedStream {
public:
    explicit OwnedStream(StreamPriority priority = StreamPriority::usual) : priority_(priority) {}
    ~OwnedStream() {
        if (stream_ != nullptr) cudaStreamDestroy(stream_);
    }
    OwnedStream(const OwnedStream&) = delete;
    OwnedStream& operator=(const OwnedStream&) = delete;
    cudaStream_t get() const {
        if (stream_ == nullptr) make();
        return stream_;
    }

private:
    void make() const {
        int least = 0, greatest = 0;
        CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
        const int chosen = priority_ == StreamPriority::greatest ? greatest : 0;
        CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, chosen));
    }

    StreamPriority priority_;
    mutable cudaStream_t stream_ = nullptr;
};

// Observer of this host thread's calls on streams: exposed waits are measured with it
// (llmc/run/metrics/exposed_waits.h).
class StreamObserver {
public:
    virtual void recorded(cudaEvent_t event, cudaStream_t stream) = 0;
    // Called before and after the calls that queue what waits() or communicates() announces; pairs may be nested.
    virtual void begin() = 0;
    virtual void end() = 0;
    virtual void waits(cudaStream_t stream, cudaEvent_t event) = 0;
    virtual void communicates(cudaStream_t stream, const std::string& group) = 0;   // with the ranks of `group`

protected:
    ~StreamObserver() = default;
};
inline thread_local StreamObserver* stream_observer = nullptr;

// A point in a stream's work that another stream can wait for. It can be recorded again and again.
class OwnedEvent {
public:
    OwnedEvent() : OwnedEvent(cudaEventDisableTiming) {}
    ~OwnedEvent() {
        if (event_ != nullptr) cudaEventDestroy(event_);
    }
    OwnedEvent(OwnedEvent&& other) noexcept : flags_(other.flags_), event_(std::exchange(other.event_, nullptr)) {}
    OwnedEvent& operator=(OwnedEvent&&) = delete;
    cudaEvent_t get() const {
        if (event_ == nullptr) CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags_));
        return event_;
    }

    // Marks the end of all work given to `stream` so far.
    void record(cudaStream_t stream) const {
        CUDA_CHECK(cudaEventRecord(get(), stream));
        if (stream_observer != nullptr) stream_observer->recorded(event_, stream);
    }
    // Makes later work of `stream` wait for the last record(); does nothing if there was none.
    void wait(cudaStream_t stream) const {
        if (event_ == nullptr) return;
        StreamObserver* const observer = stream_observer;
        if (observer != nullptr) observer->begin(), observer->waits(stream, event_);
        CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
        if (observer != nullptr) observer->end();
    }

protected:
    explicit OwnedEvent(unsigned flags) : flags_(flags) {}

private:
    unsigned flags_;
    mutable cudaEvent_t event_ = nullptr;
};

// An event that keeps the time at which it happened. It is made at once: no time that it measures includes that.
class TimedEvent : public OwnedEvent {
public:
    TimedEvent() : OwnedEvent(cudaEventDefault) { get(); }

    // Seconds from `earlier` to this one. Both must have happened.
    double seconds_since(const TimedEvent& earlier) const {
        float milliseconds = 0;
        CUDA_CHECK(cudaEventElapsedTime(&milliseconds, earlier.get(), get()));
        return 1e-3 * static_cast<double>(milliseconds);
    }
};

// True while this host thread waits for its device. The watchdog reads it from its own thread: among ranks that do not
// advance, one whose host does not wait is busy elsewhere.
inline thread_local std::atomic<bool> host_waits = false;

class HostWait {
public:
    HostWait() { host_waits = true; }
    ~HostWait() { host_waits = false; }
    HostWait(const HostWait&) = delete;
    HostWait& operator=(const HostWait&) = delete;
};

// Blocks the host until the work given to the stream, or recorded by the event, is done.
inline void wait_for(cudaStream_t stream) {
    HostWait waits;
    CUDA_CHECK(cudaStreamSynchronize(stream));
}
inline void wait_for(cudaEvent_t event) {
    HostWait waits;
    CUDA_CHECK(cudaEventSynchronize(event));
}

// Copies from the device to pageable host memory, for which CUDA may let the host wait until the stream comes to it.
inline void copy_to_host(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
    HostWait waits;
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
}
