// Converts UTF-8 to code points and back, and finds bytes that are not UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

inline constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";   // at the beginning of some programs' files

struct Utf8Char {
    std::uint32_t code;
    std::uint32_t length;   // bytes
};

// Decodes the character that starts at `at`; the text must be valid UTF-8 and `at` the first byte of a character.
inline Utf8Char decode_utf8(const char* at) {
    const unsigned char* b = reinterpret_cast<const unsigned char*>(at);
    if (b[0] < 0x80) return {b[0], 1};
    if (b[0] < 0xe0) return {(b[0] & 0x1fu) << 6 | (b[1] & 0x3fu), 2};
    if (b[0] < 0xf0) return {(b[0] & 0x0fu) << 12 | (b[1] & 0x3fu) << 6 | (b[2] & 0x3fu), 3};
    return {(b[0] & 0x07u) << 18 | (b[1] & 0x3fu) << 12 | (b[2] & 0x3fu) << 6 | (b[3] & 0x3fu), 4};
}

// Appends the UTF-8 bytes of a code point.
template <class String>
void append_utf8(std::uint32_t code, String& out) {
    auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
        put(code);
        return;
    }
    if (code < 0x800) {
        put(0xc0 | code >> 6);
    } else {
        if (code < 0x10000) {
            put(0xe0 | code >> 12);
        } else {
            put(0xf0 | code >> 18);
            put(0x80 | (code >> 12 & 0x3f));
        }
        put(0x80 | (code >> 6 & 0x3f));
    }
    put(0x80 | (code & 0x3f));
}

// Bytes of `text`, from its beginning, that are whole valid characters: text.size() if all are. Valid means what
// Unicode says: no overlong forms, no surrogates, nothing above U+10FFFF.
std::size_t valid_utf8_prefix(std::string_view text);

// Length of the ill-formed sequence at the beginning of `text`, at least 1. Unicode recommends to replace it by one
// U+FFFD (the "maximal subpart", which is also what Python and Rust do).
std::size_t invalid_utf8_length(std::string_view text);
