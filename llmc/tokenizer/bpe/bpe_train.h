// Learns a byte-pair vocabulary from text (Sennrich et al. 2016, on bytes as in GPT-2).
//
// First every distinct piece of the corpus is counted, on all threads; then the most frequent pair of adjacent tokens
// is joined in all pieces, again and again. Counts of pairs are kept up to date where something changed, so a merge
// costs what it touches. Deterministic: ties go to the pair of lower ids, as in Hugging Face's trainer, whose merges
// come out the same; neither threads nor the order of documents matter.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/tokenizer/input.h"
#include "llmc/tokenizer/tokenizer.h"

struct BpeTrainOptions {
    std::uint32_t vocab_size = 32768;   // bytes, merges and end-of-text together; at least 257
    SplitPattern pattern = {SplitRule::gpt2, ""};
    std::uint64_t min_count = 2;           // rarer pairs are not joined, so the vocabulary may come out smaller
    std::uint32_t max_token_bytes = 255;   // limit of llm.c's tokenizer.bin
    int threads = 1;
    std::string name = "bpe";
};

struct BpeTrainProgress {
    std::uint64_t bytes_done = 0, bytes_total = 0;   // while counting
    std::uint64_t pieces = 0;                        // distinct ones, known after counting
    std::uint32_t merges_done = 0, merges_total = 0;
    SkippedLines skipped;   // so far, while counting
};

// A distinct piece and how often it occurs.
struct PieceCount {
    std::string bytes;
    std::uint64_t count;
};

// Learns a vocabulary. Ids are GPT-2's: the 256 bytes in its order, then the merges, then <|endoftext|>. Throws Error:
// usage for a vocabulary that cannot be, io and bad_data from reading.
TokenizerData train_bpe(const InputOptions& input, const BpeTrainOptions& options,
                        const std::function<void(const BpeTrainProgress&)>& report);

// Do the two steps of train_bpe(). Pieces come sorted by their bytes.
std::vector<PieceCount> count_pieces(const InputOptions& input, const BpeTrainOptions& options,
                                     const std::function<void(const BpeTrainProgress&)>& report);
TokenizerData learn_merges(const std::vector<PieceCount>& pieces, const BpeTrainOptions& options,
                           const std::function<void(const BpeTrainProgress&)>& report);
