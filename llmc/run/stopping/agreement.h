// Lets all ranks agree outside of a step: it sums a value over them, and tells with it whether any rank asks to stop.
// In a step both travel with the step's own sums (step.h).
//
// So all ranks act upon a signal to any of them at the same place, and long work between steps (validation, evaluation)
// asks every few micro-batches.
#pragma once

#include <span>

#include "llmc/base/arena.h"
#include "llmc/process/world.h"
#include "llmc/run/stopping/stop_signals.h"

class Agreement {
public:
    // `all`: communicator of all ranks; null: one rank. `world`: is told of every completed wait; may be null.
    Agreement(Arena& arena, Communicator* all, World* world, const StopSignals& signals, cudaStream_t stream);

    int rank() const { return all_ ? all_->rank() : 0; }
    int ranks() const { return all_ ? all_->size() : 1; }

    // Sums over ranks the value at addend(), once the stream's earlier work is done, or `own`. Collective; waits.
    double* addend() const { return sums_.data(); }
    double sum();
    double sum(double own);
    // Replaces each of `values` by its sum over ranks. Collective; waits.
    void sum(std::span<double> values);
    void check_stop() { sum(0); }   // only learns whether a rank asks to stop
    // Returns the texts of all ranks, by rank; without a world, this rank's alone. Does not ask whether to stop.
    // Collective.
    std::vector<std::string> gather(const std::string& own);

    // Requests to stop that all ranks know of, as of the last sum or step.
    bool stop_asked() const { return stop_.any(); }
    const StopVotes& stop() const { return stop_; }
    // Says what asked to stop: this rank's own request, or the ranks that have one.
    std::string why_stop() const {
        const std::string own = signals_.received();
        return own.empty() ? stop_.words() + " received" : own;
    }
    StopVotes own_vote() const { return StopVotes::of(world_ ? world_->rank() : rank(), !signals_.received().empty()); }
    void take_votes(const StopVotes& stop) { stop_ = stop; }   // takes the votes of a step

private:
    Communicator* all_;
    World* world_;
    const StopSignals& signals_;
    cudaStream_t stream_;
    DeviceBuffer<double> sums_;   // the addend and the votes, or the values
    StopVotes stop_;
};
