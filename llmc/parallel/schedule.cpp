#include "llmc/parallel/schedule.h"

#include <array>
#include <limits>
#include <map>
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

PipelineSchedule gpipe_list(int micro_batches) {
    PipelineSchedule list;
    for (int m = 0; m < micro_batches; m++) list.push_back({Kind::forward, 0, m});
    for (int m = 0; m < micro_batches; m++) list.push_back({Kind::backward_input, 0, m});
    return list;
}

// Forwards and backwards in given orders: so many forwards first, then one backward for every forward.
PipelineSchedule warmed_up(const PipelineSchedule& forwards, const PipelineSchedule& backwards, int warm_up) {
    PipelineSchedule list;
    const auto first = static_cast<std::size_t>(warm_up);
    for (std::size_t i = 0; i < first; i++) list.push_back(forwards[i]);
    for (std::size_t i = 0; i < backwards.size(); i++) {
        if (first + i < forwards.size()) list.push_back(forwards[first + i]);
        list.push_back(backwards[i]);
    }
    return list;
}

PipelineSchedule one_f_one_b_list(int stage, int stages, int micro_batches, int warmup) {
    PipelineSchedule forwards, backwards;
    for (int m = 0; m < micro_batches; m++) {
        forwards.push_back({Kind::forward, 0, m});
        backwards.push_back({Kind::backward_input, 0, m});
    }
    return warmed_up(forwards, backwards, std::min((stages - 1 - stage) * (1 + warmup), micro_batches));
}

// Micro-batches go through the chunks in groups of as many as there are stages.
PipelineSchedule interleaved_list(int stage, int stages, int chunks, int micro_batches) {
    PipelineSchedule forwards, backwards;
    for (int first = 0; first < micro_batches; first += stages) {
        for (int chunk = 0; chunk < chunks; chunk++) {
            for (int m = first; m < first + stages; m++) {
                forwards.push_back({Kind::forward, chunk, m});
                backwards.push_back({Kind::backward_input, chunks - 1 - chunk, m});
            }
        }
    }
    const int warm_up = 2 * (stages - 1 - stage) + (chunks - 1) * stages;
    return warmed_up(forwards, backwards, std::min(warm_up, micro_batches * chunks));
}

// 1F1B whose gradients of weights wait: the later the stage, the more of them, because the sooner its backwards are
// waited for. Together with the forwards it is ahead by, so many sets of activations as there are stages.
PipelineSchedule zero_bubble_list(int stage, int stages, int micro_batches, int warmup) {
    PipelineSchedule list;
    int waiting = 0, done = 0;
    for (const Action& action : one_f_one_b_list(stage, stages, micro_batches, warmup)) {
        list.push_back(action);
        if (action.kind != Kind::backward_input) continue;
        if (++waiting > stage) {
            list.push_back({Kind::backward_weight, 0, done++});
            waiting--;
        }
    }
    while (done < micro_batches) list.push_back({Kind::backward_weight, 0, done++});
    return list;
}

}   // namespace

std::vector<PipelineSchedule> pipeline_schedules(const PipelineShape& shape) {
    const auto& [kind, stages, micro_batches, chunks, warmup] = shape;
    ENSURE(stages >= 1 && chunks >= 1 && micro_batches >= 1, "a pipeline of ", stages, " x ", chunks);
    if (stages == 1) return {one_stage_schedule(micro_batches, chunks)};
    ENSURE(chunks == 1 || kind == PipelineKind::interleaved, "only the interleaved schedule has several chunks");
    ENSURE(warmup == 0 || warms_up(kind), "a longer warm-up of a schedule that has none");
    ENSURE(kind != PipelineKind::interleaved || micro_batches % stages == 0, "micro-batches go in groups of ", stages);
    std::vector<PipelineSchedule> lists;
    for (int stage = 0; stage < stages; stage++) {
        switch (kind) {
            case PipelineKind::naive: lists.push_back(one_stage_schedule(micro_batches)); break;
            case PipelineKind::gpipe: lists.push_back(gpipe_list(micro_batches)); break;
            case PipelineKind::one_f_one_b:
                lists.push_back(one_f_one_b_list(stage, stages, micro_batches, warmup));
                break;
            case PipelineKind::interleaved:
                lists.push_back(interleaved_list(stage, stages, chunks, micro_batches));
                break;
            case PipelineKind::zero_bubble:
                lists.push_back(zero_bubble_list(stage, stages, micro_batches, warmup));
                break;
        }
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

class Simulator {
public:
    Simulator(const std::vector<PipelineSchedule>& lists, int chunks, const PipelineCosts& costs)
        : lists_(lists), stages_(static_cast<int>(lists.size())), last_(stages_ * chunks - 1), costs_(costs) {
        ENSURE(static_cast<int>(costs.pieces.size()) == last_ + 1, "costs of ", costs.pieces.size(), " pieces");
        delays_ = delays(lists);
        free_.assign(lists.size(), 0);
        next_.assign(lists.size(), 0);
        result_.stages.resize(lists.size());
        for (const PipelineSchedule& list : lists) micro_batches_ = std::max(micro_batches_, micro_batches_of(list));
        for (auto& arrivals : arrivals_) {
            arrivals.assign(static_cast<std::size_t>((last_ + 1) * micro_batches_), not_yet);
        }
        for (auto& links : links_) links.assign(lists.size(), 0);
    }

    Simulation run() {
        for (bool advanced = true; advanced;) {
            advanced = false;
            for (std::size_t stage = 0; stage < lists_.size(); stage++) {
                while (next_[stage] < lists_[stage].size() && step(stage)) advanced = true;
            }
        }
        for (std::size_t stage = 0; stage < lists_.size(); stage++) {
            ENSURE(next_[stage] == lists_[stage].size(), "stage ", stage, " waits for ever");
        }
        return result_;
    }

private:
    bool step(std::size_t stage) {
        const Action& action = lists_[stage][next_[stage]];
        if (!is_transfer(action.kind)) {
            const int piece = action.chunk * stages_ + static_cast<int>(stage);
            double begin = free_[stage];
            const bool needs =
                (action.kind == Kind::forward && piece > 0) || (action.kind == Kind::backward_input && piece < last_);
            if (needs) {
                const double arrived = arrival(action.kind, piece, action.micro_batch);
                if (arrived == not_yet) return false;
                begin = std::max(begin, arrived);
            }
            const double cost = cost_of(action.kind, piece), end = begin + cost;
            free_[stage] = end;
            result_.stages[stage].push_back({action, begin, end});
            result_.makespan = std::max(result_.makespan, end);
            result_.busy += cost;
            hand_on(action, piece, end);
        }
        next_[stage]++;
        return true;
    }

    double cost_of(Kind kind, int piece) const {
        const ActionCosts& costs = costs_.pieces[static_cast<std::size_t>(piece)];
        if (kind == Kind::forward) return costs.forward;
        if (kind == Kind::backward_weight) return costs.weight;
        return delays_ ? costs.input : costs.input + costs.weight;
    }

    void hand_on(const Action& action, int piece, double end) {
        if (action.kind == Kind::backward_weight) return;
        const int to = action.kind == Kind::forward ? piece + 1 : piece - 1;
        if (to < 0 || to > last_) return;
        if (stages_ > 1) {
            double& link = links_[of(action.kind)][static_cast<std::size_t>(piece % stages_)];
            link = end = std::max(end, link) + costs_.transfer;
        }
        arrival(action.kind, to, action.micro_batch) = end;
    }

    static std::size_t of(Kind kind) { return kind == Kind::forward ? 0 : 1; }
    double& arrival(Kind kind, int piece, int micro_batch) {
        return arrivals_[of(kind)][static_cast<std::size_t>(piece * micro_batches_ + micro_batch)];
    }

    const std::vector<PipelineSchedule>& lists_;
    int stages_, last_;
    const PipelineCosts& costs_;
    bool delays_;
    int micro_batches_ = 0;
    std::vector<double> free_;
    std::vector<std::size_t> next_;
    // Of forwards and of backwards: when what a piece needs of a micro-batch is there, and when the link on which a
    // stage sends is free again.
    std::array<std::vector<double>, 2> arrivals_, links_;
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

// On a clock on which every part takes the same time: a transfer happens when what it carries is ready. On both its
// ends it stands behind all actions that have begun by then, and before all others; transfers of one moment have one
// order everywhere.
std::vector<PipelineSchedule> with_transfers(const std::vector<PipelineSchedule>& lists, int chunks) {
    const auto stages = static_cast<int>(lists.size());
    if (stages == 1) return lists;
    const int last = stages * chunks - 1;
    PipelineCosts nominal;
    nominal.pieces.resize(static_cast<std::size_t>(last + 1));
    const Simulation clock = simulate(lists, chunks, nominal);

    struct Transfer {
        double time;
        int from;   // stage
        Action send, receive;
    };
    std::vector<Transfer> transfers;
    for (int stage = 0; stage < stages; stage++) {
        for (const auto& [action, begin, end] : clock.stages[static_cast<std::size_t>(stage)]) {
            const auto& [kind, chunk, m] = action;
            const int piece = chunk * stages + stage;
            if (kind == Kind::forward && piece < last) {
                transfers.push_back(
                    {end, stage, {Kind::send_output, chunk, m}, {Kind::receive_input, (piece + 1) / stages, m}});
            } else if (kind == Kind::backward_input && piece > 0) {
                transfers.push_back({end,
                                     stage,
                                     {Kind::send_input_gradient, chunk, m},
                                     {Kind::receive_output_gradient, (piece - 1) / stages, m}});
            }
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
    for (const auto& [time, from, send, receive] : transfers) {
        const int to = (send.kind == Kind::send_output ? from + 1 : from + stages - 1) % stages;
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
    bool on_same_stage() const { return stages_ == 1; }   // the chunk before and the chunk after

    // What must stand in a stage's list before an action, of the same micro-batch.
    std::vector<Action> needs(const Action& action, int piece) const {
        const auto& [kind, chunk, m] = action;
        std::vector<Action> result;
        auto add = [&](Kind needed, int of) { result.push_back({needed, of, m}); };
        const bool sends = piece < last_ && !on_same_stage();
        switch (kind) {
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

    // Where the other end of a transfer is, and what it is called there.
    std::pair<int, Action> other_end(int stage, const Action& action) const {
        const bool up = action.kind == Kind::send_output || action.kind == Kind::receive_output_gradient;
        const int piece = action.chunk * stages_ + stage + (up ? 1 : -1);
        static constexpr std::array opposite{Kind::send_output, Kind::receive_input, Kind::send_input_gradient,
                                             Kind::receive_output_gradient};
        const Kind kind =
            opposite[static_cast<std::size_t>(action.kind) - static_cast<std::size_t>(Kind::receive_input)];
        return {piece % stages_, {kind, piece / stages_, action.micro_batch}};
    }

    // Every stage does one action at a time, and waits in a transfer for its other end.
    std::string fault_of_transfers() const {
        std::vector<std::size_t> next(lists_.size(), 0);
        auto at = [&](int stage) -> const Action* {
            const auto s = static_cast<std::size_t>(stage);
            return next[s] < lists_[s].size() ? &lists_[s][next[s]] : nullptr;
        };
        for (bool advanced = true; advanced;) {
            advanced = false;
            for (int stage = 0; stage < stages_; stage++) {
                for (const Action* action = at(stage); action != nullptr; action = at(stage)) {
                    if (is_transfer(action->kind)) {
                        const auto [peer, expected] = other_end(stage, *action);
                        const Action* there = at(peer);
                        if (there == nullptr || !(*there == expected)) break;
                        next[static_cast<std::size_t>(peer)]++;
                    }
                    next[static_cast<std::size_t>(stage)]++;
                    advanced = true;
                }
            }
        }
        std::string waiting;
        for (int stage = 0; stage < stages_; stage++) {
            if (const Action* action = at(stage)) {
                waiting += text(waiting.empty() ? "" : "; ", "stage ", stage, " in ", describe(*action), " for stage ",
                                other_end(stage, *action).first);
            }
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
