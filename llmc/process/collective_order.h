// Debug mode (--check-collectives): do all ranks call their collectives in the same order?
//
// A pair of ranks must agree on every collective that both take part in, whatever the communicator: in one communicator
// another order is another operation, and in two that run concurrently, opposite orders can deadlock on GPUs (each
// waits for room the other holds), though they never do with the stand-in, so only a check of the order finds them.
// Sends and receives are left out: they concern their two ends alone, and inside a group have no order.
//
// Every rank logs its calls (CollectiveLog); the watchdog brings the logs to rank 0, which compares them there
// (CollectiveOrder), so the difference is named even when the collectives themselves never finish.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

struct CollectiveRecord {
    std::vector<int> members;   // world ranks of the communicator
    std::string what;           // "all-reduce of 1024 fp32, sum"
    std::string where;          // "number 17 of group zero"
};

// What this rank has called and not told yet. From any thread.
class CollectiveLog {
public:
    void add(CollectiveRecord record);
    // All records as one text, which are then forgotten; empty: none.
    std::string take();
    static std::vector<CollectiveRecord> parse(const std::string& taken);

private:
    std::mutex mutex_;
    std::string text_;
};

class CollectiveOrder {
public:
    // The next collective of `rank`. Returns the first difference between two ranks, in words, once there is one.
    std::optional<std::string> add(int rank, const CollectiveRecord& record);

private:
    // Of the pair (first, second): what `first` has called with both as members and `second` has not confirmed yet.
    std::map<std::pair<int, int>, std::deque<CollectiveRecord>> open_;
};
