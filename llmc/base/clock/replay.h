// A graph of moments, built once from recordings, through which time can pass several times: with all costs, or without
// those of some exchanges. What `replay` (step_graph.h) does for one pass.
#pragma once

#include <map>
#include <unordered_map>

#include "llmc/base/clock/step_graph.h"

namespace virtual_clock {

// What costs nothing in one pass.
struct FreeExchanges {
    std::function<bool(const RecordedStep&)> is_free;   // none: all cost what they cost
    bool slow_nothing = false;                          // work beside communication has the whole device
};

// When everything happened, in seconds from the beginning.
struct Times {
    double seconds = 0;                            // until the last operation ends and the last host goes on
    std::vector<double> begin, active, end;        // of each operation, as in a Span
    std::vector<std::vector<double>> host_waits;   // by rank: when the host went on after each of its waits
};

class Replay {
public:
    struct Operation {
        int rank;
        const RecordedStep* step;
    };

    // Both must outlive it. Operations are those of the recordings, rank by rank, in their order.
    Replay(const std::vector<Recording>& ranks, const CostModel& costs);

    const std::vector<Operation>& operations() const { return operations_; }

    // Error(bug) naming an operation of each rank that can never run.
    Times run(const FreeExchanges& free = {}) const;

private:
    // Something that happens at a time: no earlier than all before it, and done `duration` later.
    struct Moment {
        double duration = 0;
        int rank = 0;
        int missing = 0;           // moments before it
        int multiprocessors = 0;   // that communication takes from then on, or gives back (negative)
        int exchange = -1;         // that happens then
        bool slowed = false;       // by communication beside it
    };
    // An operation, by the moments of its life.
    struct Life {
        int start = -1, finish = -1;
        int first_side = 0, sides = 0;   // of its exchanges
    };
    // An operation's part in an exchange.
    struct Side {
        int operation, exchange;
        bool sends, receives;
    };
    struct Rendezvous {
        int moment = -1, expected = 0;
        bool between_nodes = false;
        std::vector<int> sides;   // that have come
    };
    // Bytes of all exchanges of one operation, which share its rank's link; [between nodes].
    struct Load {
        double out[2] = {0, 0}, in[2] = {0, 0};
    };
    // What must have happened before whatever comes next: few moments, none of them twice.
    struct Before {
        int count = 0;
        int moments[4];
    };
    class Pass;

    Moment& at(int moment) { return moments_[static_cast<std::size_t>(moment)]; }
    const Moment& at(int moment) const { return moments_[static_cast<std::size_t>(moment)]; }
    int add_moment(double duration, int rank);
    int add_moment(double duration, int rank, const Before& before);
    void order(int first, int second) { edges_.emplace_back(first, second); }
    void add(Before& before, int moment, int rank);
    void add(Before& before, const Before& others, int rank);
    void add_rank(int rank, const Recording& recording);
    int add_operation(int rank, const RecordedStep& step, const Before& before);
    void add_exchanges(int rank, const RecordedStep& step, int launched, int finish);
    void settle_exchanges();
    void settle_edges();
    double compute_seconds(const RecordedStep& step) const;
    int node_of(const Side& side) const;
    double exchange_seconds(const Rendezvous& exchange, const std::vector<char>& free) const;
    void check_all_happened(const std::vector<int>& missing) const;   // of moments

    const CostModel& costs_;
    int ranks_ = 0;
    std::vector<Moment> moments_;
    std::vector<std::pair<int, int>> edges_;   // while it is built; then:
    std::vector<int> first_after_, after_;     // moments that wait for each
    std::vector<Operation> operations_;
    std::vector<Life> lives_;
    std::vector<Load> loads_;   // of each operation
    std::vector<Side> sides_;
    std::vector<Rendezvous> exchanges_;
    std::unordered_map<std::uint64_t, int> exchange_of_;   // by key
    std::map<std::uint64_t, int> latest_of_;               // communicator, of the rank at hand: its latest finish
    std::vector<std::vector<int>> host_waits_;
};

}   // namespace virtual_clock
