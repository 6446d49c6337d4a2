// Finds operations that touch the same bytes, at least one of them writing, without an order between them.
//
// Uses vector clocks (Lamport; Mattern, "Virtual time and global states of distributed systems", 1988) over streams: a
// clock says for each stream up to which of its operations everything is known to have happened. Recording an event
// copies the clock of its stream, waiting for it joins that into another stream's; a host that waits joins it into its
// own clock, which every later operation inherits. Two operations are ordered exactly if the later one's clock contains
// the earlier one. The verdict depends on the program's requests, never on the interleaving of this run.
//
// Only declared accesses are seen (queue.h); the host's own accesses to pinned memory are not.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/cuda_on_cpu/queue/queue.h"

namespace host {

// [stream number] -> operations of that stream known to have happened. Missing entries are zero.
using Clock = std::vector<std::uint64_t>;
void join(Clock& into, const Clock& from);

class Races {
public:
    int open_stream(int id);   // returns its number for the calls below; `id` is for messages
    void close_stream(int stream);

    // Checks one operation against all before it, in program order. Returns a message if it races with one of them.
    std::optional<std::string> operation(int stream, const Operation& operation);

    const Clock& clock(int stream) const { return streams_[static_cast<std::size_t>(stream)].clock; }
    void stream_waits(int stream, const Clock& clock) { join(streams_[static_cast<std::size_t>(stream)].clock, clock); }
    void host_waited(const Clock& clock) { join(host_, clock); }
    void host_waited_for_all();                          // orders all earlier work before all later work
    void forget(const void* begin, std::size_t bytes);   // drops freed memory
    std::size_t segments() const { return segments_.size(); }

private:
    struct Stream {
        int id = 0;
        bool open = false;
        Clock clock;   // its own entry is the number of operations it has been given
    };
    // An operation that touched a segment. Each operation's name is kept once.
    struct Label {
        std::string name;
        const char* file;
        int line;
        int id;
    };
    struct Touch {
        int stream = -1;
        std::uint64_t tick = 0;
        std::shared_ptr<const Label> label;
    };
    struct Segment {
        std::uintptr_t end;
        Touch writer;                 // the last one
        std::vector<Touch> readers;   // the last one of each stream since then
    };
    using Segments = std::map<std::uintptr_t, Segment>;

    bool ordered(const Touch& touch, const Clock& clock) const;
    Segments::iterator split(std::uintptr_t at);
    std::optional<std::string> touch(const Access& access, const Touch& touch, const Clock& clock);
    std::string message(const Touch& first, bool first_writes, const Touch& second, bool second_writes,
                        std::uintptr_t begin, std::uintptr_t end) const;
    void prune();

    std::vector<Stream> streams_;
    Clock host_;
    Segments segments_;   // disjoint
    std::size_t prune_at_ = 4096;
};

}   // namespace host
