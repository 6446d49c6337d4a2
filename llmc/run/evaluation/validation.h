// The loss on data that is not trained on: the mean over the first so many sequences, the same ones whatever the
// micro-batch and the number of ranks.
#pragma once

#include <optional>
#include <span>

#include "llmc/data/loader.h"
#include "llmc/run/step.h"
#include "llmc/run/stopping/agreement.h"

class Validation {
public:
    // `max_sequences` of `tokens`, or -1: all.
    Validation(Step& step, const TokenSet& tokens, int max_sequences, Agreement& agreement);

    // Collective. None where a request to stop came before the end, at the same micro-batch on all ranks.
    std::optional<float> loss();

private:
    void read(std::uint64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

    Step& step_;
    const TokenSet& tokens_;
    std::uint64_t sequences_;
    Agreement& agreement_;
};
