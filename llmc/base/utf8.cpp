#include "llmc/base/utf8.h"

#include <algorithm>
#include <cstring>

namespace {

// Result for one character. If `valid` is false, `length` is its maximal subpart.
struct Checked {
    bool valid;
    std::size_t length;
};

Checked check_char(const unsigned char* at, std::size_t left) {
    unsigned first = at[0];
    if (first < 0x80) return {true, 1};
    std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4) return {false, 1};
    // the second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF
    unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (left < 2 || at[1] < low || at[1] > high) return {false, 1};
    for (std::size_t i = 2; i < length; i++) {
        if (left <= i || (at[i] & 0xc0) != 0x80) return {false, i};
    }
    return {true, length};
}

}   // namespace

std::size_t valid_utf8_prefix(std::string_view text) {
    const unsigned char* bytes = reinterpret_cast<const unsigned char*>(text.data());
    std::size_t at = 0;
    while (at < text.size()) {
        // Skips runs of ASCII, the common case, 32 bytes at a time.
        while (at + 32 <= text.size()) {
            std::uint64_t word[4];
            std::memcpy(word, bytes + at, sizeof word);
            if ((word[0] | word[1] | word[2] | word[3]) & 0x8080808080808080ull) break;
            at += 32;
        }
        std::size_t stop = std::min(at + 32, text.size());
        while (at < stop) {
            Checked checked = check_char(bytes + at, text.size() - at);
            if (!checked.valid) return at;
            at += checked.length;
        }
    }
    return at;
}

std::size_t invalid_utf8_length(std::string_view text) {
    return check_char(reinterpret_cast<const unsigned char*>(text.data()), text.size()).length;
}
