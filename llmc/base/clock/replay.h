// A graph of moments, built once from recordings. It can be replayed several times: with all costs, or without those of
// some exchanges. replay() (step_graph.h) builds one and replays it once.
#pragma once

#include <map>
#include <unordered_map>

#include "llmc/base/clock/step_graph.h"

namespace virtual_clock {

// Costs that one pass leaves out.
struct FreeExchanges {
    std::function<bool(const RecordedStep&)> is_free;   // empty: all exchanges keep their cost
    bool slow_nothing = false;                          // work beside communication has the whole device
};

// Times of all operations and host waits, in seconds from the beginning.
struct Times {
    double seconds = 0;                            // until the last operation ends and the last host goes on
    std::vector<double> begin, active, end;        // by operation, as in a Span
    std::vector<std::vector<double>> host_waits;   // by rank: when the host went on after each of its waits
};

class Replay {
public:
    struct Operation {
        int rank;
        const RecordedStep* step;
    };

    // Both arguments must outlive the object. Operations are numbered as in the recordings, rank by rank.
    Replay(const std::vector<Recording>& ranks, const CostModel& costs);

    const std::vector<Operation>& operations() const { return operations_; }

    // Throws Error(bug) naming an operation of each rank that can never run.
    Times run(const FreeExchanges& free = {}) const;

private:
    // A point in time: it begins when all moments before it have ended, and ends `duration` later.
    struct Moment {
        double duration = 0;
        int rank = 0;
        int place = 0;             // in its rank's recording
        int missing = 0;           // moments before it
        int multiprocessors = 0;   // taken by communication from here on; negative: given back
        int exchange = -1;         // index of the exchange that happens here; -1: none
        bool slowed = false;       // by communication on the same rank
    };
    // The moments at which an operation starts and finishes, and its exchanges.
    struct Life {
        int start = -1, finish = -1;
        int first_side = 0, sides = 0;   // range of sides_ that are its exchanges
    };
    // An operation's part in an exchange.
    struct Side {
        int operation, exchange;
        bool sends, receives;
    };
    struct Rendezvous {
        int moment = -1, expected = 0;
        bool between_nodes = false;
        std::vector<int> sides;   // the sides that have joined
    };
    // Bytes that all exchanges of one operation send and receive over its rank's link, by [between_nodes].
    struct Load {
        double out[2] = {0, 0}, in[2] = {0, 0};
    };
    // Moments that must happen before the next one, each once.
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
    void check_all_happened(const std::vector<int>& missing) const;   // counts per moment

    const CostModel& costs_;
    int ranks_ = 0;
    std::vector<Moment> moments_;
    std::vector<std::pair<int, int>> edges_;   // while the graph is built; afterwards:
    std::vector<int> first_after_, after_;     // for each moment, the moments that wait for it
    std::vector<Operation> operations_;
    std::vector<Life> lives_;
    std::vector<Load> loads_;   // by operation
    std::vector<Side> sides_;
    std::vector<Rendezvous> exchanges_;
    std::unordered_map<std::uint64_t, int> exchange_of_;   // by key
    std::map<std::uint64_t, int> latest_of_;               // by communicator: its latest finish on the rank being added
    int place_ = 0;                                        // counts the steps of that rank
    int latest_launch_ = -1;                               // moment at which that rank launched its latest exchange
    std::vector<std::vector<int>> host_waits_;
};

}   // namespace virtual_clock
