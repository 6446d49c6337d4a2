// The loss on data that is not trained on: the mean over the first so many sequences, the same ones whatever the
// micro-batch and the number of ranks. Of a mixture, over the first so many of each source.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "llmc/data/loader.h"
#include "llmc/run/step.h"
#include "llmc/run/stopping/agreement.h"

using SourceLosses = std::vector<std::pair<std::string, float>>;   // by the source's name

class Validation {
public:
    // `max_sequences` of each source of `tokens`, or -1: all.
    Validation(Step& step, const TokenSet& tokens, int max_sequences, Agreement& agreement);

    // Collective. None where a request to stop came before the end, at the same micro-batch on all ranks.
    std::optional<float> loss();
    // Of the last loss(): that of each source of a mixture.
    const SourceLosses& by_source() const { return by_source_; }
    std::uint64_t sequences() const;

private:
    // Windows [begin, end) of the tokens, and how many of their positions have a loss.
    struct Part {
        std::uint64_t begin, end;
        double targets = 0;   // 0: not counted yet
    };
    void count_targets();
    std::optional<double> loss_of(const Part& part);
    // Sequences from `first` on, up to `end`.
    void read(std::uint64_t first, std::uint64_t end, const MicroBatch& to) const;

    Step& step_;
    const TokenSet& tokens_;
    std::vector<Part> parts_;   // of each source
    SourceLosses by_source_;
    Agreement& agreement_;
};
