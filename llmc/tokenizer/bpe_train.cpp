#include "llmc/tokenizer/bpe_train.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "llmc/base/error.h"
#include "llmc/tokenizer/files.h"

namespace {

using Pair = std::uint64_t;   // left id << 32 | right id
constexpr Pair no_pair = ~0ull;

Pair make_pair(std::uint32_t left, std::uint32_t right) { return static_cast<Pair>(left) << 32 | right; }

// How often a pair occurs, and in which words it may be found (a word may be named although the pair has left it).
struct PairState {
    Pair pair = no_pair;
    std::int64_t count = 0;
    std::uint32_t stamp = 0;   // the merge that last added occurrences
    std::vector<std::uint32_t> words;
};

// Pairs by hash; their states stay where they are.
class PairTable {
public:
    PairTable() : slots_(1 << 16, 0) { states_.emplace_back(); }   // state 0: none

    std::uint32_t find_or_add(Pair pair) {
        std::size_t at = slot_of(pair);
        if (slots_[at] != 0) return slots_[at];
        std::uint32_t index = static_cast<std::uint32_t>(states_.size());
        states_.emplace_back().pair = pair;
        slots_[at] = index;
        if (2 * states_.size() > slots_.size()) grow();
        return index;
    }
    PairState& operator[](std::uint32_t index) { return states_[index]; }
    std::size_t size() const { return states_.size(); }

private:
    std::size_t slot_of(Pair pair) const {
        std::size_t at = pair * 0x9e3779b97f4a7c15ull >> (64 - std::countr_zero(slots_.size()));
        while (slots_[at] != 0 && states_[slots_[at]].pair != pair) at = (at + 1) & (slots_.size() - 1);
        return at;
    }
    void grow() {
        slots_.assign(2 * slots_.size(), 0);
        for (std::uint32_t index = 1; index < states_.size(); index++) slots_[slot_of(states_[index].pair)] = index;
    }

    std::vector<std::uint32_t> slots_;   // index of a state; 0: empty
    std::vector<PairState> states_;
};

class Learner {
public:
    Learner(const std::vector<PieceCount>& pieces, const BpeTrainOptions& options) : options_(options) {
        data_.name = options.name;
        data_.pattern = options.pattern;
        // bytes in the order of their characters, which is GPT-2's order and that of Hugging Face's trainer
        std::vector<std::pair<std::uint32_t, int>> bytes;
        for (int byte = 0; byte < 256; byte++)
            bytes.push_back({byte_to_character(static_cast<unsigned char>(byte)), byte});
        std::sort(bytes.begin(), bytes.end());
        for (const auto& [character, byte] : bytes) {
            byte_ids_[byte] = static_cast<std::uint32_t>(data_.tokens.size());
            data_.tokens.push_back(std::string(1, static_cast<char>(byte)));
        }
        for (const PieceCount& piece : pieces) add_word(piece);
        for (std::uint32_t index = 1; index < pairs_.size(); index++) push(index);
    }

    TokenizerData learn(const std::function<void(std::uint32_t merges_done)>& report) {
        while (data_.tokens.size() + 1 < options_.vocab_size && !queue_.empty()) {
            Candidate best = queue_.top();
            queue_.pop();
            PairState& state = pairs_[best.index];
            if (best.count != state.count) {   // it has become rarer since it was queued
                if (state.count > 0) push(best.index);
                continue;
            }
            if (static_cast<std::uint64_t>(best.count) < options_.min_count) break;
            merge(best.index);
            if (data_.merges.size() % 256 == 0) report(static_cast<std::uint32_t>(data_.merges.size()));
        }
        data_.end_of_text = static_cast<std::uint32_t>(data_.tokens.size());
        data_.tokens.push_back("<|endoftext|>");
        data_.is_special.assign(data_.tokens.size(), 0);
        data_.is_special.back() = 1;
        return std::move(data_);
    }

private:
    // The symbols of a word: symbols_[begin, begin + length).
    struct Word {
        std::uint64_t begin;
        std::uint32_t length;
        std::int64_t count;
    };
    struct Candidate {
        std::int64_t count;
        Pair pair;
        std::uint32_t index;
        bool operator<(const Candidate& other) const {   // more frequent first, then lower ids
            return count != other.count ? count < other.count : pair > other.pair;
        }
    };

    void push(std::uint32_t index) { queue_.push({pairs_[index].count, pairs_[index].pair, index}); }

    void add_word(const PieceCount& piece) {
        std::uint32_t number = static_cast<std::uint32_t>(words_.size());
        words_.push_back(
            {symbols_.size(), static_cast<std::uint32_t>(piece.bytes.size()), static_cast<std::int64_t>(piece.count)});
        for (char byte : piece.bytes) symbols_.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
        const std::uint32_t* symbols = symbols_.data() + words_.back().begin;
        for (std::uint32_t i = 0; i + 1 < words_.back().length; i++) {
            change(symbols[i], symbols[i + 1], words_.back().count, number);
        }
    }

    // Counts occurrences of a pair in a word in or out. Returns its state.
    void change(std::uint32_t left, std::uint32_t right, std::int64_t count, std::uint32_t word) {
        if (count > 0 && data_.tokens[left].size() + data_.tokens[right].size() > options_.max_token_bytes) return;
        std::uint32_t index = pairs_.find_or_add(make_pair(left, right));
        PairState& state = pairs_[index];
        state.count += count;
        if (count < 0) return;
        if (state.words.empty() || state.words.back() != word) state.words.push_back(word);
        if (state.stamp != stamp_) {
            state.stamp = stamp_;
            grown_.push_back(index);
        }
    }

    void merge(std::uint32_t index) {
        Pair pair = pairs_[index].pair;
        std::uint32_t left = static_cast<std::uint32_t>(pair >> 32), right = static_cast<std::uint32_t>(pair);
        std::uint32_t id = static_cast<std::uint32_t>(data_.tokens.size());
        data_.merges.push_back({left, right, id, static_cast<std::uint32_t>(data_.merges.size())});
        data_.tokens.push_back(data_.tokens[left] + data_.tokens[right]);
        stamp_++;
        grown_.clear();
        std::vector<std::uint32_t> words = std::move(pairs_[index].words);
        for (std::uint32_t word : words) merge_in_word(word, left, right, id);
        pairs_[index].count = 0;
        for (std::uint32_t grown : grown_) {
            if (pairs_[grown].count > 0) push(grown);
        }
    }

    // Joins every occurrence, from the left; the neighbours of each lose their pair with it and get one with `id`.
    void merge_in_word(std::uint32_t number, std::uint32_t left, std::uint32_t right, std::uint32_t id) {
        Word& word = words_[number];
        std::uint32_t* s = symbols_.data() + word.begin;
        std::uint32_t kept = 0;
        for (std::uint32_t i = 0; i < word.length;) {
            bool here = i + 1 < word.length && s[i] == left && s[i + 1] == right;
            if (!here) {
                s[kept++] = s[i++];
                continue;
            }
            if (kept > 0) {
                uncount(s[kept - 1], left, word.count, number);
                change(s[kept - 1], id, word.count, number);
            }
            if (i + 2 < word.length) {
                uncount(right, s[i + 2], word.count, number);
                // when the next two are joined as well, that step counts the pair of both
                change(id, s[i + 2], word.count, number);
            }
            s[kept++] = id;
            i += 2;
        }
        word.length = kept;
    }

    void uncount(std::uint32_t left, std::uint32_t right, std::int64_t count, std::uint32_t word) {
        if (data_.tokens[left].size() + data_.tokens[right].size() > options_.max_token_bytes) return;
        change(left, right, -count, word);
    }

    const BpeTrainOptions& options_;
    TokenizerData data_;
    std::uint32_t byte_ids_[256];
    std::vector<std::uint32_t> symbols_;
    std::vector<Word> words_;
    PairTable pairs_;
    std::priority_queue<Candidate> queue_;
    std::uint32_t stamp_ = 1;
    std::vector<std::uint32_t> grown_;   // pairs that occur more often than before the current merge
};

}   // namespace

TokenizerData learn_merges(const std::vector<PieceCount>& pieces, const BpeTrainOptions& options,
                           const std::function<void(const BpeTrainProgress&)>& report) {
    if (options.vocab_size < 257) {
        throw Error(ErrorKind::usage, text("a vocabulary of ", options.vocab_size, " tokens"),
                    "It holds the 256 bytes and end-of-text, so 257 at least.");
    }
    if (options.max_token_bytes < 2) throw Error(ErrorKind::usage, "tokens of less than 2 bytes leave nothing to join");
    Learner learner(pieces, options);
    auto report_merges = [&](std::uint32_t done) { report({0, 0, pieces.size(), done, options.vocab_size - 257}); };
    TokenizerData data = learner.learn(report_merges);
    report_merges(static_cast<std::uint32_t>(data.merges.size()));
    return data;
}

TokenizerData train_bpe(const InputOptions& input, const BpeTrainOptions& options,
                        const std::function<void(const BpeTrainProgress&)>& report) {
    std::vector<PieceCount> pieces = count_pieces(input, options, report);
    return learn_merges(pieces, options, report);
}
