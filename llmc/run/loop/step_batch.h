// The batch of a step: which samples it has, how they are cut into micro-batches and sequences, and in which order
// those pass through the stage.
//
// A step takes the next samples of the loader (its tokens / T), in order: micro-batch i of B sequences takes samples
// [i B, (i + 1) B) of them; of N data-parallel ranks, rank r takes samples [(i N + r) B, (i N + r + 1) B), so that a
// step has the same samples under every layout.
//
// If --seq-len-schedule has a shorter T' for a step, each of its samples becomes T / T' sequences: a micro-batch of B x
// T tokens has B T / T' sequences, for that step alone.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "llmc/run/loop/trainer_parts.h"
#include "llmc/run/stopping/agreement.h"

class StepBatch {
public:
    explicit StepBatch(const TrainerParts& parts);

    LoaderState loader() const { return loader_.state(); }
    // The next batch begins at `state`, at any step: nothing that was read ahead is of use.
    void seek(const LoaderState& state) { loader_.seek(state), ahead_.reset(); }

    // Begins the batch of a step; the stage has its sequences until end(). `tokens`: at most so many.
    void begin(int step, std::int64_t tokens = INT64_MAX);
    void end();        // the stage has sequences of T tokens again
    void end_step();   // ends the batch; its samples are past
    // Reads the first micro-batch of the next step while the device works on this one.
    void read_ahead();

    int step() const { return step_; }
    const PipelineSchedule& schedule() const { return schedule_; }
    Pipeline::Read reader();
    // Return the tokens that all ranks train on in this step, and in steps (after, to].
    std::int64_t tokens() const { return static_cast<std::int64_t>(samples_) * options_.seq_len; }
    std::int64_t tokens(int after, int to) const { return tokens_.sum(after, to); }
    int length() const { return length_; }   // tokens per sequence

    // Returns how many positions of all ranks' samples have a loss. If some have none, each rank counts some of the
    // samples; then it is collective and waits.
    double count_targets(Agreement& agreement) const;
    // Names the samples for messages, as SOURCE EPOCH/WINDOW.
    std::string names_of_samples() const;
    // Tells the share of attention's pairs that masks of documents and windows leave, and how evenly ranks share them;
    // empty without either. Collective.
    std::string pairs_in_words(Agreement& agreement) const;

private:
    // Micro-batches past this step's last one are the next step's.
    void read(int micro_batch, const MicroBatch& to);
    void cut_sequences(int length);   // sets the stage's sequences

    const TrainerParts& parts_;
    const Options& options_;
    Stage& stage_;
    Loader loader_;
    ByStep tokens_, lengths_;   // per step; per sequence
    int step_ = 0;
    std::uint64_t samples_ = 0;
    int length_ = 0;
    PipelineSchedule schedule_;
    std::optional<LoaderState> ahead_;   // loader state at the start of the step that was read ahead
    std::map<int, double> pairs_;        // with --document-mask: this rank's seen_pairs, by micro-batch
};

// Returns how many pairs of a query and a key a layer's attention computes on a rank, the mean over the layers.
// `starts`: as visible_pairs takes them.
double seen_pairs(const ModelConfig& config, std::span<const std::int32_t> starts, const ContextCut& cut,
                  std::int64_t T);
