// Encoder: special tokens, bytes that are not UTF-8, and the fast path over pieces.

#include <algorithm>
#include <optional>

#include "llmc/base/error.h"
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_cache.h"
#include "llmc/data/tokenizer_unicode.h"

namespace {

constexpr std::size_t batch_pieces = 256;
constexpr std::size_t max_text_bytes = 0xffffff00u;   // offsets within a text are 32 bits

using Ids = std::vector<std::uint32_t>;

// Bytes from the beginning of the text up to the next valid character.
std::size_t ill_formed_run(std::string_view text) {
    std::size_t bad = 0;
    while (bad < text.size() && valid_utf8_prefix(text.substr(bad, 4)) == 0) {
        bad += invalid_utf8_length(text.substr(bad));
    }
    return bad;
}

std::string replace_invalid(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        std::size_t valid = valid_utf8_prefix(text);
        out += text.substr(0, valid);
        text.remove_prefix(valid);
        if (text.empty()) break;
        append_utf8(0xfffd, out);
        text.remove_prefix(invalid_utf8_length(text));
    }
    return out;
}

}   // namespace

struct Encoder::State {
    State(const Tokenizer& t, EncodeOptions o)
        : tokenizer(t), options(o), model(t.model()), splitter(make_splitter(t.data().pattern)) {
        const TokenizerData& data = t.data();
        for (std::uint32_t id = 0; id < data.tokens.size(); id++) {
            if (data.is_special[id] && !data.tokens[id].empty()) special_ids.push_back(id);
        }
        for (int byte = 0; byte < 256; byte++) {
            char c = static_cast<char>(byte);
            byte_ids[byte] = model.find({&c, 1});
        }
    }

    void encode_ordinary(std::string_view text, Ids& ids);
    void encode_around_invalid(std::string_view text, Ids& ids);
    void encode_valid(std::string_view text, Ids& ids);
    void encode_batch(std::string_view text, const std::uint32_t* ends, std::size_t count, Ids& ids);
    void encode_unknown(std::string_view piece, std::size_t i, std::size_t left, Ids& ids);
    void encode_like_tiktoken(std::string_view text, std::size_t valid, Ids& ids);
    std::size_t last_piece_ids(std::string_view text);
    std::optional<std::uint32_t> next_special(std::string_view text, std::size_t& at) const;

    Tokenizer tokenizer;
    EncodeOptions options;
    const BpeModel& model;
    std::unique_ptr<PieceSplitter> splitter;
    std::vector<std::uint32_t> special_ids;
    std::uint32_t byte_ids[256];
    BpeModel::Scratch scratch;
    PieceCache cache;

    // one batch of pieces
    std::uint32_t piece_begin = 0;   // of the next piece
    ShortKey keys[batch_pieces];
    std::size_t slots[batch_pieces];
    Ids missed;             // ids of a piece that was not in the cache
    std::size_t used = 0;   // ids written so far
};

Encoder::Encoder(const Tokenizer& tokenizer, EncodeOptions options) {
    if (!tokenizer.data().can_encode) {
        throw Error(ErrorKind::usage, text("tokenizer ", tokenizer.name(), " can only decode: its file has no merges"),
                    "Give a tokenizer.json, vocab.bpe or tiktoken file.");
    }
    state_ = std::make_unique<State>(tokenizer, options);
}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;

void Encoder::encode(std::string_view document, Ids& ids) {
    if (state_->options.special == SpecialText::ordinary) {
        state_->encode_ordinary(document, ids);
        return;
    }
    while (!document.empty()) {
        std::size_t at = 0;
        std::optional<std::uint32_t> special = state_->next_special(document, at);
        if (special && state_->options.special == SpecialText::refuse) {
            throw Error(ErrorKind::bad_data,
                        text("the text contains the special token ", state_->tokenizer.data().tokens[*special]),
                        "Let it pass as text with --special ordinary, or as the token with --special encode.");
        }
        state_->encode_ordinary(document.substr(0, at), ids);
        if (!special) return;
        ids.push_back(*special);
        document.remove_prefix(at + state_->tokenizer.data().tokens[*special].size());
    }
}

// The first special token in the text, the longest where several begin; `at`: its place, or the end of the text.
std::optional<std::uint32_t> Encoder::State::next_special(std::string_view text, std::size_t& at) const {
    std::optional<std::uint32_t> found;
    at = text.size();
    for (std::uint32_t id : special_ids) {
        const std::string& bytes = tokenizer.data().tokens[id];
        // nothing later than the best so far is of interest
        std::size_t place = text.substr(0, std::min(text.size(), at + bytes.size())).find(bytes);
        if (place == std::string_view::npos) continue;
        bool better = place < at || (found && place == at && bytes.size() > tokenizer.data().tokens[*found].size());
        if (!better) continue;
        at = place;
        found = id;
    }
    return found;
}

void Encoder::State::encode_ordinary(std::string_view text, Ids& ids) {
    if (text.size() > max_text_bytes) {
        throw Error(ErrorKind::bad_data, ::text("a document of ", text.size(), " bytes"), "A document has up to 4 GB.");
    }
    std::size_t valid = valid_utf8_prefix(text);
    if (valid == text.size()) {
        encode_valid(text, ids);
        return;
    }
    switch (options.invalid) {
        case InvalidUtf8::tiktoken: encode_like_tiktoken(text, valid, ids); break;
        case InvalidUtf8::split: encode_around_invalid(text, ids); break;
        case InvalidUtf8::replace: encode_valid(replace_invalid(text), ids); break;
        case InvalidUtf8::refuse:
            throw Error(ErrorKind::bad_data, ::text("byte ", valid, " of the text is not UTF-8"),
                        "Choose with --invalid-utf8 what becomes of such bytes.");
    }
}

// Runs of ill-formed bytes are pieces of their own.
void Encoder::State::encode_around_invalid(std::string_view text, Ids& ids) {
    while (!text.empty()) {
        std::size_t valid = valid_utf8_prefix(text);
        encode_valid(text.substr(0, valid), ids);
        text.remove_prefix(valid);
        std::size_t bad = ill_formed_run(text);
        if (bad > 0) model.encode(text.substr(0, bad), scratch, ids);
        text.remove_prefix(bad);
    }
}

// What tiktoken's _encode_bytes does: the valid beginning is encoded, then the tokens of its last piece (with all
// tokens of white space before it, when it is white space) are taken back, and their bytes and the whole rest are one
// piece.
void Encoder::State::encode_like_tiktoken(std::string_view text, std::size_t valid, Ids& ids) {
    std::string_view beginning = text.substr(0, valid);
    std::size_t first_id = ids.size();
    encode_valid(beginning, ids);
    std::size_t taken = last_piece_ids(beginning);
    auto is_white = [&](std::uint32_t id) {
        return tokenizer.data().tokens[id].find_first_not_of(" \n\t") == std::string::npos;
    };
    if (taken > 0 && is_white(ids[ids.size() - taken])) {
        while (ids.size() - taken > first_id && is_white(ids[ids.size() - taken - 1])) taken++;
    }
    std::size_t taken_bytes = 0;
    for (; taken > 0; taken--) {
        taken_bytes += tokenizer.data().tokens[ids.back()].size();
        ids.pop_back();
    }
    model.encode(text.substr(valid - taken_bytes), scratch, ids);
}

// How many ids the last piece of a text has.
std::size_t Encoder::State::last_piece_ids(std::string_view text) {
    std::uint32_t ends[batch_pieces], begin = 0, last_end = 0;
    splitter->begin(text);
    while (std::size_t count = splitter->next(ends, batch_pieces)) {
        begin = count > 1 ? ends[count - 2] : last_end;
        last_end = ends[count - 1];
    }
    missed.clear();
    if (last_end > begin) model.encode(text.substr(begin, last_end - begin), scratch, missed);
    return missed.size();
}

void Encoder::State::encode_valid(std::string_view text, Ids& ids) {
    if (tokenizer.single_bytes()) {
        std::size_t first = ids.size();
        ids.resize(first + text.size());
        for (std::size_t i = 0; i < text.size(); i++) ids[first + i] = byte_ids[static_cast<unsigned char>(text[i])];
        return;
    }
    std::uint32_t ends[batch_pieces];
    splitter->begin(text);
    piece_begin = 0;
    used = ids.size();
    while (std::size_t count = splitter->next(ends, batch_pieces)) encode_batch(text, ends, count, ids);
    ids.resize(used);
}

// In two passes: the first computes where the cache would hold each piece and starts fetching those lines, the second
// finds most of them there. Room for the ids of every short entry is made before, so that they are copied blindly.
void Encoder::State::encode_batch(std::string_view text, const std::uint32_t* ends, std::size_t count, Ids& ids) {
    std::uint32_t begin = piece_begin;
    for (std::size_t i = 0; i < count; i++) {
        std::uint32_t length = ends[i] - begin;
        if (length <= ShortKey::max_length) [[likely]] {
            const char* at = text.data() + begin;
            bool readable = begin + ShortKey::max_length <= text.size();
            keys[i] = readable ? ShortKey::load(at, length) : ShortKey::load_exactly(at, length);
            slots[i] = PieceCache::short_slot(keys[i]);
            cache.prefetch(slots[i]);
        }
        begin = ends[i];
    }
    ids.resize(used + PieceCache::Short::max_ids * count);
    begin = piece_begin;
    for (std::size_t i = 0; i < count; i++) {
        std::uint32_t length = ends[i] - begin;
        const PieceCache::Short* known = nullptr;
        if (length <= ShortKey::max_length) [[likely]]
            known = cache.find(slots[i], keys[i]);
        if (known != nullptr) [[likely]] {
            std::memcpy(ids.data() + used, known->ids, sizeof known->ids);
            used += known->count;
        } else {
            encode_unknown(text.substr(begin, length), i, count - i, ids);
        }
        begin = ends[i];
    }
    piece_begin = begin;
}

// A piece that the table of short pieces does not hold; number `i` of its batch, with `left` pieces to go.
void Encoder::State::encode_unknown(std::string_view piece, std::size_t i, std::size_t left, Ids& ids) {
    const std::uint32_t* found = nullptr;
    std::size_t count = 0;
    std::size_t long_slot = 0;
    bool fits_long = piece.size() <= PieceCache::Long::max_length;
    if (fits_long) {
        long_slot = PieceCache::long_slot(piece);
        if (const PieceCache::Long* known = cache.find(long_slot, piece)) {
            found = known->ids;
            count = known->count;
        }
    }
    if (found == nullptr) {
        missed.clear();
        model.encode(piece, scratch, missed);
        found = missed.data();
        count = missed.size();
        if (piece.size() <= ShortKey::max_length && count <= PieceCache::Short::max_ids) {
            cache.remember(slots[i], keys[i], found, count);
        } else if (fits_long && count <= PieceCache::Long::max_ids) {
            cache.remember(long_slot, piece, found, count);
        }
    }
    std::size_t needed = used + count + PieceCache::Short::max_ids * left;
    if (needed > ids.size()) ids.resize(needed);
    std::memcpy(ids.data() + used, found, count * sizeof *found);
    used += count;
}
