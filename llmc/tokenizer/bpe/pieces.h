// Encodes valid UTF-8 text to ids fast, piece by piece through a cache.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "llmc/tokenizer/bpe/bpe.h"
#include "llmc/tokenizer/split/split.h"

// Counts of pieces, and of those that were not found in the cache.
struct PieceCounts {
    std::uint64_t pieces = 0, merged = 0;   // merged: not found, so the merges joined their bytes
};

// Encodes texts with `model`, which must outlive it. Not for use by two threads at once.
class PieceEncoder {
public:
    virtual ~PieceEncoder() = default;
    // Appends the ids of a text: valid UTF-8, below 4 GiB; `first`: nothing of its document lies in front of it.
    virtual void encode(std::string_view text, bool first, std::vector<std::uint32_t>& ids) = 0;
    virtual PieceCounts counts() const = 0;
};

// Makes a piece encoder. Its cache holds ids of 16 bits when the vocabulary has no more of them.
std::unique_ptr<PieceEncoder> make_piece_encoder(const BpeModel& model, const SplitPattern& pattern,
                                                 std::size_t vocab_size);
