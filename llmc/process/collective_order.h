// Debug mode (--check-collectives): can the communication of all ranks together wait for itself for ever?
//
// NCCL's operations may block a device until all their ranks have come. So the calls of all ranks must form one order
// without cycles, over all communicators: two ranks that call two collectives in opposite orders can deadlock on GPUs,
// and so can four ranks of which each shares only one call with the next (0 waits for 1, 1 for 2, 2 for 3, 3 for 0).
// With the stand-in only calls on one communicator wait for each other, so only a check of the order finds the others.
//
// Sends and receives count as calls of their two ends. Calls of one group (Communicator::Group) start together: they
// have no order among themselves.
//
// Every rank logs its calls (CollectiveLog); the watchdog brings the logs to rank 0, which compares them there
// (CollectiveOrder), so a cycle is named even when the calls themselves never finish.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

struct CollectiveRecord {
    std::vector<int> members;   // world ranks that must come: of the communicator, or the two ends of a transfer
    std::string what;           // "all-reduce of 1024 fp32, sum"
    std::string where;          // "number 17 of group zero": with the members, the same on all ranks and unique
};
using CollectiveEvent = std::vector<CollectiveRecord>;   // calls that start together

// What this rank has called and not told yet. Calls come from the rank's own thread; `take` may come from another one.
class CollectiveLog {
public:
    void add(CollectiveRecord record);
    // Calls from begin_group to its end are one event. Groups may stand inside groups, as in NCCL.
    void begin_group();
    void end_group();
    // All events as one text, which are then forgotten; empty: none.
    std::string take();
    static std::vector<CollectiveEvent> parse(const std::string& taken);

private:
    void write(const CollectiveEvent& event);

    std::mutex mutex_;
    std::string text_;
    int depth_ = 0;
    CollectiveEvent group_;
};

// The ranks as they would run if every device did one event at a time, in the order of its host.
class CollectiveOrder {
public:
    // The next event of `rank`. Returns what is wrong, in words, once something is: two ranks mean different calls, or
    // ranks wait for each other in a cycle.
    std::optional<std::string> add(int rank, CollectiveEvent event);

private:
    struct Call {
        int first;          // the rank that named it first
        std::string what;   // as that rank called it
        std::set<int> members, here;
        std::size_t left;   // members whose event with this call has finished
        bool done() const { return here == members; }
    };
    static std::string key_of(const CollectiveRecord& record);
    Call& call_of(const CollectiveRecord& record) { return calls_.at(key_of(record)); }
    bool finish_front(int rank);
    void advance();
    struct Wait {
        int who, for_whom;
        std::string what;
    };
    bool find_cycle(int rank, std::map<int, bool>& on_path, std::vector<Wait>& path) const;
    std::optional<std::string> cycle() const;

    std::map<std::string, Call> calls_;   // which somebody has called and not everybody has left, by key
    std::map<int, std::deque<CollectiveEvent>> events_;   // of each rank: not finished, oldest first
};
