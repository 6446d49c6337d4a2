// Makes a tokenizer of as many ids as Llama 3's, for tests of what holds ids above 65,535.
#pragma once

#include <string>

#include "llmc/tokenizer/tokenizer.h"

inline constexpr std::uint32_t wide_vocab_size = 128256;

// Returns the tokenizer of bytes with words besides: text `<i>` is the i-th id from the last one down, i below `words`.
inline Tokenizer wide_tokenizer(std::uint32_t words, std::uint32_t vocab_size = wide_vocab_size) {
    TokenizerData data = Tokenizer::bytes().data();
    data.tokens.resize(vocab_size);
    data.is_special.resize(vocab_size, 0);
    for (std::uint32_t i = 0; i < words; i++) {
        data.tokens[vocab_size - 1 - i] = "<" + std::to_string(i) + ">";
        data.is_special[vocab_size - 1 - i] = 2;   // added, but not special: always found in text
    }
    return Tokenizer(std::move(data));
}
