// The graph of what ranks ask of their devices, and its replay on a virtual clock.
//
// A graph holds the order that a program imposes: streams, events, what the host waits for, and which operations of
// different ranks meet. The stand-in records one (llmc/cuda_on_cpu/clock/record.h), also of a step that is not run
// (dry_run.h). The replay gives every operation a duration by formula and finds when each would run: the longest path
// through that order.
//
// The model of a device: a stream is busy with one operation at a time; operations of different streams do not slow
// each other down, but for links and multiprocessors. The legacy default stream counts as one of the non-blocking ones
// (the program does not use it).
//
// The model of multiprocessors: NCCL's kernels keep some for themselves from their launch until they end, also while
// they wait for peers; a launch waits for its stream and for the communicator's earlier operation. Whatever else runs
// then takes (all / what is left) times as long.
//
// The model of communication: an exchange between ranks begins when all of them have reached it, and ends for all at
// once. As with NCCL, the operations of one communicator run one after another, in the order in which the host asked
// for them, whatever their streams. Every rank has two links, one inside its node and one to other nodes, each with a
// way out and a way in. A way carries one byte at a time: operations take turns on it, in the order in which they are
// ready, and the exchanges of one operation (a group) share it, so that each of them lasts as long as all their bytes
// on that way. An exchange of ranks on several nodes goes by the links between nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace virtual_clock {

// A rendezvous with other ranks within an operation: it begins when all of them have come.
struct Exchange {
    std::uint64_t key;   // the same on every rank that takes part, and on no other exchange
    int ranks;           // how many take part
    double sends = 0;    // bytes of this rank
    double receives = 0;
    bool between_nodes = false;   // some who take part are on another node, also where these are not replayed
};

// What an operation costs, for replays on a virtual clock (record.h). All optional.
struct Work {
    double flops = 0;
    double bytes = 0;   // of device memory moved; 0: the sum of the declared accesses
    std::vector<Exchange> exchanges;
    int multiprocessors = 0;   // that exchanges keep busy while they go on, or wait for their peers; 0: not said
};

struct RecordedStep {
    enum class Kind { operation, event_recorded, event_awaited, host_waited_for_stream, host_waited_for_event };
    Kind kind;
    int stream = 0;             // as Recorder counts them; unused where the host waits for an event
    std::uint64_t record = 0;   // of an event; unused by others
    std::string name;           // of an operation, as what follows
    const char* file = "";
    int line = 0;
    Work work;   // with bytes filled in from the declared accesses
};
using Recording = std::vector<RecordedStep>;

// The communicator that an exchange's key names in its upper bits; 0: none, so its operations wait for no others.
constexpr int communicator_shift = 48;
constexpr std::uint64_t communicator_of(std::uint64_t key) { return key >> communicator_shift; }

// What things cost. The default is a machine on which nothing takes any time.
struct CostModel {
    double seconds_per_flop = 0;
    double seconds_per_byte = 0;   // of device memory; an operation takes the longer of the two, plus:
    double seconds_per_operation = 0;
    double seconds_per_exchanged_byte = 0;   // on a link inside a node
    double seconds_per_exchanged_byte_between_nodes = 0;
    double seconds_per_exchange = 0;
    int multiprocessors = 0;               // of a device; 0: communication slows nothing down
    int multiprocessors_of_exchange = 0;   // of a communicator that has no limit (ncclConfig_t::maxCTAs)
    int ranks_per_node = 0;                // rank r is on node r / this; 0: all on one node
    double host_seconds_per_call = 0;      // between the host's calls
    std::function<double(const RecordedStep&)> compute_seconds;    // if set, replaces the first three
    std::function<double(const RecordedStep&)> exchange_seconds;   // if set, replaces seconds_per_exchange

    // The same on an H100, whose communicators take --comm-sms 16 where they have no limit of their own.
    CostModel charged() const {
        CostModel result = *this;
        result.multiprocessors = 132, result.multiprocessors_of_exchange = 16;
        return result;
    }
};

// One operation on the virtual clock; all times in seconds from the beginning.
struct Span {
    int rank;
    int stream;
    std::string name;
    double begin;    // its stream had come to it
    double active;   // and everyone it meets had come too, and links were free; as `begin` where it exchanges nothing
    double end;
};

struct Timeline {
    std::vector<Span> spans;   // by rank, in the order the host asked for them
    double seconds = 0;        // until the last operation ends and the last host goes on

    // Seconds in which the stream is active (waiting for peers is not); the part of these in which the other one is
    // too.
    double busy(int rank, int stream) const;
    double overlap(int rank, int stream, int other) const;

    // A line per operation: rank, stream, begin, active, end in microseconds, name.
    std::string table() const;
};

// Replays the recordings of ranks 0, 1, ... together. Throws Error(bug) naming an operation of each rank that can never
// run because whom it would meet does not come, or comes in another order.
Timeline replay(const std::vector<Recording>& ranks, const CostModel& costs);

}   // namespace virtual_clock
