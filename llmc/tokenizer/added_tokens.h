// Finds the added tokens of a tokenizer in text, as Hugging Face's tokenizers finds them.
//
// Tokens that are to be found in the text as it is are found first, all others in the normal form of what lies between
// them. The first in the text counts, of those that begin there the longest. The time grows with the text and with the
// longest token, not with the number of tokens.
#pragma once

#include <bitset>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/tokenizer/tokenizer.h"

// Finds some tokens in text, by their bytes.
class TokenFinder {
public:
    // Adds a token; of equal ones the first stays.
    void add(std::string bytes, std::uint32_t id) { sorted_.emplace_back(std::move(bytes), id); }
    void finish();   // after the last add()
    bool empty() const { return sorted_.empty(); }

    struct Found {
        std::size_t begin, end;
        std::uint32_t id;
    };
    // Returns the first token in the text from `from` on, the longest where several begin there.
    std::optional<Found> first(std::string_view text, std::size_t from) const;

private:
    using Token = std::pair<std::string, std::uint32_t>;
    const Token* longest_at(std::string_view text) const;
    std::size_t next_pair(std::string_view text, std::size_t at) const;

    std::vector<Token> sorted_;
    std::size_t longest_ = 0;
    std::vector<std::pair<char, char>>
        pairs_;                   // the first two bytes of all tokens; empty: too many, or a token has one
    std::bitset<65536> begins_;   // the first two bytes of a token, or its only one and any other
};

class AddedTokens {
public:
    // Collects the added tokens of `data`, which must outlive it. Error(usage) where a token needs a normal form that
    // this build lacks.
    explicit AddedTokens(const TokenizerData& data);

    enum class Form { as_is, normal };
    // Returns true if some token can become an id: any, or where special ones are text like any other, one that is not
    // special.
    bool found_with(SpecialText special, Form form) const;
    bool found_with(SpecialText special) const {
        return found_with(special, Form::as_is) || found_with(special, Form::normal);
    }
    // Hands over each token (its id and where it begins) and the texts between them, in their order. Special tokens
    // that count as text are part of these texts.
    void split(std::string_view text, Form form, SpecialText special,
               const std::function<void(std::uint32_t id, std::size_t begin)>& token,
               const std::function<void(std::size_t begin, std::size_t end)>& between) const;
    // Returns true if a text can be cut before any ASCII white space that follows another character, and keeps its
    // tokens.
    bool stay_whole_before_space() const;

private:
    const TokenFinder& finder(Form form) const { return form == Form::as_is ? as_is_ : normal_; }

    const TokenizerData& data_;
    TokenFinder as_is_, normal_;
    bool some_not_special_[2] = {};   // by Form
};
