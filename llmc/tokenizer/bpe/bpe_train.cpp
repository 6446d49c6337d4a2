#include "llmc/tokenizer/bpe/bpe_train.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "llmc/base/error.h"
#include "llmc/tokenizer/files/files.h"

namespace {

using Pair = std::uint64_t;   // left id << 32 | right id

Pair make_pair(std::uint32_t left, std::uint32_t right) { return static_cast<Pair>(left) << 32 | right; }

// Count of a pair, and the words in which it may be found (a word may be named although the pair has left it).
struct PairState {
    std::int64_t count = 0;
    std::uint32_t stamp = 0;   // the merge that last added occurrences
    std::vector<std::uint32_t> words;
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
        for (Entry& entry : pairs_) push(entry);
    }

    TokenizerData learn(const std::function<void(std::uint32_t merges_done)>& report) {
        while (data_.tokens.size() + 1 < options_.vocab_size && !queue_.empty()) {
            Candidate best = queue_.top();
            queue_.pop();
            const std::int64_t count = best.entry->second.count;
            if (best.count != count) {   // it has become rarer since it was queued
                if (count > 0) push(*best.entry);
                continue;
            }
            if (static_cast<std::uint64_t>(best.count) < options_.min_count) break;
            merge(*best.entry);
            if (data_.merges.size() % 256 == 0) report(static_cast<std::uint32_t>(data_.merges.size()));
        }
        data_.end_of_text = static_cast<std::uint32_t>(data_.tokens.size());
        data_.tokens.push_back("<|endoftext|>");
        data_.is_special.assign(data_.tokens.size(), 0);
        data_.is_special.back() = 1;
        return std::move(data_);
    }

private:
    using Entry = std::pair<const Pair, PairState>;   // stays where it is

    // Symbols of a word: symbols_[begin, begin + length).
    struct Word {
        std::uint64_t begin;
        std::uint32_t length;
        std::int64_t count;
    };
    struct Candidate {
        std::int64_t count;
        Entry* entry;
        bool operator<(const Candidate& other) const {   // more frequent first, then lower ids
            return count != other.count ? count < other.count : entry->first > other.entry->first;
        }
    };

    void push(Entry& entry) { queue_.push({entry.second.count, &entry}); }

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

    // Adds occurrences of a pair in a word to its count, or takes them off.
    void change(std::uint32_t left, std::uint32_t right, std::int64_t count, std::uint32_t word) {
        if (count > 0 && data_.tokens[left].size() + data_.tokens[right].size() > options_.max_token_bytes) return;
        Entry& entry = *pairs_.try_emplace(make_pair(left, right)).first;
        PairState& state = entry.second;
        state.count += count;
        if (count < 0) return;
        if (state.words.empty() || state.words.back() != word) state.words.push_back(word);
        if (state.stamp != stamp_) {
            state.stamp = stamp_;
            grown_.push_back(&entry);
        }
    }

    void merge(Entry& entry) {
        const Pair pair = entry.first;
        std::uint32_t left = static_cast<std::uint32_t>(pair >> 32), right = static_cast<std::uint32_t>(pair);
        std::uint32_t id = static_cast<std::uint32_t>(data_.tokens.size());
        data_.merges.push_back({left, right, id, static_cast<std::uint32_t>(data_.merges.size())});
        data_.tokens.push_back(data_.tokens[left] + data_.tokens[right]);
        stamp_++;
        grown_.clear();
        std::vector<std::uint32_t> words = std::move(entry.second.words);
        for (std::uint32_t word : words) merge_in_word(word, left, right, id);
        entry.second.count = 0;
        for (Entry* grown : grown_) {
            if (grown->second.count > 0) push(*grown);
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
    std::unordered_map<Pair, PairState> pairs_;
    std::priority_queue<Candidate> queue_;
    std::uint32_t stamp_ = 1;
    std::vector<Entry*> grown_;   // pairs that occur more often than before the current merge
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
