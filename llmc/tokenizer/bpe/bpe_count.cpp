// Counts the distinct pieces of a corpus, for bpe_train.h.

#include <algorithm>
#include <unordered_map>

#include "llmc/base/utf8.h"
#include "llmc/io/hash.h"
#include "llmc/tokenizer/bpe/bpe_train.h"
#include "llmc/tokenizer/bpe/cache.h"
#include "llmc/tokenizer/parallel.h"

namespace {

struct PieceHash {
    using is_transparent = void;   // a piece is looked up without a copy
    std::size_t operator()(std::string_view piece) const { return hash64(piece); }
};

using PieceMap = std::unordered_map<std::string, std::uint64_t, PieceHash, std::equal_to<>>;

void add(PieceMap& counts, std::string_view piece, std::uint64_t count) {
    auto found = counts.find(piece);
    if (found == counts.end()) found = counts.try_emplace(std::string(piece)).first;
    found->second += count;
}

// Counts of pieces of up to 15 bytes, most of a text: a table that grows, searched from a hash of the piece on.
class ShortCounts {
public:
    void add(const ShortKey& key, std::uint64_t count) {
        if (2 * used_ >= entries_.size()) grow();
        Entry& entry = entries_[place(key)];
        used_ += entry.count == 0;
        entry.key = key;
        entry.count += count;
    }
    template <class Each>
    void for_each(Each each) const {
        for (const Entry& entry : entries_) {
            if (entry.count > 0) each(entry.key, entry.count);
        }
    }

private:
    struct Entry {
        ShortKey key{};
        std::uint64_t count = 0;   // 0: a free entry
    };
    std::size_t place(const ShortKey& key) const {
        std::size_t at = key.hash() & (entries_.size() - 1);
        while (entries_[at].count != 0 && !(entries_[at].key == key)) at = (at + 1) & (entries_.size() - 1);
        return at;
    }
    void grow() {
        std::vector<Entry> old(std::max<std::size_t>(2 * entries_.size(), 1 << 12));
        old.swap(entries_);
        for (const Entry& entry : old) {
            if (entry.count > 0) entries_[place(entry.key)] = entry;
        }
    }

    std::vector<Entry> entries_;
    std::size_t used_ = 0;
};

// Counts of all pieces.
struct AllCounts {
    ShortCounts shorts;
    PieceMap longs;

    void add(const AllCounts& other) {
        other.shorts.for_each([&](const ShortKey& key, std::uint64_t count) { shorts.add(key, count); });
        for (const auto& [piece, count] : other.longs) ::add(longs, piece, count);
    }
};

// Splits the documents of a batch into pieces and counts them; bytes that are not UTF-8 are left out.
class BatchCounter {
public:
    BatchCounter(const InputOptions& input, const SplitPattern& pattern)
        : input_(input), pattern_(pattern), splitter_(make_splitter(pattern)) {}

    void count(const InputBatch& batch, SkippedLines& skipped) {
        for (const InputPart& part : batch.parts) {
            std::string_view text = std::string_view(batch.bytes).substr(part.begin, part.end - part.begin);
            if (batch.json) text = text_of_object(input_, batch, part, value_, skipped).value_or("");
            if (pattern_.nfc) text = to_nfc(text, normalised_);
            while (!text.empty()) {
                std::size_t valid = valid_utf8_prefix(text);
                count_pieces(text.substr(0, valid));
                text.remove_prefix(valid);
                if (!text.empty()) text.remove_prefix(invalid_utf8_length(text));
            }
        }
    }
    const AllCounts& counts() const { return counts_; }

private:
    void count_pieces(std::string_view text) {
        std::uint32_t ends[split_capacity], begin = 0;
        text = splitter_->begin(text);
        while (std::size_t count = splitter_->next(ends, split_capacity)) {
            for (std::size_t i = 0; i < count; i++) {
                const std::uint32_t length = ends[i] - begin;
                if (length > ShortKey::max_length) {
                    add(counts_.longs, text.substr(begin, length), 1);
                } else if (begin + std::size_t{ShortKey::load_bytes} <= text.size()) {
                    counts_.shorts.add(ShortKey::load(text.data() + begin, length), 1);
                } else {
                    counts_.shorts.add(ShortKey::load_exactly(text.data() + begin, length), 1);
                }
                begin = ends[i];
            }
        }
    }

    const InputOptions& input_;
    const SplitPattern& pattern_;
    std::string value_, normalised_;
    std::unique_ptr<PieceSplitter> splitter_;
    AllCounts counts_;
};

}   // namespace

std::vector<PieceCount> count_pieces(const InputOptions& input, const BpeTrainOptions& options,
                                     const std::function<void(const BpeTrainProgress&)>& report) {
    struct Work {
        InputBatch batch;
        std::uint64_t bytes_read = 0, bytes_total = 0;
        SkippedLines skipped;
    };
    SkippedLines skipped;
    DocumentCuts cuts;
    cuts.pattern = options.pattern;
    DocumentReader reader(input, cuts, options.threads);
    std::vector<BatchCounter> counters;
    for (int i = 0; i < options.threads; i++) counters.emplace_back(input, options.pattern);
    InOrder<Work>(options.threads)
        .run(
            [&](Work& work) {
                bool more = reader.next(work.batch);
                work.bytes_read = reader.bytes_read();
                work.bytes_total = reader.bytes_total();
                work.skipped = {};
                return more;
            },
            [&](Work& work, int thread) { counters[static_cast<std::size_t>(thread)].count(work.batch, work.skipped); },
            [&](Work& work) {
                skipped.add(work.skipped);
                report({work.bytes_read, work.bytes_total, 0, 0, 0, skipped});
            });

    AllCounts all;
    for (const BatchCounter& counter : counters) all.add(counter.counts());
    std::vector<PieceCount> pieces;
    all.shorts.for_each([&](const ShortKey& key, std::uint64_t count) { pieces.push_back({key.bytes(), count}); });
    for (const auto& [piece, count] : all.longs) pieces.push_back({piece, count});
    std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    return pieces;
}
