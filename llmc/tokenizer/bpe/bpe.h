// Encodes one piece of text by byte pairs: joins the adjacent pair of highest priority until none can be joined
// (Sennrich et al. 2016, on bytes as in GPT-2, or on characters as in SentencePiece).
//
// Priorities come with the vocabulary: the order of a list of merges (GPT-2's vocab.bpe, tokenizer.json), or tiktoken's
// rule that any two tokens may join whose concatenation is a token, lowest id first. Among equals the leftmost joins
// first.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

// Says what becomes of bytes, or characters, that have no token.
struct UnknownByte {
    std::uint32_t id = 0;
    bool fuse = false;   // one id for a row of them
    bool operator==(const UnknownByte&) const = default;
};

struct BpeMerge {
    std::uint32_t left, right, result;
    std::uint32_t priority;   // lower joins earlier; merges of the same priority have the same result
};

// Returns every two ordinary tokens whose concatenation is one, by tiktoken's rule: the priority is the id of the
// result.
std::vector<BpeMerge> all_merges(const std::vector<std::string>& tokens, const std::vector<std::uint8_t>& is_special);

// Maps pairs of ids to ranks: their places among the distinct priorities. A hash table of cache lines: all entries of a
// line are compared at once, and nearly every answer, also that there is none, comes from the first line. Keys of 32
// bits serve ids below 65,535: the less memory, the more of it stays in a core's own cache.
template <class Key>
class PairRanks {
public:
    static constexpr std::uint32_t none = 0xffffffff;
    static constexpr int id_bits = 4 * sizeof(Key);

    void reserve(std::size_t pairs);
    void add(std::uint32_t left, std::uint32_t right, std::uint32_t rank);   // the first of equal pairs counts
    std::uint32_t find(std::uint32_t left, std::uint32_t right) const;       // `none` where there is no such pair

private:
    static constexpr int per_line = 32 / sizeof(Key);
    struct alignas(64) Line {
        Key keys[per_line];
        std::uint32_t ranks[per_line];   // none: an empty place; filled from the first on
    };
    static Key key_of(std::uint32_t left, std::uint32_t right) { return static_cast<Key>(left) << id_bits | right; }
    std::size_t line_of(Key key) const { return key * 0x9e3779b97f4a7c15ull >> shift_; }
    std::vector<Line> lines_;
    int shift_ = 0;
};

using TokenIds = std::unordered_map<std::string_view, std::uint32_t>;   // by their bytes, which lie elsewhere

// Ids of the tokens that stand for single bytes of characters without a token; BpeModel::no_token where there is none.
using ByteFallback = std::array<std::uint32_t, 256>;

class BpeModel {
public:
    // Indexes tokens and merges, at most most_merges of each; `tokens` must outlive the model. With whole_piece_first a
    // piece that is itself a token becomes that token whatever the merges say (tiktoken; `ignore_merges` of
    // tokenizer.json). Tokens with is_special are not found. A byte without a token becomes `unknown`, or is left out.
    // With `fallback` a piece begins as characters, not bytes: one without a token becomes its bytes' tokens, and
    // `unknown` only where one of them has none.
    BpeModel(const std::vector<std::string>& tokens, const std::vector<std::uint8_t>& is_special,
             const std::vector<BpeMerge>& merges, bool whole_piece_first,
             std::optional<UnknownByte> unknown = std::nullopt, std::optional<ByteFallback> fallback = std::nullopt);

    // Working memory of one thread, reused from piece to piece.
    struct Scratch {
        std::vector<std::uint32_t> ids, next, previous;
        std::vector<std::uint32_t> ranks;
        std::vector<std::uint64_t> heap;
    };

    // Appends the ids of a piece. Takes n log n time at most.
    void encode(std::string_view piece, Scratch& scratch, std::vector<std::uint32_t>& ids) const;

    static constexpr std::uint32_t no_token = 0xffffffff;
    static constexpr std::size_t most_merges = (1 << 26) - 1;
    std::uint32_t find(std::string_view bytes) const;   // the id of a token, or no_token

private:
    static constexpr std::uint32_t no_merge = 0xffffffff;
    static constexpr int place_bits = 6;   // a place in a short piece takes so many
    static constexpr std::size_t short_piece = (1 << place_bits) - 2;

    // Returns the rank of two tokens' merge, or no_merge; the lowest is merged first. no_token merges with nothing.
    std::uint32_t rank_of(std::uint32_t left, std::uint32_t right) const;
    std::uint32_t result_of(std::uint32_t rank) const {
        return results_.empty() ? first_result_ + rank : results_[rank];
    }
    void index_merges(const std::vector<BpeMerge>& merges, std::size_t vocab_size);
    void begin_with_bytes(std::string_view piece, std::vector<std::uint32_t>& ids) const;
    void begin_with_characters(std::string_view piece, std::vector<std::uint32_t>& ids) const;
    void encode_short(std::string_view piece, std::vector<std::uint32_t>& ids) const;
    void encode_long(std::string_view piece, Scratch& scratch, std::vector<std::uint32_t>& ids) const;

    TokenIds token_ids_;
    bool whole_piece_first_;
    std::optional<UnknownByte> unknown_;
    std::optional<ByteFallback> fallback_;
    bool all_bytes_ = true;   // every byte has a token, with which pieces begin
    std::uint32_t byte_ids_[256];
    std::vector<std::uint32_t> byte_ranks_;   // ranks of merges of two bytes' tokens, by left byte << 8 | right byte
    // Tokens that merges make, by rank; empty where they are consecutive, as in most vocabularies.
    std::vector<std::uint32_t> results_;
    std::uint32_t first_result_ = 0;
    bool narrow_ = false;
    PairRanks<std::uint32_t> narrow_ranks_;
    PairRanks<std::uint64_t> wide_ranks_;
};
