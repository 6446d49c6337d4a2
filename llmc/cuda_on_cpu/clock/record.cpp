#include "llmc/cuda_on_cpu/clock/record.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "llmc/base/error.h"
#include "llmc/cuda_on_cpu/queue/device.h"

namespace host {
namespace {

using Kind = RecordedStep::Kind;

class RecordingRecorder : public Recorder {
public:
    Recording recording;

    void operation(int stream, const Operation& operation) override {
        RecordedStep step{Kind::operation, stream, 0, operation.name, operation.file, operation.line, operation.work};
        if (step.work.bytes == 0)
            for (const Access& access : operation.accesses) step.work.bytes += static_cast<double>(access.bytes);
        recording.push_back(std::move(step));
    }
    void event_recorded(int stream, std::uint64_t record) override { add(Kind::event_recorded, stream, record); }
    void event_awaited(int stream, std::uint64_t record) override { add(Kind::event_awaited, stream, record); }
    void host_waited_for_stream(int stream) override { add(Kind::host_waited_for_stream, stream, 0); }
    void host_waited_for_event(std::uint64_t record) override { add(Kind::host_waited_for_event, 0, record); }

private:
    void add(Kind kind, int stream, std::uint64_t record) {
        recording.push_back({kind, stream, record, "", "", 0, {}});
    }
};

// Sets a recorder while it lives.
class RecorderScope {
public:
    explicit RecorderScope(Recorder* recorder) {
        if (device().recorder) throw Error(ErrorKind::bug, "host::record inside of host::record");
        set_recorder(recorder);
    }
    ~RecorderScope() { set_recorder(nullptr); }
    RecorderScope(const RecorderScope&) = delete;
    RecorderScope& operator=(const RecorderScope&) = delete;
};

// Something that happens at a time: no earlier than all before it, and done `duration` later.
struct Moment {
    double duration = 0;
    double begin = 0;
    int rank = 0;
    int multiprocessors = 0;                 // that communication takes from then on, or gives back (negative)
    bool slowed = false;                     // by communication beside it
    int missing = 0;                         // moments before it that have not happened
    std::vector<int> after;                  // moments that wait for it
    struct Rendezvous* exchange = nullptr;   // that happens then
    double end() const { return begin + duration; }
};

// An operation, by the moments of its life.
struct Placed {
    int rank;
    const RecordedStep* step;
    int start;   // its stream has come to it
    int finish;
    std::vector<std::uint64_t> meets;
};

struct Rendezvous {
    int moment = -1;
    int expected = 0;
    struct Side {
        int operation;   // index
        const Exchange* exchange;
    };
    std::vector<Side> sides;   // that have come
    bool between_nodes = false;
};

// One way of one rank's link.
struct Way {
    int operation = -1;    // whose exchanges have it, or had it last
    double taken_at = 0;   // when that one could have it
    double free_at = 0;
};

// Builds the graph of moments out of recordings, then lets time pass.
class Replay {
public:
    Replay(const std::vector<Recording>& ranks, const CostModel& costs) : costs_(costs) {
        for (std::size_t rank = 0; rank < ranks.size(); rank++) add(static_cast<int>(rank), ranks[rank]);
        for (auto& [key, rendezvous] : rendezvous_) {
            const auto& sides = rendezvous.sides;   // a lambda does not capture a structured binding everywhere
            rendezvous.between_nodes = std::any_of(
                sides.begin(), sides.end(), [&](const auto& side) { return node_of(side) != node_of(sides.front()); });
        }
        for (auto& [key, rendezvous] : rendezvous_) {
            Moment& moment = at(rendezvous.moment);
            moment.exchange = &rendezvous;
            moment.duration = costs.seconds_per_exchange + transfer_seconds(rendezvous);
            if (static_cast<int>(rendezvous.sides.size()) < rendezvous.expected) moment.missing++;   // for ever
        }
    }

    Timeline run() {
        pass_time();
        check_all_happened();
        Timeline timeline;
        for (const Moment& moment : moments_) timeline.seconds = std::max(timeline.seconds, moment.end());
        for (const Placed& placed : operations_) {
            double active = at(placed.start).begin;
            for (std::uint64_t key : placed.meets) active = std::max(active, at(rendezvous_[key].moment).begin);
            timeline.spans.push_back({placed.rank, placed.step->stream, placed.step->name, at(placed.start).begin,
                                      active, at(placed.finish).end()});
        }
        return timeline;
    }

private:
    Moment& at(int moment) { return moments_[static_cast<std::size_t>(moment)]; }

    int add_moment(double duration, std::initializer_list<int> before) {
        moments_.emplace_back();
        const int moment = static_cast<int>(moments_.size()) - 1;
        at(moment).duration = duration;
        for (int other : before) order(other, moment);
        return moment;
    }

    void order(int first, int second) {
        if (first < 0) return;   // there is nothing before
        at(first).after.push_back(second);
        at(second).missing++;
    }

    const Placed& operation_of(const Rendezvous::Side& side) const {
        return operations_[static_cast<std::size_t>(side.operation)];
    }
    int node_of(const Rendezvous::Side& side) const {
        return costs_.ranks_per_node > 0 ? operation_of(side).rank / costs_.ranks_per_node : 0;
    }

    // How long the busiest way of an exchange is busy with the operation that the exchange is part of.
    double transfer_seconds(const Rendezvous& rendezvous) {
        double most = 0;
        for (const Rendezvous::Side& side : rendezvous.sides) {
            double out = 0, in = 0;   // by the same link
            for (const Exchange& exchange : operation_of(side).step->work.exchanges) {
                if (rendezvous_[exchange.key].between_nodes != rendezvous.between_nodes) continue;
                out += exchange.sends, in += exchange.receives;
            }
            if (side.exchange->sends > 0) most = std::max(most, out);
            if (side.exchange->receives > 0) most = std::max(most, in);
        }
        return most * (rendezvous.between_nodes ? costs_.seconds_per_exchanged_byte_between_nodes
                                                : costs_.seconds_per_exchanged_byte);
    }

    // Puts an exchange off until its ways are free, and takes them.
    void take_ways(Moment& moment) {
        std::vector<Way*> taken;
        for (const Rendezvous::Side& side : moment.exchange->sides) {
            for (bool out : {true, false}) {
                if ((out ? side.exchange->sends : side.exchange->receives) == 0) continue;
                Way& way = ways_[{operation_of(side).rank, moment.exchange->between_nodes, out}];
                if (way.operation != side.operation) {
                    way.operation = side.operation;
                    way.taken_at = way.free_at;
                }
                moment.begin = std::max(moment.begin, way.taken_at);
                taken.push_back(&way);
            }
        }
        for (Way* way : taken) way->free_at = std::max(way->free_at, moment.end());
    }

    double compute_seconds(const RecordedStep& step) const {
        if (costs_.compute_seconds) return costs_.compute_seconds(step);
        const Work& work = step.work;
        // what an exchange moves is its own cost
        const double bytes = work.exchanges.empty() ? work.bytes : 0;
        return costs_.seconds_per_operation +
               std::max(work.flops * costs_.seconds_per_flop, bytes * costs_.seconds_per_byte);
    }

    void add(int rank, const Recording& recording) {
        int host = -1;                          // the latest moment of the host
        std::map<int, int> streams;             // and of each stream
        std::map<std::uint64_t, int> records;   // of events
        auto latest = [&](int stream) { return streams.emplace(stream, -1).first->second; };
        for (const RecordedStep& step : recording) {
            switch (step.kind) {
                case Kind::operation:
                    host = add_moment(costs_.host_seconds_per_call, {host});
                    streams[step.stream] = add_operation(rank, step, add_moment(0, {latest(step.stream), host}));
                    break;
                case Kind::event_recorded: records[step.record] = add_moment(0, {latest(step.stream), host}); break;
                case Kind::event_awaited:
                    streams[step.stream] = add_moment(0, {latest(step.stream), host, record_of(records, step)});
                    break;
                case Kind::host_waited_for_stream: host = add_moment(0, {host, latest(step.stream)}); break;
                case Kind::host_waited_for_event: host = add_moment(0, {host, record_of(records, step)}); break;
            }
        }
    }

    // Events recorded before the recording began are long done.
    static int record_of(const std::map<std::uint64_t, int>& records, const RecordedStep& step) {
        auto found = records.find(step.record);
        return found == records.end() ? -1 : found->second;
    }

    int add_operation(int rank, const RecordedStep& step, int start) {
        const int computed = add_moment(compute_seconds(step), {start});
        const int launched = add_moment(0, {start}), finish = add_moment(0, {computed, launched});
        if (step.work.exchanges.empty()) {
            at(computed).slowed = costs_.multiprocessors > 0;
        } else {
            const int asked = step.work.multiprocessors;
            at(launched).multiprocessors = asked > 0 ? asked : costs_.multiprocessors_of_exchange;
            at(finish).multiprocessors = -at(launched).multiprocessors;
        }
        for (int moment : {computed, launched, finish}) at(moment).rank = rank;
        Placed placed{rank, &step, start, finish, {}};
        for (const Exchange& exchange : step.work.exchanges) {
            const auto previous = communicators_.find({rank, communicator_of(exchange.key)});
            Rendezvous& rendezvous = rendezvous_[exchange.key];
            if (rendezvous.moment < 0) rendezvous.moment = add_moment(0, {});
            rendezvous.expected = exchange.ranks;
            rendezvous.sides.push_back({static_cast<int>(operations_.size()), &exchange});
            if (previous != communicators_.end()) order(previous->second, launched);
            order(launched, rendezvous.moment);
            order(rendezvous.moment, finish);
            placed.meets.push_back(exchange.key);
        }
        for (const Exchange& exchange : step.work.exchanges) {
            if (communicator_of(exchange.key) != 0) communicators_[{rank, communicator_of(exchange.key)}] = finish;
        }
        operations_.push_back(std::move(placed));
        return finish;
    }

    // Moments in the order of time, so that ways go to who is ready first.
    void pass_time() {
        for (int moment = 0; moment < static_cast<int>(moments_.size()); moment++)
            if (at(moment).missing == 0) ready_.insert({0, moment});
        while (!ready_.empty() || !ends_.empty()) {
            if (ready_.empty() || (!ends_.empty() && ends_.begin()->first <= ready_.begin()->first)) {
                const auto [time, moment] = *ends_.begin();
                ends_.erase(ends_.begin());
                running_[at(moment).rank].erase(moment);
                at(moment).duration = time - at(moment).begin;
                has_happened(at(moment));
                continue;
            }
            const auto [time, moment] = *ready_.begin();
            ready_.erase(ready_.begin());
            Moment& now = at(moment);
            if (now.exchange != nullptr) take_ways(now);
            if (now.multiprocessors != 0) take_multiprocessors(now.rank, now.multiprocessors, time);
            if (now.slowed) {
                run(moment, {now.duration, time});
            } else {
                has_happened(now);
            }
        }
    }

    void has_happened(const Moment& now) {
        for (int next : now.after) {
            at(next).begin = std::max(at(next).begin, now.end());
            if (--at(next).missing == 0) ready_.insert({at(next).begin, next});
        }
    }

    // Work under way that communication slows down: what of it is left, in seconds of a whole device.
    struct Running {
        double left;
        double since;   // when that was left
        double end = 0;
    };

    // The share of its device that communication leaves to a rank: one multiprocessor at least.
    double share(int rank) {
        return std::max(1, costs_.multiprocessors - taken_[rank]) / static_cast<double>(costs_.multiprocessors);
    }

    void run(int moment, Running work) {
        work.end = work.since + work.left / share(at(moment).rank);
        ends_.insert({work.end, moment});
        running_[at(moment).rank][moment] = work;
    }

    void take_multiprocessors(int rank, int count, double time) {
        const double before = share(rank);
        taken_[rank] += count;
        for (auto [moment, work] : std::map<int, Running>(running_[rank])) {
            ends_.erase({work.end, moment});
            run(moment, {work.left - (time - work.since) * before, time});
        }
    }

    void check_all_happened() {
        std::string stuck;
        int named_rank = -1;
        for (const Placed& placed : operations_) {
            if (at(placed.finish).missing == 0 || placed.rank == named_rank) continue;
            named_rank = placed.rank;
            stuck += text("\n  rank ", placed.rank, ", stream ", placed.step->stream, ": '", placed.step->name, "' (",
                          place(placed.step->file, placed.step->line), ")");
        }
        if (!stuck.empty())
            throw Error(ErrorKind::bug,
                        "the recorded ranks can never finish: whom an operation would meet does not come, "
                        "or comes in another order. The first that cannot end:" +
                            stuck);
    }

    const CostModel& costs_;
    std::deque<Moment> moments_;   // grows while references to others are held
    std::vector<Placed> operations_;
    std::map<std::uint64_t, Rendezvous> rendezvous_;
    std::map<std::tuple<int, bool, bool>, Way> ways_;   // by rank, whether between nodes, whether out
    std::map<std::pair<int, std::uint64_t>, int>
        communicators_;                               // (rank, communicator): the end of its latest operation
    std::set<std::pair<double, int>> ready_, ends_;   // when, and which moment; ends of what is running
    std::map<int, std::map<int, Running>> running_;   // by rank and moment
    std::map<int, int> taken_;                        // multiprocessors, by rank
};

// The stream's active times, which do not overlap and are in order.
std::vector<std::pair<double, double>> active_times(const std::vector<Span>& spans, int rank, int stream) {
    std::vector<std::pair<double, double>> times;
    for (const Span& span : spans)
        if (span.rank == rank && span.stream == stream && span.end > span.active)
            times.emplace_back(span.active, span.end);
    return times;
}

}   // namespace

Recording record(const std::function<void()>& program) {
    RecordingRecorder recorder;
    RecorderScope scope(&recorder);
    program();
    return std::move(recorder.recording);
}

Timeline replay(const std::vector<Recording>& ranks, const CostModel& costs) { return Replay(ranks, costs).run(); }

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

}   // namespace host
