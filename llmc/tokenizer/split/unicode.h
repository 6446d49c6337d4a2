// Classes of all Unicode characters.
//
// The classes are those of tiktoken's regular expressions (\p{L}, \p{N}, \s; Unicode 16), taken from it by
// dev/reference/unicode_classes.py, so that splitting agrees with it on every code point.
#pragma once

#include <cstddef>
#include <cstdint>

enum class CharClass : std::uint8_t { other, letter, number, space };

// Returns true if a code point belongs to a word, as the tokenizers package sees it (dev/reference/word_characters.py).
bool is_word_character(std::uint32_t code);

// Classes of all code points: two levels, blocks of 256 that are equal stored once.
class CharTable {
public:
    static const CharTable& get();

    CharClass operator[](std::uint32_t code) const { return classes_[block_[code >> 8]][code & 0xff]; }

private:
    CharTable();
    static constexpr std::size_t block_count = 0x110000 >> 8;
    static constexpr std::size_t max_distinct_blocks = 512;
    std::uint16_t block_[block_count] = {};
    CharClass classes_[max_distinct_blocks][256] = {};
};
