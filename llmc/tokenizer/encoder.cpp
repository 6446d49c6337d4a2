// Encoder: special tokens and bytes that are not UTF-8; the rest is done by pieces.h.

#include <algorithm>
#include <bitset>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/bpe/pieces.h"
#include "llmc/tokenizer/tokenizer.h"

namespace {

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

// Finds special tokens in text, in a time that grows with the text and the longest of them, not with their number.
class SpecialTokens {
public:
    SpecialTokens(const std::vector<std::string>& tokens, const std::vector<std::uint8_t>& is_special) {
        for (std::uint32_t id = 0; id < tokens.size(); id++) {
            if (is_special[id] && !tokens[id].empty()) sorted_.push_back({tokens[id], id});
        }
        std::ranges::sort(sorted_);
        const auto repeated = std::ranges::unique(sorted_, {}, &Token::first);   // the lowest id stays
        sorted_.erase(repeated.begin(), repeated.end());
        for (const auto& [bytes, id] : sorted_) {
            longest_ = std::max(longest_, bytes.size());
            for (unsigned second = 0; second < 256; second++) {
                if (bytes.size() == 1 || static_cast<unsigned char>(bytes[1]) == second) {
                    begins_.set(two_bytes(bytes[0], static_cast<char>(second)));
                }
            }
        }
    }

    struct Found {
        std::size_t at, length;
        std::uint32_t id;
    };
    // The first one in the text, the longest where several begin.
    std::optional<Found> first(std::string_view text) const {
        for (std::size_t at = 0; at < text.size(); at++) {
            if (at + 1 < text.size() && !begins_[two_bytes(text[at], text[at + 1])]) continue;
            if (const Token* token = longest_at(text.substr(at, longest_))) {
                return Found{at, token->first.size(), token->second};
            }
        }
        return std::nullopt;
    }

private:
    using Token = std::pair<std::string_view, std::uint32_t>;

    static std::size_t two_bytes(char first, char second) {
        return static_cast<std::size_t>(static_cast<unsigned char>(first)) << 8 | static_cast<unsigned char>(second);
    }
    // The longest token that the text begins with. In sorted order it stands before the text, and behind it only tokens
    // that share more with the text than they have in common with all of it.
    const Token* longest_at(std::string_view text) const {
        while (!text.empty()) {
            const auto behind = std::ranges::upper_bound(sorted_, text, {}, &Token::first);
            if (behind == sorted_.begin()) return nullptr;
            const Token& token = *std::prev(behind);
            if (text.starts_with(token.first)) return &token;
            const auto [end, _] = std::ranges::mismatch(text, token.first);
            text = text.substr(0, static_cast<std::size_t>(end - text.begin()));
        }
        return nullptr;
    }

    std::vector<Token> sorted_;   // views of the tokenizer's tokens
    std::size_t longest_ = 0;
    std::bitset<65536> begins_;   // the first two bytes of a token, or its only one and any other
};

}   // namespace

struct Encoder::State {
    State(const Tokenizer& t, EncodeOptions o)
        : tokenizer(t),
          options(o),
          model(t.model()),
          splitter(make_splitter(t.data().pattern)),
          pieces(make_piece_encoder(model, t.data().pattern, t.vocab_size())),
          special(tokenizer.data().tokens, tokenizer.data().is_special) {
        for (int byte = 0; byte < 256; byte++) {
            char c = static_cast<char>(byte);
            byte_ids[byte] = model.find({&c, 1});
        }
    }

    void encode_ordinary(std::string_view text, Ids& ids);
    void encode_around_invalid(std::string_view text, Ids& ids);
    void encode_valid(std::string_view text, Ids& ids);
    void encode_like_tiktoken(std::string_view text, std::size_t valid, Ids& ids);
    std::size_t last_piece_ids(std::string_view text);

    Tokenizer tokenizer;
    EncodeOptions options;
    const BpeModel& model;
    std::unique_ptr<PieceSplitter> splitter;
    std::uint32_t byte_ids[256];
    BpeModel::Scratch scratch;
    std::unique_ptr<PieceEncoder> pieces;
    SpecialTokens special;
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
    if (state_->options.special == SpecialText::ordinary) {
        state_->encode_ordinary(document, ids);
        return;
    }
    while (!document.empty()) {
        const std::optional<SpecialTokens::Found> found = state_->special.first(document);
        if (found && state_->options.special == SpecialText::refuse) {
            throw Error(ErrorKind::bad_data,
                        text("byte ", found->at, " of the text is the special token ",
                             state_->tokenizer.data().tokens[found->id]),
                        "Let it pass as text with --special ordinary, or as the token with --special encode.");
        }
        state_->encode_ordinary(document.substr(0, found ? found->at : document.size()), ids);
        if (!found) return;
        ids.push_back(found->id);
        document.remove_prefix(found->at + found->length);
    }
}

void Encoder::State::encode_ordinary(std::string_view text, Ids& ids) {
    if (text.size() > max_text_bytes) {
        throw Error(ErrorKind::bad_data, ::text("a document of ", text.size(), " bytes"), "A document has up to 4 GB.");
    }
    std::string normalised;
    if (tokenizer.data().pattern.nfc) text = to_nfc(text, normalised);
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

void Encoder::State::encode_valid(std::string_view text, Ids& ids) {
    if (tokenizer.single_bytes()) {
        std::size_t first = ids.size();
        ids.resize(first + text.size());
        for (std::size_t i = 0; i < text.size(); i++) ids[first + i] = byte_ids[static_cast<unsigned char>(text[i])];
        return;
    }
    pieces->encode(text, ids);
}
