// Classes of all Unicode characters.
//
// unicode_table.inc is taken by dev/reference/unicode_classes.py from the tokenizers package (Unicode 16), whose \p{L},
// \p{N} and \s are tiktoken's, too, so that splitting agrees with both on every code point.
#pragma once

#include <cstddef>
#include <cstdint>

enum class CharClass : std::uint8_t { other, letter, number, space };

// Returns true if a code point belongs to a word, as the tokenizers package sees it.
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
