// What all ranks must know alike outside of a step: a sum over them, and with it whether one of them asks to stop. In a
// step both travel with the step's own sums (step.h).
//
// So a signal to any one rank is acted upon by all of them at the same place, and long work between steps (validation,
// evaluation) asks every few micro-batches.
#pragma once

#include <span>

#include "llmc/base/arena.h"
#include "llmc/process/world.h"
#include "llmc/run/stopping/stop_signals.h"

class Agreement {
public:
    // `all`: all ranks; null: this one alone. `world`: hears of every wait; may be null.
    Agreement(Arena& arena, Communicator* all, World* world, const StopSignals& signals, cudaStream_t stream);

    int rank() const { return all_ ? all_->rank() : 0; }
    int ranks() const { return all_ ? all_->size() : 1; }

    // The sum over ranks of what is at `addend` when the stream's work so far is done, or of `own`. Collective; waits.
    double* addend() const { return sums_.data(); }
    double sum();
    double sum(double own);
    // Each of `values` becomes its sum. Collective; waits.
    void sum(std::span<double> values);
    void ask() { sum(0); }   // only whether a rank asks to stop
    // Everyone's text, by rank; this one's alone without a world. Nobody is asked whether to stop.
    std::vector<std::string> gather(const std::string& own);

    // What all ranks know of requests to stop, since the last sum or step.
    bool stop_asked() const { return stop_.any(); }
    const StopVotes& stop() const { return stop_; }
    StopVotes own_vote() const { return StopVotes::of(world_ ? world_->rank() : rank(), !signals_.received().empty()); }
    void note(const StopVotes& stop) { stop_ = stop; }   // from a step

private:
    Communicator* all_;
    World* world_;
    const StopSignals& signals_;
    cudaStream_t stream_;
    DeviceBuffer<double> sums_;   // the addend and the votes; or values
    StopVotes stop_;
};
