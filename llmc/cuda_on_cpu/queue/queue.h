// Streams as deferred, in-order queues: all work reaches the stand-in's device through them.
//
// Kernel launches, copies, library calls and collectives are each an Operation given to `enqueue`, which only stores
// it. Operations are performed while the host waits, one stream's head after another's, each stream in its own order.
// An operation is a step that is called until it returns that it has finished, so it may also be an exchange with a
// peer.
//
// What must hold: a step never waits itself (it returns false and is called again), never calls the runtime, and
// touches only memory that stays valid until it has finished.
#pragma once

#include <driver_types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llmc/base/clock/step_graph.h"

namespace host {

// A range of memory that an operation reads or writes, for the race detector.
struct Access {
    const void* begin;
    std::size_t bytes;
    bool write;
};

using virtual_clock::Exchange;
using virtual_clock::Work;

// Device memory that a step may touch. With the memory check on, only that memory is open.
enum class Touches {
    anything,
    declared,   // only `accesses`, which must then be complete
    nothing,    // the step is host code, or empty
};

struct Operation {
    std::string name;        // kernel or call, as a person would name it
    const char* file = "";   // call site in the program; must live as long as the program
    int line = 0;
    std::vector<Access> accesses;           // optional; an operation that declares none is not checked for races
    std::function<bool()> step;             // does some work; true when finished, polled until then
    std::function<std::string()> waiting;   // optional: "waits for ...", shown when nothing moves
    Work work;                              // optional
    Touches touches = Touches::anything;
};

// Adds an operation to the end of a stream (null: the legacy default stream). Returns cudaErrorInvalidResourceHandle
// for a stream that does not exist, the sticky error if the device has faulted, cudaErrorNotPermitted inside an
// operation. When a stream holds `queue_limit` operations, this waits until some are done, as a GPU's launch does.
cudaError_t enqueue(cudaStream_t stream, Operation operation);
inline constexpr std::size_t queue_limit = 1024;

// Must be called by an unfinished step that moved something all the same (bytes on a socket), so that it is not taken
// for stuck.
void note_progress();

// ---- faults
// Makes `error` the device's sticky error: work still queued is dropped and every later call returns it. The first
// report is kept as the cause; later ones are added to its message. Called on the thread that runs the step.
void report_fault(cudaError_t error, std::string message);

// Returns the message of the sticky fault, empty if there is none.
std::string last_fault();

// For tests: returns and clears the sticky fault's message; memory, streams and events stay.
std::string take_fault();

// ---- recording

// Receives the host's requests to the device, in their order. This interface serves replays of a program on a virtual
// clock (record.h). Streams are numbered from 0 (the legacy default stream) in the order of their creation, events by
// their records.
class Recorder {
public:
    virtual ~Recorder() = default;
    virtual void operation(int stream, const Operation& operation) = 0;
    virtual void event_recorded(int stream, std::uint64_t record) = 0;
    virtual void event_awaited(int stream, std::uint64_t record) = 0;
    virtual void host_waited_for_stream(int stream) = 0;
    virtual void host_waited_for_event(std::uint64_t record) = 0;
};

// Sets the recorder of this thread's device (null: none). The caller keeps it alive.
void set_recorder(Recorder* recorder);

}   // namespace host
