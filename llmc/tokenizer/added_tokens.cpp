#include "llmc/tokenizer/added_tokens.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "llmc/base/utf8.h"
#include "llmc/tokenizer/split/unicode.h"

namespace {

constexpr std::size_t most_pairs = 8;   // with more, looking each byte up is as fast

std::size_t two_bytes(char first, char second) {
    return static_cast<std::size_t>(static_cast<unsigned char>(first)) << 8 | static_cast<unsigned char>(second);
}

bool is_space(std::uint32_t code) { return CharTable::get()[code] == CharClass::space; }
bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Return the character that begins at a byte, or ends before it; none where the text ends there, or is not UTF-8.
std::optional<Utf8Char> character_at(std::string_view text, std::size_t at) {
    if (at >= text.size() || valid_utf8_prefix(text.substr(at, 4)) == 0) return std::nullopt;
    return decode_utf8(text.data() + at);
}
std::optional<Utf8Char> character_before(std::string_view text, std::size_t end) {
    std::size_t begin = end;
    while (begin > 0 && end - begin < 4) {
        begin--;
        if ((static_cast<unsigned char>(text[begin]) & 0xc0) != 0x80) break;
    }
    const std::optional<Utf8Char> c = character_at(text.substr(0, end), begin);
    return c && begin + c->length == end ? c : std::nullopt;
}

bool is_single_word(std::string_view text, std::size_t begin, std::size_t end) {
    const std::optional<Utf8Char> before = character_before(text, begin), behind = character_at(text, end);
    return !(before && is_word_character(before->code)) && !(behind && is_word_character(behind->code));
}

}   // namespace

void TokenFinder::finish() {
    std::ranges::stable_sort(sorted_, {}, &Token::first);
    const auto same_bytes = [](const Token& a, const Token& b) { return a.first == b.first; };
    sorted_.erase(std::unique(sorted_.begin(), sorted_.end(), same_bytes), sorted_.end());
    bool all_pairs = true;
    for (const auto& [bytes, id] : sorted_) {
        longest_ = std::max(longest_, bytes.size());
        if (bytes.size() == 1) {
            all_pairs = false;
        } else if (pairs_.empty() || pairs_.back() != std::pair(bytes[0], bytes[1])) {   // equal ones are neighbours
            pairs_.emplace_back(bytes[0], bytes[1]);
        }
        if (bytes.size() > 1) begins_.set(two_bytes(bytes[0], bytes[1]));
        for (unsigned second = 0; bytes.size() == 1 && second < 256; second++) {
            begins_.set(two_bytes(bytes[0], static_cast<char>(second)));
        }
    }
    if (!all_pairs || pairs_.size() > most_pairs) pairs_.clear();
}

std::optional<TokenFinder::Found> TokenFinder::first(std::string_view text, std::size_t from) const {
    for (std::size_t at = next_pair(text, from); at < text.size(); at = next_pair(text, at + 1)) {
        if (at + 1 < text.size() && !begins_[two_bytes(text[at], text[at + 1])]) continue;
        if (const Token* token = longest_at(text.substr(at, longest_))) {
            return Found{at, at + token->first.size(), token->second};
        }
    }
    return std::nullopt;
}

// Passes over bytes with which no token begins, 64 at a time: the loop over them becomes vector instructions.
std::size_t TokenFinder::next_pair(std::string_view text, std::size_t at) const {
    for (; !pairs_.empty() && at + 65 <= text.size(); at += 64) {
        const char* bytes = text.data() + at;
        unsigned char begins = 0;
        for (const auto& [a, b] : pairs_) {
            for (std::size_t i = 0; i < 64; i++) begins |= (bytes[i] == a) & (bytes[i + 1] == b);
        }
        if (begins == 0) continue;
        while (!begins_[two_bytes(text[at], text[at + 1])]) at++;
        break;
    }
    return at;
}

// Returns the longest token that the text begins with. In sorted order it stands before the text, and behind it only
// tokens that share more with the text than they have in common with all of it.
const TokenFinder::Token* TokenFinder::longest_at(std::string_view text) const {
    while (!text.empty()) {
        const auto behind = std::ranges::upper_bound(sorted_, text, {},
                                                     [](const Token& token) { return std::string_view(token.first); });
        if (behind == sorted_.begin()) return nullptr;
        const Token& token = *std::prev(behind);
        if (text.starts_with(token.first)) return &token;
        const auto [end, _] = std::ranges::mismatch(text, token.first);
        text = text.substr(0, static_cast<std::size_t>(end - text.begin()));
    }
    return nullptr;
}

AddedTokens::AddedTokens(const TokenizerData& data) : data_(data) {
    for (std::uint32_t id = 0; id < data.tokens.size(); id++) {
        if (!data.is_special[id] || data.spelling(id).empty()) continue;
        const bool normal = data.rules_of(id).normalized;
        std::string storage;
        const std::string_view bytes =
            normal ? normalized(data.pattern, data.spelling(id), storage) : std::string_view(data.spelling(id));
        if (bytes.empty()) continue;   // the normal form may have nothing that a text could have
        (normal ? normal_ : as_is_).add(std::string(bytes), id);
        if (data.is_special[id] != 1) some_not_special_[normal ? 1 : 0] = true;
    }
    as_is_.finish();
    normal_.finish();
}

bool AddedTokens::found_with(SpecialText special, Form form) const {
    return special == SpecialText::ordinary ? some_not_special_[form == Form::normal ? 1 : 0] : !finder(form).empty();
}

void AddedTokens::split(std::string_view text, Form form, SpecialText special,
                        const std::function<void(std::uint32_t, std::size_t)>& token,
                        const std::function<void(std::size_t, std::size_t)>& between) const {
    std::size_t searched = 0, taken = 0, space_end = 0;
    while (const std::optional<TokenFinder::Found> found = finder(form).first(text, searched)) {
        auto [begin, end, id] = *found;
        searched = end;
        if (special == SpecialText::ordinary && data_.is_special[id] == 1) continue;
        const AddedTokenRules rules = data_.rules_of(id);
        if (rules.single_word && !is_single_word(text, begin, end)) continue;
        while (rules.lstrip && begin > taken) {
            const std::optional<Utf8Char> c = character_before(text, begin);
            if (!c || !is_space(c->code)) break;
            begin -= c->length;
        }
        if (rules.lstrip) begin = std::max(begin, taken);
        if (rules.rstrip) {   // white space is passed over once, however many tokens are in it
            space_end = std::max(space_end, end);
            while (const std::optional<Utf8Char> c = character_at(text, space_end)) {
                if (!is_space(c->code)) break;
                space_end += c->length;
            }
            end = space_end;
        }
        if (begin >= end) continue;   // the token before took all of it along
        if (taken < begin) between(taken, begin);
        token(id, begin);
        taken = end;
    }
    if (taken < text.size()) between(taken, text.size());
}

bool AddedTokens::stay_whole_before_space() const {
    for (std::uint32_t id = 0; id < data_.tokens.size(); id++) {
        if (!data_.is_special[id]) continue;
        const std::string& bytes = data_.spelling(id);
        const AddedTokenRules rules = data_.rules_of(id);
        if (rules.rstrip || (rules.single_word && !bytes.empty() && is_ascii_space(bytes[0]))) return false;
        for (std::size_t at = 1; at < bytes.size(); at++) {
            if (is_ascii_space(bytes[at]) && !is_ascii_space(bytes[at - 1])) return false;
        }
    }
    return true;
}
