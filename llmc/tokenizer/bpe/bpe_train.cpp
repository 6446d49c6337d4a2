#include "llmc/tokenizer/bpe/bpe_train.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/tokenizer/files/files.h"

namespace {

using Pair = std::uint64_t;   // left id << 32 | right id

Pair make_pair(std::uint32_t left, std::uint32_t right) { return static_cast<Pair>(left) << 32 | right; }

// Count of a pair, and the words in which it may be found (a word may be named although the pair has left it).
struct PairState {
    Pair pair;
    std::int64_t count = 0;
    std::uint32_t stamp = 0;   // the merge that last added occurrences
    std::vector<std::uint32_t> words;
};

// Finds the number of a pair's state: a table of open addresses, at most half full.
class PairNumbers {
public:
    // Returns the number of the pair, which is `next` if it had none.
    std::uint32_t find_or_add(Pair pair, std::uint32_t next) {
        if (2 * next >= slots_.size()) grow();
        Slot& slot = slot_of(pair);
        if (slot.number == none) slot = {pair, next};
        return slot.number;
    }

private:
    static constexpr std::uint32_t none = UINT32_MAX;
    struct Slot {
        Pair pair = 0;
        std::uint32_t number = none;
    };
    Slot& slot_of(Pair pair) {
        std::size_t at = hash_number(pair) & (slots_.size() - 1);
        while (slots_[at].number != none && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
        return slots_[at];
    }
    void grow() {
        std::vector<Slot> before(2 * slots_.size());
        std::swap(before, slots_);
        for (const Slot& slot : before) {
            if (slot.number != none) slot_of(slot.pair) = slot;
        }
    }
    static std::uint64_t hash_number(Pair pair) {
        const std::uint64_t mixed = pair * UINT64_C(0x9e3779b97f4a7c15);
        return mixed ^ mixed >> 32;
    }
    std::vector<Slot> slots_ = std::vector<Slot>(1 << 16);
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
        for (std::uint32_t number = 0; number < pairs_.size(); number++) push(number);
    }

    TokenizerData learn(const std::function<void(std::uint32_t merges_done)>& report) {
        while (data_.tokens.size() + 1 < options_.vocab_size && !queue_.empty()) {
            Candidate best = queue_.top();
            queue_.pop();
            const std::int64_t count = pairs_[best.number].count;
            if (best.count != count) {   // it has become rarer since it was queued
                if (count > 0) push(best.number);
                continue;
            }
            if (static_cast<std::uint64_t>(best.count) < options_.min_count) break;
            merge(best.number);
            if (data_.merges.size() % 256 == 0) report(static_cast<std::uint32_t>(data_.merges.size()));
        }
        data_.end_of_text = static_cast<std::uint32_t>(data_.tokens.size());
        data_.tokens.push_back("<|endoftext|>");
        data_.is_special.assign(data_.tokens.size(), 0);
        data_.is_special.back() = 1;
        return std::move(data_);
    }

private:
    // Symbols of a word: symbols_[begin, begin + length).
    struct Word {
        std::uint64_t begin;
        std::uint32_t length;
        std::int64_t count;
    };
    struct Candidate {
        std::int64_t count;
        Pair pair;
        std::uint32_t number;
        bool operator<(const Candidate& other) const {   // more frequent first, then lower ids
            return count != other.count ? count < other.count : pair > other.pair;
        }
    };
    // A pair of the symbol that is merged, or made, with another, by the other's id: found by its hash once a merge.
    struct Neighbour {
        std::uint32_t stamp = 0, number = too_long;
    };
    using Neighbours = std::vector<Neighbour>;
    enum Side { before_left, after_right, before_new, after_new };
    static constexpr std::uint32_t too_long = UINT32_MAX;

    void push(std::uint32_t number) { queue_.push({pairs_[number].count, pairs_[number].pair, number}); }

    void add_word(const PieceCount& piece) {
        std::uint32_t number = static_cast<std::uint32_t>(words_.size());
        words_.push_back(
            {symbols_.size(), static_cast<std::uint32_t>(piece.bytes.size()), static_cast<std::int64_t>(piece.count)});
        for (char byte : piece.bytes) symbols_.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
        const std::uint32_t* symbols = symbols_.data() + words_.back().begin;
        for (std::uint32_t i = 0; i + 1 < words_.back().length; i++) {
            add(number_of(symbols[i], symbols[i + 1]), words_.back().count, number);
        }
    }

    // Returns the number of a pair's state; too_long if it would make too long a token.
    std::uint32_t number_of(std::uint32_t left, std::uint32_t right) {
        if (data_.tokens[left].size() + data_.tokens[right].size() > options_.max_token_bytes) return too_long;
        const std::uint32_t next = static_cast<std::uint32_t>(pairs_.size());
        const std::uint32_t number = numbers_.find_or_add(make_pair(left, right), next);
        if (number == next) pairs_.push_back({.pair = make_pair(left, right), .words = {}});
        return number;
    }
    // Likewise of a neighbour in this merge.
    std::uint32_t number_of(Side side, std::uint32_t left, std::uint32_t right) {
        Neighbour& known = neighbours_[side][side == before_left || side == before_new ? left : right];
        if (known.stamp != stamp_) known = {stamp_, number_of(left, right)};
        return known.number;
    }

    // Adds occurrences of a pair in a word.
    void add(std::uint32_t number, std::int64_t count, std::uint32_t word) {
        if (number == too_long) return;
        PairState& state = pairs_[number];
        state.count += count;
        if (state.words.empty() || state.words.back() != word) state.words.push_back(word);
        if (state.stamp != stamp_) {
            state.stamp = stamp_;
            grown_.push_back(number);
        }
    }
    void take_off(std::uint32_t number, std::int64_t count) {
        if (number != too_long) pairs_[number].count -= count;
    }

    void merge(std::uint32_t number) {
        const Pair pair = pairs_[number].pair;
        std::uint32_t left = static_cast<std::uint32_t>(pair >> 32), right = static_cast<std::uint32_t>(pair);
        std::uint32_t id = static_cast<std::uint32_t>(data_.tokens.size());
        data_.merges.push_back({left, right, id, static_cast<std::uint32_t>(data_.merges.size())});
        data_.tokens.push_back(data_.tokens[left] + data_.tokens[right]);
        for (Neighbours& neighbours : neighbours_) neighbours.resize(data_.tokens.size());
        stamp_++;
        grown_.clear();
        std::vector<std::uint32_t> words = std::move(pairs_[number].words);
        for (std::size_t i = 0; i < words.size(); i++) {
            if (i + 16 < words.size()) __builtin_prefetch(&words_[words[i + 16]]);
            if (i + 8 < words.size()) __builtin_prefetch(&symbols_[words_[words[i + 8]].begin]);
            merge_in_word(words[i], left, right, id);
        }
        pairs_[number].count = 0;
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
                take_off(number_of(before_left, s[kept - 1], left), word.count);
                add(number_of(before_new, s[kept - 1], id), word.count, number);
            }
            if (i + 2 < word.length) {
                take_off(number_of(after_right, right, s[i + 2]), word.count);
                // when the next two are joined as well, that step counts the pair of both
                add(number_of(after_new, id, s[i + 2]), word.count, number);
            }
            s[kept++] = id;
            i += 2;
        }
        word.length = kept;
    }

    const BpeTrainOptions& options_;
    TokenizerData data_;
    std::uint32_t byte_ids_[256];
    std::vector<std::uint32_t> symbols_;
    std::vector<Word> words_;
    std::vector<PairState> pairs_;
    PairNumbers numbers_;
    Neighbours neighbours_[4];   // by Side
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
    auto report_merges = [&](std::uint32_t done) { report({0, 0, pieces.size(), done, options.vocab_size - 257, {}}); };
    TokenizerData data = learner.learn(report_merges);
    report_merges(static_cast<std::uint32_t>(data.merges.size()));
    return data;
}

TokenizerData train_bpe(const InputOptions& input, const BpeTrainOptions& options,
                        const std::function<void(const BpeTrainProgress&)>& report) {
    SkippedLines skipped;
    const std::vector<PieceCount> pieces = count_pieces(input, options, [&](const BpeTrainProgress& progress) {
        skipped = progress.skipped;
        report(progress);
    });
    if (pieces.empty()) {
        const std::string first = text("all ", skipped.count, " lines were passed over, the first: ", skipped.first);
        throw Error(ErrorKind::bad_data,
                    text("no text to learn from: ", skipped.count > 0 ? first : "the inputs hold none in UTF-8"),
                    "Give other inputs, or name the field of JSON lines that holds the text with --field.");
    }
    return learn_merges(pieces, options, report);
}
