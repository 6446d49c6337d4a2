// The graph of the operations that ranks give to their devices, and its replay on a virtual clock.
//
// A graph holds the order that a program imposes: streams, events, waits of the host, and exchanges between ranks. The
// stand-in records it (llmc/cuda_on_cpu/clock/record.h), also for a step that is not run (llmc/plan/step_recording.h).
// The replay gives every operation a duration by formula and finds when each would run: the longest path through that
// order.
//
// The model of a device: a stream is busy with one operation at a time; operations of different streams do not slow
// each other down, but for links and multiprocessors. The legacy default stream counts as one of the non-blocking ones
// (the program does not use it).
//
// The model of multiprocessors: NCCL's kernels keep some for themselves from their launch until they end, also while
// they wait for peers; a launch waits for its stream and for the communicator's earlier operation. Other work that runs
// meanwhile takes (all / those left) times as long.
//
// The model of communication: an exchange between ranks begins when all of them have reached it, and ends for all at
// once. As with NCCL, the operations of one communicator run one after another, in the order in which the host launched
// them, whatever their streams. Every rank has two links, one inside its node and one to other nodes, each with two
// directions, out and in. A direction carries one byte at a time: operations take turns on it, in the order in which
// they are ready. The exchanges of one operation (a group) share it, so that each of them lasts as long as all their
// bytes in that direction. An exchange between ranks of several nodes uses the links between nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace virtual_clock {

// A rendezvous with other ranks within an operation: it begins when all of them have come.
struct Exchange {
    std::uint64_t key;   // unique to this exchange and equal on every rank that takes part
    int ranks;           // number that take part
    double sends = 0;    // bytes, from this rank
    double receives = 0;
    bool between_nodes = false;   // some rank that takes part is on another node, also where that rank is not replayed
};

// The cost of an operation, for replays on a virtual clock (record.h). All members are optional.
struct Work {
    double flops = 0;
    double bytes = 0;   // bytes of device memory moved; 0: the sum of the declared accesses
    std::vector<Exchange> exchanges;
    int multiprocessors = 0;   // kept busy while the exchanges run or wait for their peers; 0: not known
};

struct RecordedStep {
    enum class Kind { operation, event_recorded, event_awaited, host_waited_for_stream, host_waited_for_event };
    Kind kind;
    int stream = 0;             // number that Recorder gave it; unused if the host waits for an event
    std::uint64_t record = 0;   // the event's number; unused by other kinds
    std::string name;           // set only for an operation, as are the members below
    const char* file = "";
    int line = 0;
    Work work;   // with bytes filled in from the declared accesses
};
using Recording = std::vector<RecordedStep>;

// Returns the communicator, which is in the upper bits of an exchange's key; 0: none, so its operations wait for no
// others.
constexpr int communicator_shift = 48;
constexpr std::uint64_t communicator_of(std::uint64_t key) { return key >> communicator_shift; }

// The speeds of a machine. By default nothing takes any time.
struct CostModel {
    double seconds_per_flop = 0;
    double seconds_per_byte = 0;   // per byte of device memory; an operation takes the longer of the two, plus:
    double seconds_per_operation = 0;
    double seconds_per_exchanged_byte = 0;   // on a link inside a node
    double seconds_per_exchanged_byte_between_nodes = 0;
    double seconds_per_exchange = 0;
    int multiprocessors = 0;               // per device; 0: communication slows nothing down
    int multiprocessors_of_exchange = 0;   // for a communicator without a limit (ncclConfig_t::maxCTAs)
    bool in_launch_order = false;          // an exchange starts on its rank when all launched before have started
    int ranks_per_node = 0;                // rank r is on node r / this; 0: all on one node
    double host_seconds_per_call = 0;      // between the host's calls
    std::function<double(const RecordedStep&)> compute_seconds;    // if set, replaces the first three
    std::function<double(const RecordedStep&)> exchange_seconds;   // if set, replaces seconds_per_exchange

    // Returns this model with the multiprocessors of an H100, of which communicators without a limit take `taken`
    // (--comm-sms 16; a link of a pipeline takes link_sms(16)).
    CostModel charged(int taken = 16) const {
        CostModel result = *this;
        result.multiprocessors = 132, result.multiprocessors_of_exchange = taken;
        return result;
    }
};

// One operation on the virtual clock; all times in seconds from the beginning.
struct Span {
    int rank;
    int stream;
    std::string name;
    double begin;    // its stream has come to it
    double active;   // its peers have come too, and the links are free; `begin` without exchanges
    double end;
};

struct Timeline {
    std::vector<Span> spans;   // by rank, in the order in which the host launched them
    double seconds = 0;        // until the last operation ends and the last host goes on

    // busy(): seconds in which the stream is active, without its waits for peers. overlap(): the part of them in which
    // the other stream is active too.
    double busy(int rank, int stream) const;
    double overlap(int rank, int stream, int other) const;

    // Returns a line per operation: rank, stream, begin, active, end in microseconds, name.
    std::string table() const;
};

// Replays the recordings of ranks 0, 1, ... together. Throws Error(bug) naming an operation of each rank that can never
// run because its peer never comes, or comes in another order.
Timeline replay(const std::vector<Recording>& ranks, const CostModel& costs);

}   // namespace virtual_clock
