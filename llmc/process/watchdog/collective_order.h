// Debug mode (--check-collectives): detects deadlocks in the order of all ranks' collectives.
//
// NCCL's operations may block a device until all their ranks have come. So the calls of all ranks must form one order
// without cycles, over all communicators: two ranks that call two collectives in opposite orders can deadlock on GPUs,
// and so can four ranks of which each shares only one call with the next (0 waits for 1, 1 for 2, 2 for 3, 3 for 0).
// With the stand-in only calls on one communicator wait for each other, so only a check of the order finds the others.
//
// Sends and receives count as calls of their two ends. Calls of one group (Communicator::Group) start together: they
// have no order among themselves.
//
// The check is strict: a call counts as one that holds up all later ones of its rank, on other communicators and
// streams too. So it reports programs that usually pass. Where one end of a link sends its next activations and then
// receives gradients (1F1B), and the other sends gradients and then receives activations, both ends must put the two
// calls into one group, though each direction has a communicator of its own.
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

// Collects this rank's calls until they are taken. The rank's own thread adds them; another thread may take them.
class CollectiveLog {
public:
    void add(CollectiveRecord record);
    // Makes all calls between begin_group() and end_group() one event. Groups may stand inside groups, as in NCCL.
    void begin_group();
    void end_group();
    // Returns all events as JSON and forgets them; "": there are none.
    std::string take();
    // Reads a text that take() has returned; none where it is another text.
    static std::optional<std::vector<CollectiveEvent>> parse(const std::string& taken);

private:
    void write(CollectiveEvent event);

    std::mutex mutex_;   // guards events_
    std::vector<CollectiveEvent> events_;
    int depth_ = 0;
    CollectiveEvent group_;
};

// Simulates the ranks as if every device did one event at a time, in the order of its host.
class CollectiveOrder {
public:
    // Adds the next event of `rank`. Returns what is wrong, in words, once something is: two ranks mean different
    // calls, a rank makes one twice, or ranks wait for each other in a cycle. Costs little with many ranks, because
    // only what changes is checked.
    std::optional<std::string> add(int rank, const CollectiveEvent& event);

private:
    struct Call {
        int first;                  // the rank that named it first
        std::string what;           // as that rank called it
        std::string where;          // likewise
        std::set<int> named;        // ranks that have told of it
        std::vector<int> members;   // ranks that must come
        std::set<int> missing;      // members that have not come to it yet
        std::size_t left = 0;       // members whose event with this call has finished
    };
    using Calls = std::map<std::string, Call>;    // by key: members and where
    using Event = std::vector<Calls::iterator>;   // calls that start together

    bool finish_front(int rank);
    std::set<int> advance(int rank);
    struct Wait {
        int who, for_whom;
        std::string what;
    };
    bool find_cycle(int rank, std::map<int, bool>& on_path, std::vector<Wait>& path) const;
    std::optional<std::string> cycle(const std::set<int>& among) const;

    Calls calls_;                               // calls that a rank has told of and not every member has finished
    std::map<int, std::deque<Event>> events_;   // events of each rank that have not finished, oldest first
};
