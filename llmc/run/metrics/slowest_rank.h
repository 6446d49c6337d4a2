// Which rank the others wait for, and how long: for metrics.jsonl, so that a slow device, disk or host shows.
//
// What is compared is the time from the beginning of a step until a rank has done its passes and comes to what all
// ranks sum, by events on the stage's stream: reading of data is in it, waiting for parameters and gradients of other
// ranks (ZeRO) is not. Ranks of one replica of the model (tp, cp, pp) wait for each other within the passes, so
// the replicas are compared; of the slowest, the rank that came last is named. With one replica nothing is measured.
//
// Costs a step one all-reduce of a double for each rank, and no wait of the host for it: times travel with the next
// step, just before its sums, and belong to the step before.
#pragma once

#include <cuda_runtime.h>

#include <deque>
#include <optional>
#include <span>

#include "llmc/base/arena.h"
#include "llmc/base/pinned.h"
#include "llmc/base/stream.h"
#include "llmc/model/stage.h"
#include "llmc/process/comm.h"
#include "llmc/run/metrics/metrics.h"

// `seconds`: of every rank in a step that took `step_seconds` in all. Needs two replicas.
Waiting slowest_rank(const MeshShape& mesh, std::span<const double> seconds, double step_seconds);

// Collective over `all`: every rank makes one, and calls the same.
class SlowestRank : private UnitHooks {
public:
    // The stage's hooks are passed on to, until this is gone. `all` may be null where there is one rank.
    SlowestRank(Stage& stage, Communicator* all, Arena& arena);
    ~SlowestRank();
    SlowestRank(const SlowestRank&) = delete;
    SlowestRank& operator=(const SlowestRank&) = delete;

    void step_begins();
    void passes_end();   // all passes of the step have been queued, none of its sums
    // The host has waited for the step, which took so long. Returns what was found of the step before, if there was
    // one.
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
    void gradients_ready(int slot) override { inner_->gradients_ready(slot); }

    Stage& stage_;
    Communicator* all_;            // null: nothing is measured
    UnitHooks* inner_ = nullptr;   // null: no hooks in between
    DeviceBuffer<double> sums_;    // by rank
    PinnedBuffer<double> own_, of_all_;
    TimedEvent begin_, end_;
    std::deque<Wait> waits_;   // those of the step come first
    std::size_t waits_used_ = 0;
    bool measures_ = false;                       // between step_begins and passes_end
    double own_seconds_ = 0, step_seconds_ = 0;   // of the step before; 0: there was none
};
