#include "llmc/tokenizer/bpe/pieces.h"

#include <algorithm>

#include "llmc/tokenizer/bpe/cache.h"

namespace {

constexpr std::size_t batch_pieces = 256;
constexpr std::size_t ahead = 32;   // a cache line is fetched so many pieces before it is read

using Ids = std::vector<std::uint32_t>;

template <class Id>
class CachedEncoder : public PieceEncoder {
public:
    CachedEncoder(const BpeModel& model, const SplitPattern& pattern)
        : model_(model), splitter_(make_splitter(pattern)) {}

    void encode(std::string_view text, bool first, Ids& ids) override {
        std::uint32_t ends[batch_pieces];
        text = splitter_->begin(text, first);
        begin_ = 0;
        while (std::size_t count = splitter_->next(ends, batch_pieces)) encode_batch(text, ends, count, ids);
    }

    PieceCounts counts() const override { return counts_; }

private:
    using Cache = PieceCache<Id>;
    using Short = typename Cache::Short;
    static constexpr std::size_t spare_ids =
        1024;   // for medium and long entries, beside Short::max_ids for each piece

    // Encodes a batch in two passes: the first computes where the cache would hold each piece and starts fetching those
    // lines, the second finds most of them there. Entries are copied whole, whatever their number of ids, into room for
    // all.
    void encode_batch(std::string_view text, const std::uint32_t* ends, std::size_t count, Ids& ids) {
        std::uint32_t begin_ahead = begin_;
        for (std::size_t i = 0; i < std::min(count, ahead); i++) begin_ahead = locate(text, i, begin_ahead, ends[i]);
        counts_.pieces += count;
        std::uint32_t* out = found_;
        for (std::size_t i = 0; i < count; i++) {
            if (i + ahead < count) begin_ahead = locate(text, i + ahead, begin_ahead, ends[i + ahead]);
            const Short* known = cache_.find(slots_[i], keys_[i]);
            if (known != nullptr && known->count() != Short::in_long) [[likely]] {
                out = known->write(out);
            } else {
                const std::uint32_t begin = i == 0 ? begin_ : ends[i - 1];
                out = encode_rare(text.substr(begin, ends[i] - begin), i, known != nullptr, out, ids);
            }
        }
        ids.insert(ids.end(), found_, out);
        begin_ = ends[count - 1];
    }

    // Computes the key and the place in the cache of piece number `i`, and returns its end. A piece that is too long
    // for the short table gets a key that matches nothing, and a hash for the others.
    std::uint32_t locate(std::string_view text, std::size_t i, std::uint32_t begin, std::uint32_t end) {
        const std::uint32_t length = end - begin;
        if (length <= ShortKey::max_length) [[likely]] {
            const char* at = text.data() + begin;
            const bool readable = begin + std::size_t{ShortKey::load_bytes} <= text.size();
            keys_[i] = readable ? ShortKey::load(at, length) : ShortKey::load_exactly(at, length);
            slots_[i] = static_cast<std::uint32_t>(Cache::short_slot(keys_[i]));
            cache_.prefetch_short(slots_[i]);
        } else {
            keys_[i] = ShortKey::none();
            slots_[i] = 0;
            if (length <= Cache::max_length) {
                hashes_[i] = hash64(text.substr(begin, length));
                cache_.prefetch(hashes_[i]);
            }
        }
        return end;
    }

    // Encodes piece number `i` of its batch, whose ids are not in its first slot; `marked`: that says that another
    // table may have them. Writes them to `out`, or appends all found so far and them to `ids`; returns where the next
    // ones belong.
    std::uint32_t* encode_rare(std::string_view piece, std::size_t i, bool marked, std::uint32_t* out, Ids& ids) {
        const bool is_short = piece.size() <= ShortKey::max_length;
        if (is_short && !marked) {
            const Short* known = cache_.find_second(slots_[i], keys_[i]);
            marked = known != nullptr;
            if (marked && known->count() != Short::in_long) return known->write(out);
        }
        if (is_short && marked) hashes_[i] = hash64(piece);
        if ((marked || !is_short) && piece.size() <= Cache::max_length) {
            if (out + Cache::most_written > found_ + i * Short::max_ids + spare_ids) out = append_found(out, ids);
            if (std::uint32_t* end = cache_.write(hashes_[i], piece, out)) return end;
        }
        out = append_found(out, ids);
        merge(piece, i, marked, ids);
        return out;
    }

    std::uint32_t* append_found(std::uint32_t* out, Ids& ids) {
        ids.insert(ids.end(), found_, out);
        return found_;
    }

    // Joins the bytes of a piece that no table has, and remembers its ids.
    void merge(std::string_view piece, std::size_t i, bool marked, Ids& ids) {
        counts_.merged++;
        const std::size_t first = ids.size();
        model_.encode(piece, scratch_, ids);
        const std::size_t count = ids.size() - first;
        const bool is_short = piece.size() <= ShortKey::max_length;
        if (is_short && !marked) cache_.remember(slots_[i], keys_[i], ids.data() + first, count);
        if (!is_short || count > Short::max_ids) {
            if (is_short && !marked) hashes_[i] = hash64(piece);
            cache_.remember(hashes_[i], piece, ids.data() + first, count);
        }
    }

    const BpeModel& model_;
    std::unique_ptr<PieceSplitter> splitter_;
    BpeModel::Scratch scratch_;
    Cache cache_;
    PieceCounts counts_;
    std::uint32_t begin_ = 0;   // begin of the next piece
    ShortKey keys_[batch_pieces];
    std::uint32_t slots_[batch_pieces];
    std::uint64_t hashes_[batch_pieces];   // finds pieces that the short table cannot hold
    std::uint32_t found_[batch_pieces * Short::max_ids + spare_ids + 1];   // ids of the batch, not appended yet
};

}   // namespace

std::unique_ptr<PieceEncoder> make_piece_encoder(const BpeModel& model, const SplitPattern& pattern,
                                                 std::size_t vocab_size) {
    if (vocab_size <= 0x10000) return std::make_unique<CachedEncoder<std::uint16_t>>(model, pattern);
    return std::make_unique<CachedEncoder<std::uint32_t>>(model, pattern);
}
