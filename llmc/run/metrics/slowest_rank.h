// Finds the rank that the others wait for, and how long, for metrics.jsonl: it shows a slow device, disk or host.
//
// It compares the time from the beginning of a step until a rank has done its passes and reaches the sum over all
// ranks, by events on the stage's stream. This includes reading data, but not waiting for parameters and gradients of
// other ranks (ZeRO). Ranks of one replica of the model (tp, cp, pp) wait for each other within the passes, so replicas
// are compared; in the slowest one, the rank that came last is named. With one replica nothing is measured.
//
// Costs one all-reduce per step, of a double per rank, and no wait of the host: times travel with the next step, just
// before its sums, and belong to the step before.
#pragma once

#include <cuda_runtime.h>

#include <deque>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "llmc/base/arena.h"
#include "llmc/base/pinned.h"
#include "llmc/base/stream.h"
#include "llmc/model/stage/stage.h"
#include "llmc/process/comm.h"
#include "llmc/run/metrics/metrics.h"

// `seconds`: of every rank, in a step that took `step_seconds` in all. Needs two or more replicas.
Waiting slowest_rank(const MeshShape& mesh, std::span<const double> seconds, double step_seconds);

// Notices a rank that stays the slowest.
class SlowestStreak {
public:
    static constexpr int steps = 50;              // in a row, after which a rank is named
    static constexpr double least_share = 0.05;   // waited by the others in each of them, of a step
    // Takes the next step's result. Returns the warning when a rank has been the slowest for long enough, once for each
    // rank; else an empty text. `hosts`: by rank; empty: not known.
    std::string warning(const Waiting& waiting, const std::vector<std::string>& hosts);

private:
    int rank_ = -1, length_ = 0;   // since another one was, or nobody waited for long
    double shares_ = 0;            // sum of its steps
    std::set<int> named_;
};

// Measures on every rank of `all`: every rank makes one and makes the same calls.
class SlowestRank : private UnitHooks {
public:
    // Wraps the stage's hooks until it is destroyed. `all`: all ranks of the run, whose mesh is `mesh`; may be null if
    // there is one rank.
    SlowestRank(Stage& stage, Communicator* all, const MeshShape& mesh, Arena& arena);
    ~SlowestRank();
    SlowestRank(const SlowestRank&) = delete;
    SlowestRank& operator=(const SlowestRank&) = delete;

    void step_begins();
    void passes_end();   // call it after all passes of the step are queued, before its sums
    // Call it after the host has waited for the step, which took `seconds`. Returns the result for the step before, if
    // any.
    std::optional<Waiting> step_ended(double seconds);

private:
    struct Wait {
        TimedEvent begin, end;
    };
    template <class Call>
    void without(Call&& call);   // its waits do not count

    void pass_begins(const std::vector<std::vector<int>>& uses) override { inner_->pass_begins(uses); }
    void use_begins() override;
    void use_ends() override { inner_->use_ends(); }
    bool communicates(Direction direction) const override { return inner_->communicates(direction); }
    void gradients_begin(int slot) override;
    void gradients_ready(int slot, bool at_once) override { inner_->gradients_ready(slot, at_once); }

    Stage& stage_;
    MeshShape mesh_;
    Communicator* all_;            // null: measures nothing
    UnitHooks* inner_ = nullptr;   // null: the stage's hooks are not wrapped
    DeviceBuffer<double> sums_;    // by rank
    PinnedBuffer<double> own_, of_all_;
    TimedEvent begin_, end_;
    std::deque<Wait> waits_;   // the first waits_used_ belong to this step
    std::size_t waits_used_ = 0;
    bool measures_ = false;                       // between step_begins and passes_end
    double own_seconds_ = 0, step_seconds_ = 0;   // for the step before; 0: none
};
