// Brings gradients from each rank's own sums to the ranks that apply them. The step, the trainer and checkpoints ask
// it, and need not know how gradients travel (as they are, or in fewer bytes: llmc/parallel/compression/), nor whether
// they are applied in the step that made them or in the next one (--staleness).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "llmc/io/file.h"
#include "llmc/optim/optimizer.h"
#include "llmc/parallel/gradient_codec.h"
#include "llmc/parallel/partial_gradients.h"

class Zero;   // llmc/parallel/zero.h

class GradientSync {
public:
    // Sets ZeRO's hooks on the stage if ranks share state. `optimizer`: null if the stage has no backward; then only
    // zero() may be called.
    GradientSync(Stage& stage, const Optimizer* optimizer, const OptimizerOptions& options,
                 const TrainingGroups& groups, Arena& arena);
    ~GradientSync();
    GradientSync(const GradientSync&) = delete;
    GradientSync& operator=(const GradientSync&) = delete;

    Zero* zero() const { return zero_.get(); }   // null: no ranks to share with

    // Says how many steps the run has.
    void ends_after(int steps);

    // Says which step the passes that follow are of, counted from 1. 0: their gradients are not applied, and travel as
    // they are.
    void begins(int step);

    // Begins and ends the passes of a step, in which the gradients of every unit become ready `micro_batches` times.
    // After end_passes() work on the stage's stream sees the gradients that the next update applies, summed over ranks.
    void begin_passes(int micro_batches);
    void end_passes();

    // Says that the step's update has been made, or not if norm->skip says so, or that the host has left it out (norm:
    // null). Gradients of the step that are applied later begin to travel, unless *loss is not finite. `norm` and
    // `loss` are on the device.
    void updated(const GradNorm* norm, const double* loss);

    // Makes work on the stage's stream see the gradients that the next update applies. Collective if they are late.
    void finish();

    // Returns by how many steps gradients are applied late.
    int lateness() const { return staleness_; }

    // Times how gradients travel against as they are, without other work, and says so in a sentence; empty if that is
    // the same. For a run that has made no step. Collective.
    std::string times_in_words();
    // Returns those times, of the slowest ranks. There must be a codec.
    ReductionTimes time_reductions();

    // Step from which on gradients travel in fewer bytes, after `step` steps; 0: none did yet. What a checkpoint keeps.
    int compressed_from(int step) const;
    void restore(int compressed_from);

    // Returns sentences about what a checkpoint of `step` steps keeps of gradients and this run leaves out, or lacks.
    // `reset`: the run begins with new moments.
    std::vector<std::string> about_resumed(const FileSystem& files, const std::string& checkpoint, int step,
                                           bool reset) const;

    // Returns the bytes of gradients on this rank beyond ZeRO's formula.
    double bytes_kept() const;

private:
    void drop_errors(const GradNorm* norm);
    void delay(const double* loss);
    void exchange_tied_gradients();

    Stage& stage_;
    const Optimizer* optimizer_;
    TrainingGroups groups_;
    int staleness_;
    GradCompressionOptions compression_;
    int uncompressed_steps_ = 0;   // at first
    std::unique_ptr<Zero> zero_;
    PartialGradients partial_;
    bool reducing_ = false;   // gradients to apply are not summed yet
};
