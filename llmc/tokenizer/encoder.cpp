// Finds added tokens (added_tokens.h) and bytes that are not UTF-8; pieces.h encodes what lies between them.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/added_tokens.h"
#include "llmc/tokenizer/bpe/pieces.h"
#include "llmc/tokenizer/tokenizer.h"

namespace {

constexpr std::size_t max_text_bytes = 0xffffff00u;   // offsets within a text are 32 bits

using Ids = std::vector<std::uint32_t>;

// Returns the bytes from the beginning of the text up to the next valid character.
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
        : tokenizer(t),
          options(o),
          model(t.model()),
          splitter(make_splitter(t.data().pattern)),
          pieces(make_piece_encoder(model, t.data().pattern, t.vocab_size())),
          added(tokenizer.data()) {
        for (int byte = 0; byte < 256; byte++) {
            char c = static_cast<char>(byte);
            byte_ids[byte] = model.find({&c, 1});
        }
    }

    void encode_document(std::string_view text, Ids& ids);
    void encode_between(std::string_view text, std::size_t begin, Ids& ids);
    void encode_ordinary(std::string_view text, bool first, Ids& ids);
    void take(std::uint32_t id, std::size_t at, Ids& ids) const;
    void encode_around_invalid(std::string_view text, bool first, Ids& ids);
    void encode_valid(std::string_view text, bool first, Ids& ids);
    void encode_like_tiktoken(std::string_view text, std::size_t valid, Ids& ids);
    std::size_t last_piece_ids(std::string_view text);

    Tokenizer tokenizer;
    EncodeOptions options;
    const BpeModel& model;
    std::unique_ptr<PieceSplitter> splitter;
    std::uint32_t byte_ids[256];
    BpeModel::Scratch scratch;
    std::unique_ptr<PieceEncoder> pieces;
    AddedTokens added;
    Ids last_piece;
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

PieceCounts Encoder::counts() const { return state_->pieces->counts(); }

void Encoder::encode(std::string_view document, Ids& ids) {
    if (document.size() > max_text_bytes) {
        throw Error(ErrorKind::bad_data, text("a document of ", document.size(), " bytes"),
                    "A document has up to 4 GB.");
    }
    state_->encode_document(document, ids);
}

void Encoder::State::encode_document(std::string_view text, Ids& ids) {
    if (!added.found_with(options.special, AddedTokens::Form::as_is)) return encode_between(text, 0, ids);
    added.split(
        text, AddedTokens::Form::as_is, options.special,
        [&](std::uint32_t id, std::size_t begin) { take(id, begin, ids); },
        [&](std::size_t begin, std::size_t end) { encode_between(text.substr(begin, end - begin), begin, ids); });
}

// Encodes a text without tokens that are found as they are; `begin`: where it begins in the document.
void Encoder::State::encode_between(std::string_view text, std::size_t begin, Ids& ids) {
    std::string storage;
    text = normalized(tokenizer.data().pattern, text, storage);
    if (!added.found_with(options.special, AddedTokens::Form::normal)) return encode_ordinary(text, begin == 0, ids);
    added.split(
        text, AddedTokens::Form::normal, options.special,
        [&](std::uint32_t id, std::size_t at) { take(id, begin + at, ids); },
        [&](std::size_t from, std::size_t to) {
            encode_ordinary(text.substr(from, to - from), begin == 0 && from == 0, ids);
        });
}

void Encoder::State::take(std::uint32_t id, std::size_t at, Ids& ids) const {
    if (options.special == SpecialText::refuse && tokenizer.data().is_special[id] == 1) {
        throw Error(ErrorKind::bad_data,
                    text("byte ", at, " of the text is the special token ", tokenizer.data().tokens[id]),
                    "Let it pass as text with --special ordinary, or as the token with --special encode.");
    }
    ids.push_back(id);
}

// Encodes a normalized text without added tokens; `first`: it begins the document.
void Encoder::State::encode_ordinary(std::string_view text, bool first, Ids& ids) {
    std::size_t valid = valid_utf8_prefix(text);
    if (valid == text.size()) {
        encode_valid(text, first, ids);
        return;
    }
    switch (options.invalid) {
        case InvalidUtf8::tiktoken:
            if (tokenizer.data().pattern.rule == SplitRule::steps || tokenizer.data().by_characters()) {
                encode_around_invalid(text, first, ids);
            } else {
                encode_like_tiktoken(text, valid, ids);
            }
            break;
        case InvalidUtf8::split: encode_around_invalid(text, first, ids); break;
        case InvalidUtf8::replace: encode_valid(replace_invalid(text), first, ids); break;
        case InvalidUtf8::refuse:
            throw Error(ErrorKind::bad_data, ::text("byte ", valid, " of the text is not UTF-8"),
                        "Choose with --invalid-utf8 what becomes of such bytes.");
    }
}

// Encodes runs of ill-formed bytes as pieces of their own.
void Encoder::State::encode_around_invalid(std::string_view text, bool first, Ids& ids) {
    while (!text.empty()) {
        std::size_t valid = valid_utf8_prefix(text);
        encode_valid(text.substr(0, valid), first, ids);
        first = false;
        text.remove_prefix(valid);
        std::size_t bad = ill_formed_run(text);
        if (bad > 0) model.encode(text.substr(0, bad), scratch, ids);
        text.remove_prefix(bad);
    }
}

// Encodes as tiktoken's _encode_bytes does: the valid beginning is encoded, then the tokens of its last piece (with all
// tokens of white space before it, when it is white space) are taken back, and their bytes and the whole rest are one
// piece.
void Encoder::State::encode_like_tiktoken(std::string_view text, std::size_t valid, Ids& ids) {
    std::string_view beginning = text.substr(0, valid);
    std::size_t first_id = ids.size();
    encode_valid(beginning, true, ids);
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

// Returns how many ids the last piece of a text has.
std::size_t Encoder::State::last_piece_ids(std::string_view text) {
    std::uint32_t ends[split_capacity], begin = 0, last_end = 0;
    splitter->begin(text);
    while (std::size_t count = splitter->next(ends, split_capacity)) {
        begin = count > 1 ? ends[count - 2] : last_end;
        last_end = ends[count - 1];
    }
    last_piece.clear();
    if (last_end > begin) model.encode(text.substr(begin, last_end - begin), scratch, last_piece);
    return last_piece.size();
}

void Encoder::State::encode_valid(std::string_view text, bool first, Ids& ids) {
    if (tokenizer.single_bytes()) {
        std::size_t before = ids.size();
        ids.resize(before + text.size());
        for (std::size_t i = 0; i < text.size(); i++) ids[before + i] = byte_ids[static_cast<unsigned char>(text[i])];
        return;
    }
    pieces->encode(text, first, ids);
}
