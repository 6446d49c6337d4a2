// Computes the loss on held-out data: the mean over the first sequences, the same ones for any micro-batch and number
// of ranks. For a mixture, over the first ones of each source.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "llmc/data/loader.h"
#include "llmc/run/step/step.h"
#include "llmc/run/stopping/agreement.h"

using SourceLosses = std::vector<std::pair<std::string, float>>;   // by the source's name

class Validation {
public:
    // `max_sequences`: per source of `tokens`; -1: all.
    Validation(Step& step, const TokenSet& tokens, int max_sequences, Agreement& agreement);

    // Returns the mean loss, or nothing if a request to stop came before the end; that is at the same micro-batch on
    // all ranks. Collective.
    std::optional<float> loss();
    // Mean loss of each source of a mixture, by the last loss().
    const SourceLosses& by_source() const { return by_source_; }
    std::uint64_t sequences() const;

private:
    // Windows [begin, end) of one source, and how many of their positions have a loss.
    struct Part {
        std::uint64_t begin, end;
        double targets = 0;   // 0: not counted yet
    };
    void count_targets();
    std::optional<double> loss_of(const Part& part);
    // Fills a micro-batch with sequences from `first` on, up to `end`.
    void read(std::uint64_t first, std::uint64_t end, const MicroBatch& to) const;

    Step& step_;
    const TokenSet& tokens_;
    std::vector<Part> parts_;   // one per source
    SourceLosses by_source_;
    Agreement& agreement_;
};
