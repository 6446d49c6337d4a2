#include "llmc/parallel/schedule.h"

#include <array>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <utility>

#include "llmc/base/ensure.h"
#include "llmc/base/error.h"

using Kind = Action::Kind;

const char* name_of(Kind kind) {
    static constexpr std::array names{"forward",
                                      "backward of inputs",
                                      "backward of weights",
                                      "receiving the input",
                                      "sending the output",
                                      "receiving the output's gradient",
                                      "sending the input's gradient"};
    return names[static_cast<std::size_t>(kind)];
}

std::string describe(const Action& action) {
    return text(name_of(action.kind), " of micro-batch ", action.micro_batch, ", chunk ", action.chunk);
}

// ---------------------------------------------------------------------------------------------------------------------
// Computation

namespace {

// Makes a list of `warm_up` forwards, then one backward for every forward. Micro-batches go through the chunks in
// groups of as many as there are stages.
PipelineSchedule warmed_up_list(const PipelineShape& shape, int warm_up) {
    PipelineSchedule forwards, backwards, list;
    for (int first = 0; first < shape.micro_batches; first += shape.stages) {
        for (int chunk = 0; chunk < shape.chunks; chunk++) {
            for (int m = first; m < std::min(first + shape.stages, shape.micro_batches); m++) {
                forwards.push_back({Kind::forward, chunk, m});
                backwards.push_back({Kind::backward_input, shape.chunks - 1 - chunk, m});
            }
        }
    }
    const auto first = std::min(static_cast<std::size_t>(warm_up), forwards.size());
    list.assign(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(first));
    for (std::size_t i = 0; i < backwards.size(); i++) {
        if (first + i < forwards.size()) list.push_back(forwards[first + i]);
        list.push_back(backwards[i]);
    }
    return list;
}

// Returns the most forwards of a stage before its first backward.
int warm_up_of(const PipelineShape& shape, int stage) {
    const int stages_after = shape.stages - 1 - stage;
    switch (shape.kind) {
        case PipelineKind::naive: return 0;
        case PipelineKind::gpipe: return shape.micro_batches;
        case PipelineKind::interleaved: return 2 * stages_after + (shape.chunks - 1) * shape.stages;
        default: return stages_after * (1 + shape.warmup);   // 1F1B
    }
}

// Delays the gradients of weights of 1F1B: the later the stage, the more of them, because other stages wait for its
// backwards. With its warm-up each stage keeps as many sets of activations as there are stages.
PipelineSchedule with_delayed_weights(const PipelineSchedule& one_f_one_b, int stage) {
    PipelineSchedule list;
    int waiting = 0, done = 0;
    for (const Action& action : one_f_one_b) {
        list.push_back(action);
        if (action.kind == Kind::backward_input && waiting++ == stage) {
            list.push_back({Kind::backward_weight, 0, done++});
            waiting--;
        }
    }
    for (; waiting > 0; waiting--) list.push_back({Kind::backward_weight, 0, done++});
    return list;
}

}   // namespace

std::vector<PipelineSchedule> pipeline_schedules(const PipelineShape& shape) {
    const auto& [kind, stages, micro_batches, chunks, warmup] = shape;
    ENSURE(stages >= 1 && chunks >= 1 && micro_batches >= 1, "a pipeline of ", stages, " x ", chunks);
    if (stages == 1) return {one_stage_schedule(micro_batches, chunks)};
    ENSURE(chunks == 1 || kind == PipelineKind::interleaved, "only the interleaved schedule has several chunks");
    ENSURE(warmup == 0 || warms_up(kind), "a longer warm-up of a schedule that has none");
    ENSURE(!takes_groups(kind) || micro_batches % stages == 0, "micro-batches go in groups of ", stages);
    std::vector<PipelineSchedule> lists;
    for (int stage = 0; stage < stages; stage++) {
        const PipelineSchedule list = warmed_up_list(shape, warm_up_of(shape, stage));
        lists.push_back(delays_weights(kind) ? with_delayed_weights(list, stage) : list);
    }
    return with_transfers(lists, chunks);
}

std::vector<PipelineSchedule> forward_schedules(int stages, int chunks, int micro_batches) {
    PipelineSchedule list;
    for (int m = 0; m < micro_batches; m++) {
        for (int chunk = 0; chunk < chunks; chunk++) list.push_back({Kind::forward, chunk, m});
    }
    return with_transfers(std::vector<PipelineSchedule>(static_cast<std::size_t>(stages), list), chunks);
}

// ---------------------------------------------------------------------------------------------------------------------
// Simulation

namespace {

bool delays(const std::vector<PipelineSchedule>& lists) {
    return std::any_of(lists.begin(), lists.end(), [](const PipelineSchedule& list) {
        return std::any_of(list.begin(), list.end(),
                           [](const Action& action) { return action.kind == Kind::backward_weight; });
    });
}

constexpr double not_yet = std::numeric_limits<double>::infinity();

// Runs the lists of all stages until none can go on: passes(stage, action, next) is true if the stage can do its next
// action. Returns the index of each stage's next action.
template <class Passes>
std::vector<std::size_t> run_lists(const std::vector<PipelineSchedule>& lists, Passes&& passes) {
    std::vector<std::size_t> next(lists.size(), 0);
    for (bool advanced = true; advanced;) {
        advanced = false;
        for (std::size_t stage = 0; stage < lists.size(); stage++) {
            while (next[stage] < lists[stage].size() && passes(stage, lists[stage][next[stage]], next)) {
                next[stage]++;
                advanced = true;
            }
        }
    }
    return next;
}

double cost_of(Kind kind, const ActionCosts& costs, bool delayed) {
    if (kind == Kind::forward) return costs.forward;
    if (kind == Kind::backward_weight) return costs.weight;
    return delayed ? costs.input : costs.input + costs.weight;
}

class Simulator {
public:
    Simulator(const std::vector<PipelineSchedule>& lists, int chunks, const PipelineCosts& costs)
        : lists_(lists),
          costs_(costs),
          stages_(static_cast<int>(lists.size())),
          last_(stages_ * chunks - 1),
          delayed_(delays(lists)),
          next_(lists.size(), 0),
          free_at_(lists.size(), 0),
          links_(lists.size()) {
        ENSURE(static_cast<int>(costs.pieces.size()) == last_ + 1, "costs of ", costs.pieces.size(), " pieces");
        for (const PipelineSchedule& list : lists) micro_batches_ = std::max(micro_batches_, micro_batches_of(list));
        arrivals_.assign(static_cast<std::size_t>(2 * (last_ + 1) * micro_batches_), not_yet);
        launches_ = arrivals_;
        result_.stages.resize(lists.size());
        for (const Action& action : lists.front()) lists_transfers_ = lists_transfers_ || is_transfer(action.kind);
    }

    Simulation run() {
        for (std::size_t stage = 0; stage < lists_.size(); stage++) go_on(stage);
        while (!ready_.empty()) {   // all that stages do later comes after the transfer that is ready first
            const Ready transfer = ready_.top();
            ready_.pop();
            StageLinks &from = links_[transfer.from], &to = links_[transfer.to];
            const double end = std::max({transfer.time, from.out_free, to.in_free}) + costs_.transfer;
            from.out_free = to.in_free = arrivals_[transfer.arrival] = end;
            from.end_of(transfer.forward ? Kind::send_output : Kind::send_input_gradient) = end;
            to.end_of(transfer.forward ? Kind::receive_input : Kind::receive_output_gradient) = end;
            go_on(transfer.from), go_on(transfer.to);
        }
        for (std::size_t stage = 0; stage < lists_.size(); stage++) {
            ENSURE(next_[stage] == lists_[stage].size(), "stage ", stage, " waits for ever");
        }
        return std::move(result_);
    }

private:
    // A stage's side of all transfers: when it launched the latest one, when the latest of each kind ended (not_yet: it
    // has not), and when each direction of its link is free.
    struct StageLinks {
        double launched = 0, ends[4] = {0, 0, 0, 0}, out_free = 0, in_free = 0;
        double& end_of(Kind kind) { return ends[static_cast<int>(kind) - static_cast<int>(Kind::receive_input)]; }
    };
    // A transfer that both stages have launched, at `time`.
    struct Ready {
        double time;
        std::size_t from, to;
        bool forward;
        std::size_t arrival;   // index in arrivals_
        bool operator>(const Ready& other) const { return time > other.time; }
    };

    std::size_t index(bool forward, int piece, int m) const {
        return static_cast<std::size_t>(((forward ? 0 : last_ + 1) + piece) * micro_batches_ + m);
    }
    std::size_t neighbour(std::size_t stage, bool after) const {
        return (stage + (after ? 1 : lists_.size() - 1)) % lists_.size();
    }

    void go_on(std::size_t stage) {
        const PipelineSchedule& list = lists_[stage];
        while (next_[stage] < list.size()) {
            const Action& action = list[next_[stage]];
            if (!(is_transfer(action.kind) ? launches(stage, action) : computes(stage, action))) return;
            next_[stage]++;
        }
    }

    // Launches a stage's transfers in the order of its list, each when the one before of its kind has ended, and what
    // it sends has been computed. Returns false if it has to wait.
    bool launches(std::size_t stage, const Action& action) {
        const auto& [kind, chunk, m] = action;
        const bool sends = kind == Kind::send_output || kind == Kind::send_input_gradient,
                   forward = kind == Kind::send_output || kind == Kind::receive_input;
        StageLinks& own = links_[stage];
        double& ended = own.end_of(kind);
        if (ended == not_yet) return false;
        own.launched = std::max({own.launched, ended, sends ? free_at_[stage] : 0});
        ended = not_yet;
        const int reader = chunk * stages_ + static_cast<int>(stage) + (!sends ? 0 : forward ? 1 : -1);
        const std::size_t arrival = index(forward, reader, m), peer = neighbour(stage, sends == forward);
        double& first = launches_[arrival];
        if (first == not_yet) {
            first = own.launched;
        } else {
            ready_.push({std::max(first, own.launched), sends ? stage : peer, sends ? peer : stage, forward, arrival});
        }
        return true;
    }

    // Returns false if the input has not arrived.
    bool computes(std::size_t stage, const Action& action) {
        const auto& [kind, chunk, m] = action;
        const bool forward = kind == Kind::forward;
        const int piece = chunk * stages_ + static_cast<int>(stage);
        double begin = free_at_[stage];
        if ((forward && piece > 0) || (kind == Kind::backward_input && piece < last_)) {
            begin = std::max(begin, arrivals_[index(forward, piece, m)]);
            if (begin == not_yet) return false;
        }
        const double cost = cost_of(kind, costs_.pieces[static_cast<std::size_t>(piece)], delayed_), end = begin + cost;
        free_at_[stage] = end;
        result_.stages[stage].push_back({action, begin, end});
        result_.makespan = std::max(result_.makespan, end);
        result_.busy += cost;
        const int to = forward ? piece + 1 : piece - 1;
        if (kind == Kind::backward_weight || to < 0 || to > last_) return true;
        if (stages_ == 1) arrivals_[index(forward, to, m)] = end;   // stays on the device
        if (lists_transfers_ || stages_ == 1) return true;
        ready_.push({end, stage, neighbour(stage, forward), forward, index(forward, to, m)});
        return true;
    }

    const std::vector<PipelineSchedule>& lists_;
    const PipelineCosts& costs_;
    const int stages_, last_;
    const bool delayed_;
    bool lists_transfers_ = false;
    int micro_batches_ = 0;
    std::vector<std::size_t> next_;   // index of each stage's next action
    std::vector<double> free_at_;     // when each stage is free
    std::vector<StageLinks> links_;
    // by piece and micro-batch, forward and backward: when its input is there, and when the first of the stages
    // launched its transfer
    std::vector<double> arrivals_, launches_;
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
    Simulation result_;
};

}   // namespace

Simulation simulate(const std::vector<PipelineSchedule>& lists, int chunks, const PipelineCosts& costs) {
    return Simulator(lists, chunks, costs).run();
}

LivePeak live_peak(const PipelineSchedule& list) {
    LivePeak live, peak;
    const bool delayed = delays({list});
    for (const Action& action : list) {
        if (action.kind == Kind::forward) live.to_input++, live.to_weight++;
        peak.to_input = std::max(peak.to_input, live.to_input);
        peak.to_weight = std::max(peak.to_weight, live.to_weight);
        if (action.kind == Kind::backward_input) live.to_input--;
        if (action.kind == (delayed ? Kind::backward_weight : Kind::backward_input)) live.to_weight--;
    }
    return peak;
}

// ---------------------------------------------------------------------------------------------------------------------
// Transfers

// Adds transfers on a clock on which every part takes the same time: a transfer happens when what it carries is ready.
// On both its ends it stands behind all actions that have begun by then, and before all others; transfers of one moment
// have one order everywhere.
std::vector<PipelineSchedule> with_transfers(const std::vector<PipelineSchedule>& lists, int chunks) {
    const auto stages = static_cast<int>(lists.size());
    if (stages == 1) return lists;
    const int last = stages * chunks - 1;
    PipelineCosts nominal;
    nominal.pieces.resize(static_cast<std::size_t>(last + 1));
    const Simulation clock = simulate(lists, chunks, nominal);

    struct Transfer {
        double time;
        int from, to;   // stages
        Action send, receive;
    };
    std::vector<Transfer> transfers;
    for (int stage = 0; stage < stages; stage++) {
        for (const auto& [action, begin, end] : clock.stages[static_cast<std::size_t>(stage)]) {
            const auto& [kind, chunk, m] = action;
            const bool forward = kind == Kind::forward;
            const int piece = chunk * stages + stage, to = forward ? piece + 1 : piece - 1;
            if (kind == Kind::backward_weight || to < 0 || to > last) continue;
            transfers.push_back({end,
                                 stage,
                                 to % stages,
                                 {forward ? Kind::send_output : Kind::send_input_gradient, chunk, m},
                                 {forward ? Kind::receive_input : Kind::receive_output_gradient, to / stages, m}});
        }
    }
    std::stable_sort(transfers.begin(), transfers.end(),
                     [](const Transfer& a, const Transfer& b) { return a.time < b.time; });

    std::vector<PipelineSchedule> result(lists.size());
    std::vector<std::size_t> next(lists.size(), 0);   // computation
    auto compute_before = [&](int stage, double time) {
        const auto s = static_cast<std::size_t>(stage);
        const std::vector<TimedAction>& timed = clock.stages[s];
        for (; next[s] < timed.size() && timed[next[s]].begin < time; next[s]++) {
            result[s].push_back(timed[next[s]].action);
        }
    };
    for (const auto& [time, from, to, send, receive] : transfers) {
        compute_before(from, time);
        result[static_cast<std::size_t>(from)].push_back(send);
        compute_before(to, time);
        result[static_cast<std::size_t>(to)].push_back(receive);
    }
    for (int stage = 0; stage < stages; stage++) compute_before(stage, clock.makespan + 1);
    return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// Validation

namespace {

class Validator {
public:
    Validator(const std::vector<PipelineSchedule>& lists, int chunks, int micro_batches, bool backward)
        : lists_(lists),
          stages_(static_cast<int>(lists.size())),
          chunks_(chunks),
          last_(stages_ * chunks - 1),
          micro_batches_(micro_batches),
          backward_(backward),
          delays_(delays(lists)) {}

    std::string fault() {
        for (int stage = 0; stage < stages_; stage++) {
            if (std::string found = fault_of_stage(stage); !found.empty()) return text("stage ", stage, ": ", found);
        }
        return fault_of_transfers();
    }

private:
    bool on_same_stage() const { return stages_ == 1; }   // true for the chunk before and the chunk after

    // Returns the actions of the same micro-batch that must stand before `action` in its stage's list.
    std::vector<Action> needs(const Action& action, int piece) const {
        const int chunk = action.chunk;
        std::vector<Action> result;
        auto add = [&](Kind needed, int of) { result.push_back({needed, of, action.micro_batch}); };
        const bool sends = piece < last_ && !on_same_stage();
        switch (action.kind) {
            case Kind::forward:
                if (piece > 0) on_same_stage() ? add(Kind::forward, chunk - 1) : add(Kind::receive_input, chunk);
                break;
            case Kind::backward_input:
                add(Kind::forward, chunk);
                if (piece < last_ && on_same_stage()) add(Kind::backward_input, chunk + 1);
                if (sends) add(Kind::send_output, chunk), add(Kind::receive_output_gradient, chunk);
                break;
            case Kind::backward_weight: add(Kind::backward_input, chunk); break;
            case Kind::send_output:
            case Kind::receive_output_gradient: add(Kind::forward, chunk); break;
            case Kind::send_input_gradient: add(Kind::backward_input, chunk); break;
            case Kind::receive_input: break;
        }
        return result;
    }

    bool belongs(Kind kind, int piece) const {
        switch (kind) {
            case Kind::forward: return true;
            case Kind::backward_input: return backward_;
            case Kind::backward_weight: return backward_ && delays_;
            case Kind::receive_input: return piece > 0 && !on_same_stage();
            case Kind::send_output: return piece < last_ && !on_same_stage();
            case Kind::receive_output_gradient: return backward_ && piece < last_ && !on_same_stage();
            case Kind::send_input_gradient: return backward_ && piece > 0 && !on_same_stage();
        }
        return false;
    }

    std::string fault_of_stage(int stage) const {
        constexpr int kinds = static_cast<int>(Kind::send_input_gradient) + 1;
        std::vector<char> done(static_cast<std::size_t>(kinds * chunks_ * micro_batches_), 0);
        auto is_done = [&](const Action& a) -> char& {
            return done[static_cast<std::size_t>((static_cast<int>(a.kind) * chunks_ + a.chunk) * micro_batches_ +
                                                 a.micro_batch)];
        };
        std::map<std::pair<Kind, int>, int> next;   // micro-batch, of backwards
        for (const Action& action : lists_[static_cast<std::size_t>(stage)]) {
            const auto& [kind, chunk, m] = action;
            const int piece = chunk * stages_ + stage;
            if (chunk < 0 || chunk >= chunks_ || m < 0 || m >= micro_batches_ || !belongs(kind, piece)) {
                return describe(action) + " does not belong there";
            }
            for (const Action& before : needs(action, piece)) {
                if (!is_done(before)) return text(describe(action), " before ", describe(before));
            }
            if (std::exchange(is_done(action), 1) != 0) return describe(action) + " twice";
            if (kind != Kind::backward_input && kind != Kind::backward_weight) continue;
            if (int& expected = next[{kind, chunk}]; m != expected++) {
                return text(describe(action), " out of order: gradients are added in the order of micro-batches");
            }
        }
        for (int chunk = 0; chunk < chunks_; chunk++) {
            for (int kind = 0; kind < kinds; kind++) {
                if (!belongs(static_cast<Kind>(kind), chunk * stages_ + stage)) continue;
                for (int m = 0; m < micro_batches_; m++) {
                    const Action action{static_cast<Kind>(kind), chunk, m};
                    if (!is_done(action)) return describe(action) + " is missing";
                }
            }
        }
        return "";
    }

    // Returns the stage at the other end of a transfer, and the action there.
    std::pair<int, Action> other_end(int stage, const Action& action) const {
        const bool up = action.kind == Kind::send_output || action.kind == Kind::receive_output_gradient;
        const int piece = action.chunk * stages_ + stage + (up ? 1 : -1);
        static constexpr std::array opposite{Kind::send_output, Kind::receive_input, Kind::send_input_gradient,
                                             Kind::receive_output_gradient};
        const Kind kind =
            opposite[static_cast<std::size_t>(action.kind) - static_cast<std::size_t>(Kind::receive_input)];
        return {piece % stages_, {kind, piece / stages_, action.micro_batch}};
    }

    // Finds stages that wait for ever: each does one action at a time, and waits in a transfer for its other end.
    std::string fault_of_transfers() const {
        const auto next = run_lists(lists_, [&](std::size_t stage, const Action& action, auto& positions) {
            if (!is_transfer(action.kind)) return true;
            const auto [peer, expected] = other_end(static_cast<int>(stage), action);
            const auto p = static_cast<std::size_t>(peer);
            if (positions[p] == lists_[p].size() || lists_[p][positions[p]] != expected) return false;
            positions[p]++;
            return true;
        });
        std::string waiting;
        for (std::size_t stage = 0; stage < lists_.size(); stage++) {
            if (next[stage] == lists_[stage].size()) continue;
            const Action& action = lists_[stage][next[stage]];
            waiting += text(waiting.empty() ? "" : "; ", "stage ", stage, " in ", describe(action), " for stage ",
                            other_end(static_cast<int>(stage), action).first);
        }
        return waiting.empty() ? "" : "stages wait for each other for ever: " + waiting;
    }

    const std::vector<PipelineSchedule>& lists_;
    int stages_, chunks_, last_, micro_batches_;
    bool backward_, delays_;
};

}   // namespace

std::string fault_in(const std::vector<PipelineSchedule>& lists, int chunks, int micro_batches, bool backward) {
    return Validator(lists, chunks, micro_batches, backward).fault();
}
