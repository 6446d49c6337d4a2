#include "llmc/base/clock/replay.h"

#include <algorithm>
#include <cstdio>
#include <queue>
#include <tuple>

#include "llmc/base/error.h"

namespace virtual_clock {

using Kind = RecordedStep::Kind;

// ---------------------------------------------------------------------------------------------------------------------
// The graph

Replay::Replay(const std::vector<Recording>& ranks, const CostModel& costs)
    : costs_(costs), ranks_(static_cast<int>(ranks.size())), host_waits_(ranks.size()) {
    for (int rank = 0; rank < ranks_; rank++) add_rank(rank, ranks[static_cast<std::size_t>(rank)]);
    settle_exchanges();
    settle_edges();
}

int Replay::add_moment(double duration, int rank) {
    moments_.emplace_back();
    moments_.back().duration = duration, moments_.back().rank = rank, moments_.back().place = place_;
    return static_cast<int>(moments_.size()) - 1;
}
int Replay::add_moment(double duration, int rank, const Before& before) {
    const int moment = add_moment(duration, rank);
    for (int i = 0; i < before.count; i++) order(before.moments[i], moment);
    return moment;
}

void Replay::add(Before& before, int moment, int rank) {
    for (int i = 0; i < before.count; i++) {
        if (before.moments[i] == moment) return;
    }
    if (before.count == static_cast<int>(std::size(before.moments))) {   // a moment that waits for them all
        const int all = add_moment(0, rank, before);
        before = {1, {all}};
    }
    before.moments[before.count++] = moment;
}
void Replay::add(Before& before, const Before& others, int rank) {
    for (int i = 0; i < others.count; i++) add(before, others.moments[i], rank);
}

void Replay::add_rank(int rank, const Recording& recording) {
    Before host;
    std::map<int, Before> streams;
    std::unordered_map<std::uint64_t, Before> records;   // by event; an event recorded earlier is long done
    latest_of_.clear();
    latest_launch_ = -1;
    place_ = 0;
    for (const RecordedStep& step : recording) {
        place_++;
        switch (step.kind) {
            case Kind::operation: {
                if (costs_.host_seconds_per_call > 0) {
                    host = {1, {add_moment(costs_.host_seconds_per_call, rank, host)}};
                }
                Before& before = streams[step.stream];
                add(before, host, rank);
                before = {1, {add_operation(rank, step, before)}};
                break;
            }
            case Kind::event_recorded: {
                Before before = streams[step.stream];
                add(before, host, rank);
                records[step.record] = before;
                break;
            }
            case Kind::event_awaited:
                if (const auto found = records.find(step.record); found != records.end()) {
                    add(streams[step.stream], found->second, rank);
                }
                break;
            case Kind::host_waited_for_stream:
            case Kind::host_waited_for_event: {
                if (step.kind == Kind::host_waited_for_stream) {
                    add(host, streams[step.stream], rank);
                } else if (const auto found = records.find(step.record); found != records.end()) {
                    add(host, found->second, rank);
                }
                host = {1, {add_moment(0, rank, host)}};
                host_waits_[static_cast<std::size_t>(rank)].push_back(host.moments[0]);
                break;
            }
        }
    }
}

double Replay::compute_seconds(const RecordedStep& step) const {
    if (costs_.compute_seconds) return costs_.compute_seconds(step);
    const Work& work = step.work;
    // the exchange's own cost counts these bytes
    const double bytes = work.exchanges.empty() ? work.bytes : 0;
    return costs_.seconds_per_operation +
           std::max(work.flops * costs_.seconds_per_flop, bytes * costs_.seconds_per_byte);
}

// Adds the moments of an operation; returns the one at which it ends.
int Replay::add_operation(int rank, const RecordedStep& step, const Before& before) {
    const int computed = add_moment(compute_seconds(step), rank, before);
    operations_.push_back({rank, &step});
    loads_.emplace_back();
    if (step.work.exchanges.empty()) {
        at(computed).slowed = costs_.multiprocessors > 0;
        lives_.push_back({computed, computed, 0, 0});
        return computed;
    }
    const int launched = add_moment(0, rank, before), finish = add_moment(0, rank, {1, {computed}});
    if (costs_.in_launch_order) {
        if (latest_launch_ >= 0) order(latest_launch_, launched);
        latest_launch_ = launched;
    }
    const int requested = step.work.multiprocessors;
    at(launched).multiprocessors = requested > 0 ? requested : costs_.multiprocessors_of_exchange;
    at(finish).multiprocessors = -at(launched).multiprocessors;
    lives_.push_back({computed, finish, static_cast<int>(sides_.size()), static_cast<int>(step.work.exchanges.size())});
    add_exchanges(rank, step, launched, finish);
    return finish;
}

void Replay::add_exchanges(int rank, const RecordedStep& step, int launched, int finish) {
    for (const Exchange& exchange : step.work.exchanges) {
        const auto [found, fresh] = exchange_of_.emplace(exchange.key, static_cast<int>(exchanges_.size()));
        if (fresh) {
            exchanges_.emplace_back();
            exchanges_.back().moment = add_moment(0, rank);
            at(exchanges_.back().moment).exchange = found->second;
        }
        Rendezvous& rendezvous = exchanges_[static_cast<std::size_t>(found->second)];
        Moment& moment = at(rendezvous.moment);
        moment.place = std::min(moment.place, place_);   // so that it comes before what some rank has launched later
        rendezvous.expected = exchange.ranks;
        rendezvous.between_nodes = rendezvous.between_nodes || exchange.between_nodes;
        rendezvous.sides.push_back(static_cast<int>(sides_.size()));
        sides_.push_back(
            {static_cast<int>(operations_.size()) - 1, found->second, exchange.sends > 0, exchange.receives > 0});
        if (const auto previous = latest_of_.find(communicator_of(exchange.key)); previous != latest_of_.end()) {
            order(previous->second, launched);
        }
        order(launched, rendezvous.moment);
        order(rendezvous.moment, finish);
    }
    for (const Exchange& exchange : step.work.exchanges) {
        if (communicator_of(exchange.key) != 0) latest_of_[communicator_of(exchange.key)] = finish;
    }
}

int Replay::node_of(const Side& side) const {
    const int rank = operations_[static_cast<std::size_t>(side.operation)].rank;
    return costs_.ranks_per_node > 0 ? rank / costs_.ranks_per_node : 0;
}

void Replay::settle_exchanges() {
    for (Rendezvous& exchange : exchanges_) {
        const Side& first = sides_[static_cast<std::size_t>(exchange.sides.front())];
        for (const int side : exchange.sides) {
            if (node_of(sides_[static_cast<std::size_t>(side)]) != node_of(first)) exchange.between_nodes = true;
        }
        if (static_cast<int>(exchange.sides.size()) < exchange.expected) at(exchange.moment).missing++;   // for ever
    }
    for (std::size_t i = 0; i < operations_.size(); i++) {
        const std::vector<Exchange>& own = operations_[i].step->work.exchanges;
        for (std::size_t e = 0; e < own.size(); e++) {
            const Side& side = sides_[static_cast<std::size_t>(lives_[i].first_side) + e];
            const bool between = exchanges_[static_cast<std::size_t>(side.exchange)].between_nodes;
            loads_[i].out[between] += own[e].sends, loads_[i].in[between] += own[e].receives;
        }
    }
}

void Replay::settle_edges() {
    first_after_.assign(moments_.size() + 1, 0);
    for (const auto& [first, second] : edges_) {
        first_after_[static_cast<std::size_t>(first) + 1]++;
        at(second).missing++;
    }
    for (std::size_t i = 1; i < first_after_.size(); i++) first_after_[i] += first_after_[i - 1];
    after_.resize(edges_.size());
    std::vector<int> next(first_after_.begin(), first_after_.end() - 1);
    for (const auto& [first, second] : edges_) {
        after_[static_cast<std::size_t>(next[static_cast<std::size_t>(first)]++)] = second;
    }
    edges_.clear(), edges_.shrink_to_fit();
}

// Returns the latency plus the time for which the exchange's busiest link direction carries its operation's bytes.
double Replay::exchange_seconds(const Rendezvous& exchange, const std::vector<char>& free) const {
    double most = 0;
    for (const int index : exchange.sides) {
        const Side& side = sides_[static_cast<std::size_t>(index)];
        const auto operation = static_cast<std::size_t>(side.operation);
        if (free[operation]) continue;
        const Load& load = loads_[operation];
        if (side.sends) most = std::max(most, load.out[exchange.between_nodes]);
        if (side.receives) most = std::max(most, load.in[exchange.between_nodes]);
    }
    const auto front = static_cast<std::size_t>(sides_[static_cast<std::size_t>(exchange.sides.front())].operation);
    const double latency = free[front]               ? 0
                           : costs_.exchange_seconds ? costs_.exchange_seconds(*operations_[front].step)
                                                     : costs_.seconds_per_exchange;
    return latency + most * (exchange.between_nodes ? costs_.seconds_per_exchanged_byte_between_nodes
                                                    : costs_.seconds_per_exchanged_byte);
}

// ---------------------------------------------------------------------------------------------------------------------
// Time

// Makes moments happen in the order of time, so that link directions go to the operation that is ready first.
class Replay::Pass {
public:
    Pass(const Replay& graph, const FreeExchanges& free)
        : graph_(graph),
          slow_nothing_(free.slow_nothing),
          free_(graph.operations_.size(), 0),
          missing_(graph.moments_.size()),
          begin_(graph.moments_.size(), 0),
          end_(graph.moments_.size(), 0),
          ways_(static_cast<std::size_t>(graph.ranks_) * 4),
          running_(static_cast<std::size_t>(graph.ranks_)),
          taken_(static_cast<std::size_t>(graph.ranks_), 0) {
        for (std::size_t i = 0; free.is_free && i < free_.size(); i++) {
            const RecordedStep& step = *graph.operations_[i].step;
            free_[i] = !step.work.exchanges.empty() && free.is_free(step);
        }
        for (std::size_t i = 0; i < missing_.size(); i++) missing_[i] = graph.moments_[i].missing;
    }

    Times run() {
        pass();
        graph_.check_all_happened(missing_);
        Times times;
        for (const double end : end_) times.seconds = std::max(times.seconds, end);
        for (const Life& life : graph_.lives_) {
            const double begin = begin_[index(life.start)];
            double active = begin;
            for (int i = 0; i < life.sides; i++) {
                const Side& side = graph_.sides_[index(life.first_side + i)];
                active = std::max(active, begin_[index(graph_.exchanges_[index(side.exchange)].moment)]);
            }
            times.begin.push_back(begin), times.active.push_back(active);
            times.end.push_back(end_[index(life.finish)]);
        }
        for (const std::vector<int>& waits : graph_.host_waits_) {
            times.host_waits.emplace_back();
            for (const int moment : waits) times.host_waits.back().push_back(end_[index(moment)]);
        }
        return times;
    }

private:
    static std::size_t index(int number) { return static_cast<std::size_t>(number); }

    // A moment and its time. The earliest comes first; of several at the same time, the one of the earliest step of its
    // rank's recording, so that ranks with equal recordings take turns in the same order.
    struct Due {
        double time;
        int place, moment;
        int version = 0;   // for an end: the number of this forecast; only the latest one counts
        bool operator>(const Due& other) const {
            return std::tie(time, place, moment) > std::tie(other.time, other.place, other.moment);
        }
    };
    using Queue = std::priority_queue<Due, std::vector<Due>, std::greater<>>;

    // One direction of one rank's link.
    struct Way {
        int operation = -1;    // the operation whose exchanges use it, or used it last
        double taken_at = 0;   // time from which that operation could use it
        double free_at = 0;
    };

    // Running work that communication slows down.
    struct Running {
        int moment;
        double left, since;   // seconds of work left on a whole device, as of time `since`
    };

    Due at(int moment, double time, int version = 0) const { return {time, graph_.at(moment).place, moment, version}; }

    void pass() {
        forecast_.assign(missing_.size(), 0);
        for (std::size_t i = 0; i < missing_.size(); i++) {
            if (missing_[i] == 0) ready_.push(at(static_cast<int>(i), 0));
        }
        while (!ready_.empty() || !ends_.empty()) {
            if (!ends_.empty() && ends_.top().version != forecast_[index(ends_.top().moment)]) {
                ends_.pop();
                continue;
            }
            if (ready_.empty() || (!ends_.empty() && ends_.top().time <= ready_.top().time)) {
                const Due due = ends_.top();
                ends_.pop();
                std::vector<Running>& running = running_[index(graph_.at(due.moment).rank)];
                std::erase_if(running, [&](const Running& work) { return work.moment == due.moment; });
                end_[index(due.moment)] = due.time;
                has_happened(due.moment);
                continue;
            }
            const Due due = ready_.top();
            ready_.pop();
            happen(due.moment, due.time);
        }
    }

    void happen(int moment, double time) {
        const Moment& now = graph_.at(moment);
        double& begin = begin_[index(moment)];
        double duration = now.duration;
        if (now.exchange >= 0) {
            const Rendezvous& exchange = graph_.exchanges_[index(now.exchange)];
            duration = graph_.exchange_seconds(exchange, free_);
            take_ways(exchange, begin, duration);
        }
        if (now.multiprocessors != 0 && !slow_nothing_) take_multiprocessors(now.rank, now.multiprocessors, time);
        if (now.slowed && !slow_nothing_) {
            running_[index(now.rank)].push_back({moment, duration, time});
            forecast(running_[index(now.rank)].back(), now.rank);
            return;
        }
        end_[index(moment)] = begin + duration;
        has_happened(moment);
    }

    void has_happened(int moment) {
        const double end = end_[index(moment)];
        for (int i = graph_.first_after_[index(moment)]; i < graph_.first_after_[index(moment) + 1]; i++) {
            const int next = graph_.after_[index(i)];
            begin_[index(next)] = std::max(begin_[index(next)], end);
            if (--missing_[index(next)] == 0) ready_.push(at(next, begin_[index(next)]));
        }
    }

    // Delays an exchange until its link directions are free, and takes them.
    void take_ways(const Rendezvous& exchange, double& begin, double duration) {
        taken_ways_.clear();
        for (const int number : exchange.sides) {
            const Side& side = graph_.sides_[index(number)];
            if (free_[index(side.operation)]) continue;
            for (const bool out : {true, false}) {
                if (!(out ? side.sends : side.receives)) continue;
                const int rank = graph_.operations_[index(side.operation)].rank;
                Way& way = ways_[index(rank * 4 + 2 * exchange.between_nodes + out)];
                if (way.operation != side.operation) {
                    way.operation = side.operation;
                    way.taken_at = way.free_at;
                }
                begin = std::max(begin, way.taken_at);
                taken_ways_.push_back(&way);
            }
        }
        for (Way* way : taken_ways_) way->free_at = std::max(way->free_at, begin + duration);
    }

    // Returns the share of its device that communication leaves to a rank: at least one multiprocessor.
    double share(int rank) const {
        const int all = graph_.costs_.multiprocessors;
        return all > 0 ? std::max(1, all - taken_[index(rank)]) / static_cast<double>(all) : 1;
    }

    void forecast(const Running& work, int rank) {
        ends_.push(at(work.moment, work.since + work.left / share(rank), ++forecast_[index(work.moment)]));
    }

    void take_multiprocessors(int rank, int count, double time) {
        const double before = share(rank);
        taken_[index(rank)] += count;
        for (Running& work : running_[index(rank)]) {
            work.left -= (time - work.since) * before, work.since = time;
            forecast(work, rank);
        }
    }

    const Replay& graph_;
    const bool slow_nothing_;
    std::vector<char> free_;     // per operation: its exchanges cost nothing
    std::vector<int> missing_;   // per moment: moments before it that have not happened
    std::vector<double> begin_, end_;
    std::vector<Way> ways_;   // index: rank * 4 + 2 * between nodes + out
    std::vector<Way*> taken_ways_;
    Queue ready_, ends_;
    std::vector<int> forecast_;                   // per moment: number of the latest forecast of its end
    std::vector<std::vector<Running>> running_;   // by rank
    std::vector<int> taken_;                      // multiprocessors, by rank
};

Times Replay::run(const FreeExchanges& free) const { return Pass(*this, free).run(); }

void Replay::check_all_happened(const std::vector<int>& missing) const {
    std::string stuck;
    int named_rank = -1;
    for (std::size_t i = 0; i < operations_.size(); i++) {
        const Operation& operation = operations_[i];
        if (missing[static_cast<std::size_t>(lives_[i].finish)] == 0 || operation.rank == named_rank) continue;
        named_rank = operation.rank;
        stuck += text("\n  rank ", operation.rank, ", stream ", operation.step->stream, ": '", operation.step->name,
                      "' (", operation.step->file, ":", operation.step->line, ")");
    }
    if (!stuck.empty())
        throw Error(ErrorKind::bug,
                    "the recorded ranks can never finish: whom an operation would meet does not come, "
                    "or comes in another order. The first that cannot end:" +
                        stuck);
}

Timeline replay(const std::vector<Recording>& ranks, const CostModel& costs) {
    const Replay graph(ranks, costs);
    const Times times = graph.run();
    Timeline timeline;
    timeline.seconds = times.seconds;
    for (std::size_t i = 0; i < graph.operations().size(); i++) {
        const auto& [rank, step] = graph.operations()[i];
        timeline.spans.push_back({rank, step->stream, step->name, times.begin[i], times.active[i], times.end[i]});
    }
    return timeline;
}

namespace {

// Returns the stream's active times, in order and without overlaps.
std::vector<std::pair<double, double>> active_times(const std::vector<Span>& spans, int rank, int stream) {
    std::vector<std::pair<double, double>> times;
    for (const Span& span : spans)
        if (span.rank == rank && span.stream == stream && span.end > span.active)
            times.emplace_back(span.active, span.end);
    return times;
}

}   // namespace

double Timeline::busy(int rank, int stream) const {
    double sum = 0;
    for (const auto& [begin, end] : active_times(spans, rank, stream)) sum += end - begin;
    return sum;
}

double Timeline::overlap(int rank, int stream, int other) const {
    const auto ours = active_times(spans, rank, stream), theirs = active_times(spans, rank, other);
    double sum = 0;
    for (std::size_t i = 0, j = 0; i < ours.size() && j < theirs.size();) {
        sum += std::max(0.0, std::min(ours[i].second, theirs[j].second) - std::max(ours[i].first, theirs[j].first));
        if (ours[i].second < theirs[j].second)
            i++;
        else
            j++;
    }
    return sum;
}

std::string Timeline::table() const {
    std::string result;
    char line[256];
    for (const Span& span : spans) {
        std::snprintf(line, sizeof line, "%4d %3d %14.3f %14.3f %14.3f  %.180s\n", span.rank, span.stream,
                      span.begin * 1e6, span.active * 1e6, span.end * 1e6, span.name.c_str());
        result += line;
    }
    return result;
}

}   // namespace virtual_clock
