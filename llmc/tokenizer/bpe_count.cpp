// Counts the distinct pieces of a corpus, for bpe_train.h.

#include <algorithm>
#include <cstring>
#include <deque>

#include "llmc/base/error.h"
#include "llmc/tokenizer/bpe_train.h"
#include "llmc/tokenizer/jsonl.h"
#include "llmc/tokenizer/parallel.h"
#include "llmc/tokenizer/unicode.h"

namespace {

// A growing hash table of pieces, of one thread. The bytes lie one behind the other in large blocks.
class PieceCounter {
public:
    PieceCounter() : slots_(1 << 16) {}

    void add(std::string_view piece, std::uint64_t count) {
        std::uint64_t hash = hash_of(piece);
        Slot& slot = find(hash, piece);
        if (slot.bytes == nullptr) {
            slot = {store(piece), static_cast<std::uint32_t>(piece.size()), hash, 0};
            used_++;
        }
        slot.count += count;
        if (2 * used_ > slots_.size()) grow();
    }

    template <class Visit>
    void for_each(Visit visit) const {
        for (const Slot& slot : slots_) {
            if (slot.bytes != nullptr) visit(std::string_view(slot.bytes, slot.length), slot.count);
        }
    }
    std::size_t size() const { return used_; }

private:
    struct Slot {
        const char* bytes = nullptr;
        std::uint32_t length = 0;
        std::uint64_t hash = 0, count = 0;
    };

    static std::uint64_t hash_of(std::string_view piece) {
        std::uint64_t hash = piece.size();
        for (std::size_t at = 0; at < piece.size(); at += 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, piece.data() + at, std::min<std::size_t>(8, piece.size() - at));
            hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
            hash ^= hash >> 29;
        }
        return hash;
    }

    Slot& find(std::uint64_t hash, std::string_view piece) {
        std::size_t at = hash & (slots_.size() - 1);
        while (slots_[at].bytes != nullptr &&
               (slots_[at].hash != hash || std::string_view(slots_[at].bytes, slots_[at].length) != piece)) {
            at = (at + 1) & (slots_.size() - 1);
        }
        return slots_[at];
    }

    void grow() {
        std::vector<Slot> old(2 * slots_.size());
        old.swap(slots_);
        for (const Slot& slot : old) {
            if (slot.bytes != nullptr) find(slot.hash, {slot.bytes, slot.length}) = slot;
        }
    }

    const char* store(std::string_view piece) {
        constexpr std::size_t block_bytes = 1 << 20;
        if (blocks_.empty() || blocks_.back().size() + piece.size() > blocks_.back().capacity()) {
            blocks_.emplace_back();
            blocks_.back().reserve(std::max(block_bytes, piece.size()));
        }
        std::string& block = blocks_.back();
        std::size_t at = block.size();
        block += piece;   // within its capacity, so nothing moves
        return block.data() + at;
    }

    std::vector<Slot> slots_;
    std::deque<std::string> blocks_;
    std::size_t used_ = 0;
};

// Splits the documents of a batch into pieces and counts them; bytes that are not UTF-8 are left out.
class BatchCounter {
public:
    BatchCounter(const InputOptions& input, const SplitPattern& pattern)
        : field_(input.field), splitter_(make_splitter(pattern)) {}

    void count(const InputBatch& batch) {
        for (const InputPart& part : batch.parts) {
            std::string_view text = std::string_view(batch.bytes).substr(part.begin, part.end - part.begin);
            if (batch.jsonl) {
                JsonField field = find_json_string(text, field_, value_);
                if (field.error != nullptr || !field.found) {
                    throw Error(ErrorKind::bad_data,
                                ::text("offset ", part.offset + field.error_at,
                                       ": this line is not JSON with a string \"", field_, "\""),
                                "Name the field that holds the text with --field.");
                }
                text = value_;
            }
            while (!text.empty()) {
                std::size_t valid = valid_utf8_prefix(text);
                count_pieces(text.substr(0, valid));
                text.remove_prefix(valid);
                if (!text.empty()) text.remove_prefix(invalid_utf8_length(text));
            }
        }
    }
    const PieceCounter& counter() const { return counter_; }

private:
    void count_pieces(std::string_view text) {
        std::uint32_t ends[split_capacity], begin = 0;
        splitter_->begin(text);
        while (std::size_t count = splitter_->next(ends, split_capacity)) {
            for (std::size_t i = 0; i < count; i++) {
                counter_.add(text.substr(begin, ends[i] - begin), 1);
                begin = ends[i];
            }
        }
    }

    std::string field_, value_;
    std::unique_ptr<PieceSplitter> splitter_;
    PieceCounter counter_;
};

}   // namespace

std::vector<PieceCount> count_pieces(const InputOptions& input, const BpeTrainOptions& options,
                                     const std::function<void(const BpeTrainProgress&)>& report) {
    struct Work {
        InputBatch batch;
        std::uint64_t bytes_read = 0;
    };
    DocumentCuts cuts;
    cuts.pattern = options.pattern;
    DocumentReader reader(input, cuts);
    std::vector<BatchCounter> counters;
    for (int i = 0; i < options.threads; i++) counters.emplace_back(input, options.pattern);
    InOrder<Work>(options.threads)
        .run(
            [&](Work& work) {
                bool more = reader.next(work.batch);
                work.bytes_read = reader.bytes_read();
                return more;
            },
            [&](Work& work, int thread) { counters[static_cast<std::size_t>(thread)].count(work.batch); },
            [&](Work& work) {
                report({work.bytes_read, reader.bytes_total(), 0, 0, 0});
            });

    PieceCounter all;
    for (const BatchCounter& counter : counters) {
        counter.counter().for_each([&](std::string_view bytes, std::uint64_t count) { all.add(bytes, count); });
    }
    std::vector<PieceCount> pieces;
    pieces.reserve(all.size());
    all.for_each([&](std::string_view bytes, std::uint64_t count) { pieces.push_back({std::string(bytes), count}); });
    std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    return pieces;
}
