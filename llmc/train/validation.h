// The loss on data that is not trained on: the mean over the first so many sequences, the same ones whatever the
// micro-batch and the number of ranks.
#pragma once

#include <optional>

#include "llmc/data/loader.h"
#include "llmc/model/gpt.h"
#include "llmc/train/agreement.h"

class Validation {
public:
    // `max_sequences` of `tokens`, or -1: all. `batch` is refilled, of the model's B x T.
    Validation(Gpt& model, BatchBuffer& batch, const TokenSet& tokens, int max_sequences, Agreement& agreement);

    // Collective. None where a request to stop came before the end, at the same micro-batch on all ranks. Changes the
    // model's activations.
    std::optional<float> loss();

private:
    void read(std::uint64_t first);

    Gpt& model_;
    BatchBuffer& batch_;
    const TokenSet& tokens_;
    std::uint64_t sequences_;
    Agreement& agreement_;
    std::vector<std::int32_t> inputs_, targets_;   // (B, T), this rank's
};
