// State of one stand-in device: its memory, its streams, its fault. Internal to llmc/cuda_on_cpu.
//
// A thread uses the device bound to it, else the process's first one. Several ranks can thus live in one process, each
// a thread with a device of its own; that is how layouts are tested without a launcher.
//
// Locking: `mutex` guards everything except memory's table (which has its own, because fault handlers on other threads
// read it) and the fault (its own). It is held while an operation runs and released between rounds of the queues.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "llmc/cuda_on_cpu/checks/checks.h"
#include "llmc/cuda_on_cpu/checks/races.h"
#include "llmc/cuda_on_cpu/memory/memory.h"
#include "llmc/cuda_on_cpu/queue/queue.h"

// Progress of a stream. Outlives the stream, because events refer to it.
struct StreamProgress {
    std::uint64_t enqueued = 0;
    std::uint64_t done = 0;
    int id = 0;
};

struct CUstream_st {
    // An operation and the work of other streams that must finish before it may start (only the legacy default stream
    // causes these).
    struct Queued {
        host::Operation operation;
        std::vector<std::pair<std::shared_ptr<StreamProgress>, std::uint64_t>> after;
        std::uint64_t opened = 0;   // number of the opening in which its memory was opened
    };
    std::shared_ptr<StreamProgress> progress;
    std::deque<Queued> queue;
    unsigned flags = 0;
    int priority = 0;
    int clock = 0;   // number in the race detector

    bool blocking() const { return !(flags & cudaStreamNonBlocking); }
};

struct CUevent_st {
    // One cudaEventRecord. Waits refer to the record they saw, not to the event, which may be recorded again.
    struct Record {
        std::shared_ptr<StreamProgress> stream;
        std::uint64_t ticket = 0;   // finished once the stream has done this many operations
        std::uint64_t number = 0;
        std::chrono::steady_clock::time_point time;
        host::Clock clock;

        bool finished() const { return stream->done >= ticket; }
    };
    std::shared_ptr<Record> record;   // null until recorded
    unsigned flags = 0;
};

namespace host {

class Device {
public:
    // `dry`: requests are recorded and not performed, every wait returns at once, and memory is addresses only.
    explicit Device(bool dry = false);
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    std::recursive_mutex mutex;
    Memory memory;
    Races races;
    Recorder* recorder = nullptr;

    // ---- streams and events; all of these expect `mutex` to be held
    CUstream_st* find(cudaStream_t stream);   // null if there is no such stream
    CUevent_st* find(cudaEvent_t event);
    CUstream_st* create_stream(unsigned flags, int priority);
    void destroy_stream(CUstream_st* stream);
    CUevent_st* create_event(unsigned flags);
    void destroy_event(CUevent_st* event);
    const std::vector<std::unique_ptr<CUstream_st>>& streams() const { return streams_; }

    cudaError_t enqueue(CUstream_st& stream, Operation operation);
    cudaError_t record_event(CUevent_st& event, CUstream_st& stream, const char* file, int line);
    cudaError_t wait_in_stream(CUstream_st& stream, CUevent_st& event, const char* file, int line);

    // ---- waiting: performs queued operations until the condition holds, the device faults, or nothing moves
    cudaError_t wait_for(CUstream_st& stream);
    cudaError_t wait_for(const CUevent_st::Record& record);
    cudaError_t wait_for_all();
    // Perform the same work, but the host may conclude nothing from it: for calls that need not wait on a GPU.
    cudaError_t perform(CUstream_st& stream);
    cudaError_t perform_all();
    void poll();   // performs one round, for queries: a program that polls makes progress too

    // Returns an error if the runtime may not be called now: inside an operation, or after a fault.
    cudaError_t usable();
    bool idle() const;
    void note_progress() { moved_ = true; }
    void close_memory();   // closes memory to host code during a wait; operations open what they touch again

    // Returns the first queued operation that touches the range, and its stream's number; null if there is none.
    const Operation* queued_on(const void* begin, std::size_t bytes, int* stream) const;

    // ---- the fault
    cudaError_t fault() const { return fault_.load(std::memory_order_acquire); }
    std::string fault_message() const;
    void report_fault(cudaError_t error, std::string message);
    std::string take_fault();

private:
    struct CloseOpened;
    template <class Done>
    cudaError_t run_until(Done done);
    bool advance();
    bool advance(CUstream_st& stream);
    bool run_step(CUstream_st::Queued& queued);
    void open_for(CUstream_st::Queued& queued);
    void close_opened();
    cudaError_t push(CUstream_st& stream, Operation operation, const Operation** in_queue = nullptr);
    void drop_queued();
    std::string standstill() const;

    const bool dry_;
    std::vector<std::unique_ptr<CUstream_st>> streams_;   // [0] is the legacy default stream
    std::vector<std::unique_ptr<CUevent_st>> events_;
    std::uint64_t records_ = 0;
    int streams_created_ = 0;
    std::uint64_t random_ = 0;
    std::uint64_t random_seed_ = 0;
    bool in_step_ = false;
    bool opened_all_ = false;     // all memory was opened since a wait began
    std::uint64_t opening_ = 1;   // an opening ends with the wait, or when host code comes between
    bool moved_ = false;

    mutable std::mutex fault_mutex_;
    std::atomic<cudaError_t> fault_ = cudaSuccess;   // written with fault_mutex_ held
    std::string fault_message_;
    int fault_reports_ = 0;
};

// Returns the device of the calling thread.
Device& device();

// Binds a device to the calling thread while the object lives.
class BindDevice {
public:
    explicit BindDevice(Device& device);
    ~BindDevice();
    BindDevice(const BindDevice&) = delete;
    BindDevice& operator=(const BindDevice&) = delete;

private:
    Device* previous_;
};

// ---- errors that are not faults: kept per thread for cudaGetLastError, with a text that cudaGetErrorString adds
cudaError_t fail(cudaError_t error, std::string detail = "");
inline cudaError_t pass_on(cudaError_t error) { return error == cudaSuccess ? error : fail(error); }

// Returns "train_gpt.cu:12", or "an unknown place" if the place is unknown.
std::string place(const char* file, int line);

}   // namespace host
