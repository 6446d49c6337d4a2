// Byte-pair encoding of one piece of text: join the adjacent pair of highest priority until none can be joined
// (Sennrich et al. 2016, on bytes as in GPT-2).
//
// Priorities come with the vocabulary: the order of a list of merges (GPT-2's vocab.bpe, tokenizer.json), or tiktoken's
// rule that any two tokens may join whose concatenation is a token, lowest id first. Among equals the leftmost joins
// first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

struct BpeMerge {
    std::uint32_t left, right, result;
    std::uint32_t priority;   // lower joins earlier
};

// Every two tokens whose concatenation is a token, by tiktoken's rule: the priority is the id of the result.
std::vector<BpeMerge> all_merges(const std::vector<std::string>& tokens);

// A map from pairs of ids to merges, or from byte strings to ids: open addressing, never more than half full.
class BpeModel {
public:
    // `tokens` must outlive the model. byte_ids[b] is the token of byte b alone. With whole_piece_first a piece that is
    // itself a token becomes that token whatever the merges say (tiktoken; `ignore_merges` of tokenizer.json); ids from
    // `ordinary_tokens` on are special and not looked up.
    BpeModel(const std::vector<std::string>& tokens, const std::vector<std::uint8_t>& is_special,
             const std::vector<BpeMerge>& merges, bool whole_piece_first);

    // Working memory of one thread, reused from piece to piece.
    struct Scratch {
        std::vector<std::uint32_t> ids, next, previous;
        std::vector<std::uint64_t> heap, pairs;
    };

    // Appends the ids of a piece. Takes n log n time at most.
    void encode(std::string_view piece, Scratch& scratch, std::vector<std::uint32_t>& ids) const;

    static constexpr std::uint32_t no_token = 0xffffffff;
    std::uint32_t find(std::string_view bytes) const;   // the id of a token, or no_token

private:
    static constexpr std::uint64_t no_merge = ~0ull;
    static constexpr std::size_t short_piece = 48;   // up to here a linear search beats a heap

    struct PairSlot {
        std::uint64_t pair = no_merge;
        std::uint64_t merge = no_merge;   // priority << 32 | result, so that comparing merges compares priorities
    };
    std::uint64_t merge_of(std::uint32_t left, std::uint32_t right) const;
    void encode_short(std::string_view piece, std::vector<std::uint32_t>& ids) const;
    void encode_long(std::string_view piece, Scratch& scratch, std::vector<std::uint32_t>& ids) const;

    const std::vector<std::string>& tokens_;
    bool whole_piece_first_;
    std::uint32_t byte_ids_[256];
    std::vector<PairSlot> pairs_;
    std::vector<std::uint32_t> token_slots_;
    int pair_shift_ = 0, token_shift_ = 0;
};
