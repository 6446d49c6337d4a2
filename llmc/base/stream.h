// A CUDA stream and a CUDA event as values that free themselves, the order between two streams, and the host's waits.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <string>
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

// Is told what this host thread asks of streams: who measures how long one waits for others
// (llmc/run/metrics/exposed_waits.h). Null: nobody.
class StreamObserver {
public:
    virtual void recorded(cudaEvent_t event, cudaStream_t stream) = 0;
    // What is asked for between the two is queued by the end of it. They may be nested.
    virtual void begin() = 0;
    virtual void end() = 0;
    virtual void waits(cudaStream_t stream, cudaEvent_t event) = 0;
    virtual void communicates(cudaStream_t stream, const std::string& group) = 0;   // with the ranks of a group

protected:
    ~StreamObserver() = default;
};
inline thread_local StreamObserver* stream_observer = nullptr;

// A point in the work of a stream that another stream can wait for, again and again.
class OwnedEvent {
public:
    OwnedEvent() : OwnedEvent(cudaEventDisableTiming) {}
    ~OwnedEvent() {
        if (event_ != nullptr) cudaEventDestroy(event_);
    }
    OwnedEvent(OwnedEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    OwnedEvent& operator=(OwnedEvent&&) = delete;
    cudaEvent_t get() const { return event_; }

    // All work given to `stream` so far.
    void record(cudaStream_t stream) const {
        CUDA_CHECK(cudaEventRecord(event_, stream));
        if (stream_observer != nullptr) stream_observer->recorded(event_, stream);
    }
    // Later work of `stream` begins after what was recorded last; at once where nothing was.
    void wait(cudaStream_t stream) const {
        StreamObserver* const observer = stream_observer;
        if (observer != nullptr) observer->begin(), observer->waits(stream, event_);
        CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
        if (observer != nullptr) observer->end();
    }

protected:
    explicit OwnedEvent(unsigned flags) { CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags)); }

private:
    cudaEvent_t event_ = nullptr;
};

// One that tells its time.
class TimedEvent : public OwnedEvent {
public:
    TimedEvent() : OwnedEvent(cudaEventDefault) {}

    // Both have happened.
    double seconds_since(const TimedEvent& earlier) const {
        float milliseconds = 0;
        CUDA_CHECK(cudaEventElapsedTime(&milliseconds, earlier.get(), get()));
        return 1e-3 * static_cast<double>(milliseconds);
    }
};

// Whether this host thread waits for its device just now. The watchdog reads it from its own thread: of ranks that do
// not advance, one whose host does not wait is elsewhere.
inline thread_local std::atomic<bool> host_waits = false;

class HostWait {
public:
    HostWait() { host_waits = true; }
    ~HostWait() { host_waits = false; }
    HostWait(const HostWait&) = delete;
    HostWait& operator=(const HostWait&) = delete;
};

// The host waits until what was given to the stream, or recorded by the event, is done.
inline void wait_for(cudaStream_t stream) {
    HostWait waits;
    CUDA_CHECK(cudaStreamSynchronize(stream));
}
inline void wait_for(cudaEvent_t event) {
    HostWait waits;
    CUDA_CHECK(cudaEventSynchronize(event));
}
