// Computes the loss on held-out data: the mean over the first sequences, the same ones for any micro-batch and number
// of ranks. For a mixture, over the first ones of each source.
//
// Bits per byte compare models of different vocabularies: the sum of losses, in bits, over the bytes of the text that
// these tokens stand for. Special tokens stand for no text, but their losses count.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llmc/data/loader.h"
#include "llmc/run/step/step.h"
#include "llmc/run/stopping/agreement.h"

// Loss of a source of a mixture.
struct SourceLoss {
    std::string name;
    float loss;
    std::optional<double> bits_per_byte;
};

// Returns " | x bits per byte", or nothing where that is not known.
std::string in_words(std::optional<double> bits_per_byte);

class Validation {
public:
    // `max_sequences`: per source of `tokens`; -1: all.
    Validation(Step& step, const TokenSet& tokens, int max_sequences, Agreement& agreement);

    // Returns the mean loss, or nothing if a request to stop came before the end; that is at the same micro-batch on
    // all ranks. Collective.
    std::optional<float> loss();
    // By the last loss(): of all data, unless the bytes of their tokens are not known; and of each source of a mixture.
    std::optional<double> bits_per_byte() const { return bits_per_byte_; }
    const std::vector<SourceLoss>& by_source() const { return by_source_; }
    std::uint64_t sequences() const;

private:
    // Windows [begin, end) of one source, how many of their positions have a loss, and the bytes these stand for.
    struct Part {
        std::uint64_t begin, end;
        double targets = 0;   // 0: not counted yet
        double bytes = 0;     // 0: not known
    };
    void count_targets();
    std::optional<double> loss_of(const Part& part);
    // Fills a micro-batch with sequences from `first` on, up to `end`.
    void read(std::uint64_t first, std::uint64_t end, const MicroBatch& to) const;

    Step& step_;
    const TokenSet& tokens_;
    std::vector<Part> parts_;   // one per source
    std::vector<SourceLoss> by_source_;
    std::optional<double> bits_per_byte_;
    Agreement& agreement_;
};
