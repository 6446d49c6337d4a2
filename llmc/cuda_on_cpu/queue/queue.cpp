#include "llmc/cuda_on_cpu/queue/queue.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/rng.h"
#include "llmc/cuda_on_cpu/checks/checks.h"
#include "llmc/cuda_on_cpu/memory/fault.h"
#include "llmc/cuda_on_cpu/queue/device.h"

namespace host {
namespace {

using SteadyClock = std::chrono::steady_clock;

thread_local Device* bound_device = nullptr;

// Waits a little longer each time nothing moved: first by yielding, then by sleeping.
void rest(int idle_rounds) {
    if (idle_rounds < 64)
        sched_yield();
    else
        usleep(idle_rounds < 1024 ? 20 : 200);
}

}   // namespace

Device& device() {
    if (bound_device) return *bound_device;
    static Device* first = new Device;   // never destroyed: statics of the program may hold its memory
    return *first;
}

BindDevice::BindDevice(Device& device) : previous_(bound_device) { bound_device = &device; }
BindDevice::~BindDevice() { bound_device = previous_; }

Device::Device(bool dry) : memory(dry), dry_(dry) { create_stream(cudaStreamDefault, 0); }
Device::~Device() = default;

// ---------------------------------------------------------------------------------------------------------------------
// Streams and events

CUstream_st* Device::find(cudaStream_t stream) {
    if (stream == nullptr || stream == cudaStreamLegacy) return streams_[0].get();
    for (auto& known : streams_)
        if (known.get() == stream) return stream;
    return nullptr;
}

CUevent_st* Device::find(cudaEvent_t event) {
    for (auto& known : events_)
        if (known.get() == event) return event;
    return nullptr;
}

CUstream_st* Device::create_stream(unsigned flags, int priority) {
    auto stream = std::make_unique<CUstream_st>();
    stream->progress = std::make_shared<StreamProgress>();
    stream->progress->id = streams_created_++;
    stream->flags = flags;
    stream->priority = priority;
    stream->clock = races.open_stream(stream->progress->id);
    streams_.push_back(std::move(stream));
    return streams_.back().get();
}

void Device::destroy_stream(CUstream_st* stream) {
    races.close_stream(stream->clock);
    std::erase_if(streams_, [&](const auto& known) { return known.get() == stream; });
}

CUevent_st* Device::create_event(unsigned flags) {
    events_.push_back(std::make_unique<CUevent_st>());
    events_.back()->flags = flags;
    return events_.back().get();
}

void Device::destroy_event(CUevent_st* event) {
    std::erase_if(events_, [&](const auto& known) { return known.get() == event; });
}

cudaError_t Device::enqueue(CUstream_st& stream, Operation operation) {
    if (dry_) {
        if (recorder) recorder->operation(stream.progress->id, operation);
        return usable();
    }
    const Operation* queued = nullptr;
    cudaError_t error = push(stream, std::move(operation), &queued);
    if (error == cudaSuccess && recorder) recorder->operation(stream.progress->id, *queued);
    return error;
}

cudaError_t Device::push(CUstream_st& stream, Operation operation, const Operation** in_queue) {
    if (cudaError_t error = usable(); error != cudaSuccess || dry_) return error;
    if (stream.queue.size() >= queue_limit) {
        cudaError_t error = run_until([&] { return stream.queue.size() <= queue_limit / 2; });
        if (error != cudaSuccess) return error;
    }
    // The legacy default stream and the blocking ones wait for each other's earlier work.
    CUstream_st& legacy = *streams_[0];
    CUstream_st::Queued queued{std::move(operation), {}};
    auto order_after = [&](CUstream_st& other) {
        if (other.progress->done < other.progress->enqueued)
            queued.after.emplace_back(other.progress, other.progress->enqueued);
        if (checks().races) races.stream_waits(stream.clock, races.clock(other.clock));
    };
    if (&stream == &legacy) {
        for (auto& other : streams_)
            if (other.get() != &legacy && other->blocking()) order_after(*other);
    } else if (stream.blocking() && legacy.progress->enqueued > 0) {
        order_after(legacy);
    }
    if (checks().races)
        if (auto race = races.operation(stream.clock, queued.operation)) {
            report_fault(cudaErrorLaunchFailure, *race);
            drop_queued();
            return fault();
        }
    stream.progress->enqueued++;
    stream.queue.push_back(std::move(queued));
    if (in_queue) *in_queue = &stream.queue.back().operation;
    return cudaSuccess;
}

cudaError_t Device::record_event(CUevent_st& event, CUstream_st& stream, const char* file, int line) {
    auto record = std::make_shared<CUevent_st::Record>();
    Operation operation{"cudaEventRecord", file, line, {}, {}, {}, {}, Touches::nothing};
    operation.step = [record] {
        record->time = SteadyClock::now();
        return true;
    };
    if (cudaError_t error = push(stream, std::move(operation)); error != cudaSuccess) return error;
    record->stream = stream.progress;
    record->ticket = stream.progress->enqueued;
    record->number = ++records_;
    if (checks().races) record->clock = races.clock(stream.clock);
    event.record = record;
    if (recorder) recorder->event_recorded(stream.progress->id, record->number);
    return cudaSuccess;
}

cudaError_t Device::wait_in_stream(CUstream_st& stream, CUevent_st& event, const char* file, int line) {
    auto record = event.record;
    if (!record) return cudaSuccess;   // as in CUDA, an event never recorded is complete
    Operation operation{"cudaStreamWaitEvent", file, line, {}, {}, {}, {}, Touches::nothing};
    operation.step = [record] { return record->finished(); };
    operation.waiting = [record] { return text("waits for an event recorded in stream ", record->stream->id); };
    if (cudaError_t error = push(stream, std::move(operation)); error != cudaSuccess) return error;
    if (checks().races) races.stream_waits(stream.clock, record->clock);
    if (recorder) recorder->event_awaited(stream.progress->id, record->number);
    return cudaSuccess;
}

const Operation* Device::queued_on(const void* begin, std::size_t bytes, int* stream_id) const {
    const auto first = reinterpret_cast<std::uintptr_t>(begin);
    for (const auto& stream : streams_)
        for (const auto& queued : stream->queue)
            for (const Access& access : queued.operation.accesses) {
                const auto start = reinterpret_cast<std::uintptr_t>(access.begin);
                if (start < first + bytes && first < start + access.bytes) {
                    *stream_id = stream->progress->id;
                    return &queued.operation;
                }
            }
    return nullptr;
}

// ---------------------------------------------------------------------------------------------------------------------
// Performing what is queued

bool Device::idle() const {
    return std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream->queue.empty(); });
}

cudaError_t Device::usable() {
    if (in_step_) return fail(cudaErrorNotPermitted, "a runtime call inside a queued operation or host function");
    return fault();
}

// Runs a step of the head of one stream. Returns true if the head finished.
bool Device::advance(CUstream_st& stream) {
    if (stream.queue.empty()) return false;
    CUstream_st::Queued& head = stream.queue.front();
    for (const auto& [other, ticket] : head.after)
        if (other->done < ticket) return false;
    if (!run_step(head)) return false;
    stream.queue.pop_front();
    stream.progress->done++;
    return true;
}

// Opens the memory that an operation touches, until the wait ends. Most waits are for one copy, which touches little:
// opening all memory took a fifth of the time of tests of many ranks.
void Device::open_for(CUstream_st::Queued& queued) {
    const Operation& operation = queued.operation;
    if (memory.is_open() || operation.touches == Touches::nothing || queued.opened == opening_) return;
    queued.opened = opening_;
    if (operation.touches == Touches::anything) {
        memory.open();
        opened_all_ = true;
        return;
    }
    for (const Access& access : operation.accesses)
        if (memory.owns(access.begin)) memory.open_range(access.begin, access.bytes);
}

void Device::close_memory() {
    memory.restore_open_count(0);
    memory.close_ranges();
    opening_++;
}

void Device::close_opened() {
    if (std::exchange(opened_all_, false)) memory.close();
    memory.close_ranges();
    opening_++;
}

// Runs one step. With the memory check on, a fault inside the step ends the step and becomes the device's; else it ends
// the process.
bool Device::run_step(CUstream_st::Queued& queued) {
    Operation& operation = queued.operation;
    auto fault_of_operation = [&](cudaError_t error, const std::string& message) {
        report_fault(error, text("'", operation.name, "' (", place(operation.file, operation.line), "): ", message));
    };
    open_for(queued);
    const int open_count = memory.open_count();   // a host function closes memory meanwhile
    in_step_ = true;
    bool finished = true;
    try {
        std::string message;
        if (!checks().memory) {
            finished = operation.step();
        } else if (!run_guarded(operation.step, &finished, &message)) {
            fault_of_operation(cudaErrorIllegalAddress, message);
        }
    } catch (const std::exception& exception) {   // a GPU has no exceptions: the waiting call returns an error
        const bool no_memory = dynamic_cast<const std::bad_alloc*>(&exception) != nullptr;
        const bool no_thread = dynamic_cast<const std::system_error*>(&exception) != nullptr;
        fault_of_operation(no_memory   ? cudaErrorMemoryAllocation
                           : no_thread ? cudaErrorOperatingSystem
                                       : cudaErrorUnknown,
                           exception.what());
    }
    in_step_ = false;
    if (memory.open_count() != open_count) memory.restore_open_count(open_count);
    return finished;
}

// Does one round over all streams: one operation each; with random order, some streams get several turns and some none.
bool Device::advance() {
    if (!checks().random_order) {
        bool any = false;
        for (std::size_t i = 0; i < streams_.size(); i++) any |= advance(*streams_[i]);
        return any;
    }
    if (random_seed_ != checks().order_seed) random_ = random_seed_ = checks().order_seed;
    const std::size_t count = streams_.size();
    const std::uint64_t draw = random_ = mix64(random_);
    // Starts anywhere; the first stream that can move gets up to four turns, and ends the round three times in four.
    for (std::size_t i = 0; i < count; i++) {
        CUstream_st& stream = *streams_[(draw % count + i) % count];
        if (!advance(stream)) continue;
        for (std::uint64_t turns = (draw >> 32) % 4; turns > 0 && advance(stream); turns--) {
        }
        return true;
    }
    return false;
}

// Closes the memory that operations have opened.
struct Device::CloseOpened {
    Device& device;
    ~CloseOpened() { device.close_opened(); }
};

template <class Done>
cudaError_t Device::run_until(Done done) {
    if (cudaError_t error = usable(); error != cudaSuccess) return error;
    if (done()) return cudaSuccess;
    prepare_thread_for_faults();
    const CloseOpened at_the_end{*this};
    int idle_rounds = 0;
    SteadyClock::time_point still_since;
    while (fault() == cudaSuccess && !done()) {
        moved_ = false;
        if (advance() || moved_) {
            idle_rounds = 0;
            continue;
        }
        if (idle_rounds++ == 0) still_since = SteadyClock::now();
        const std::chrono::duration<double> still = SteadyClock::now() - still_since;
        if (still.count() > checks().no_progress_seconds) {
            report_fault(cudaErrorLaunchTimeout, standstill());
            break;
        }
        mutex.unlock();   // other threads may add the awaited work
        rest(idle_rounds);
        mutex.lock();
    }
    if (fault() != cudaSuccess) drop_queued();
    return fault();
}

cudaError_t Device::perform(CUstream_st& stream) {
    const std::uint64_t ticket = stream.progress->enqueued;
    auto progress = stream.progress;   // another thread may destroy the stream meanwhile
    return run_until([&] { return progress->done >= ticket; });
}

cudaError_t Device::perform_all() {
    return run_until([&] { return idle(); });
}

void Device::poll() {
    const CloseOpened at_the_end{*this};
    prepare_thread_for_faults();
    advance();
    if (fault() != cudaSuccess) drop_queued();
}

cudaError_t Device::wait_for(CUstream_st& stream) {
    const int id = stream.progress->id;
    const Clock clock = checks().races ? races.clock(stream.clock) : Clock{};
    if (cudaError_t error = perform(stream); error != cudaSuccess) return error;
    races.host_waited(clock);
    if (recorder) recorder->host_waited_for_stream(id);
    return cudaSuccess;
}

cudaError_t Device::wait_for(const CUevent_st::Record& record) {
    if (cudaError_t error = run_until([&] { return record.finished(); }); error != cudaSuccess) return error;
    races.host_waited(record.clock);
    if (recorder) recorder->host_waited_for_event(record.number);
    return cudaSuccess;
}

cudaError_t Device::wait_for_all() {
    OpenMemory open(memory);   // opened once, for the work and for the check of bytes around allocations
    if (cudaError_t error = perform_all(); error != cudaSuccess) return error;
    if (checks().races) races.host_waited_for_all();
    if (recorder)
        for (auto& stream : streams_) recorder->host_waited_for_stream(stream->progress->id);
    if (checks().memory)
        if (auto damage = memory.damage()) report_fault(cudaErrorIllegalAddress, *damage);
    return fault();
}

void Device::drop_queued() {
    for (auto& stream : streams_) {
        stream->queue.clear();
        stream->progress->done = stream->progress->enqueued;
    }
    races.host_waited_for_all();
}

std::string Device::standstill() const {
    std::string message = text("no queue moved for ", checks().no_progress_seconds, " seconds; their heads:");
    for (const auto& stream : streams_) {
        if (stream->queue.empty()) continue;
        const CUstream_st::Queued& head = stream->queue.front();
        message += text("\n  stream ", stream->progress->id, ": '", head.operation.name, "' (",
                        place(head.operation.file, head.operation.line), "), ", stream->queue.size(), " queued");
        if (head.operation.waiting) message += ", " + head.operation.waiting();
        for (const auto& [other, ticket] : head.after)
            if (other->done < ticket) message += text(", waits for stream ", other->id);
    }
    return message;
}

// ---------------------------------------------------------------------------------------------------------------------
// Faults

std::string Device::fault_message() const {
    std::lock_guard lock(fault_mutex_);
    return fault_message_;
}

void Device::report_fault(cudaError_t error, std::string message) {
    constexpr int most_reports = 8;
    std::lock_guard lock(fault_mutex_);
    if (fault_ == cudaSuccess) {
        fault_ = error;
        fault_message_ = std::move(message);
        fault_reports_ = 1;
    } else if (fault_reports_++ < most_reports) {
        fault_message_ += "\nand then: " + message;
    }
}

std::string Device::take_fault() {
    if (fault() != cudaSuccess) drop_queued();
    std::lock_guard lock(fault_mutex_);
    fault_ = cudaSuccess;
    return std::exchange(fault_message_, "");
}

// ---------------------------------------------------------------------------------------------------------------------
// The interface of queue.h

cudaError_t enqueue(cudaStream_t stream, Operation operation) {
    Device& device = host::device();
    std::lock_guard lock(device.mutex);
    CUstream_st* found = device.find(stream);
    if (!found) return fail(cudaErrorInvalidResourceHandle, "no such stream, or it has been destroyed");
    return pass_on(device.enqueue(*found, std::move(operation)));
}

void note_progress() { device().note_progress(); }
void report_fault(cudaError_t error, std::string message) { device().report_fault(error, std::move(message)); }
std::string last_fault() { return device().fault_message(); }

std::string take_fault() {
    std::lock_guard lock(device().mutex);
    return device().take_fault();
}

void set_recorder(Recorder* recorder) {
    std::lock_guard lock(device().mutex);
    device().recorder = recorder;
}

}   // namespace host
