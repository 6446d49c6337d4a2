#include "llmc/base/utf8.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

#if defined(__x86_64__)
// Tells 32 bytes at a time whether they are well-formed (Keiser and Lemire 2021, "Validating UTF-8 in less than one
// instruction per byte"): a byte and the one before are looked up by three of their halves in tables whose bits are the
// errors that two bytes can show; an error is what all three have in common.
enum TwoBytes : std::uint8_t {
    too_short = 1,         // a first byte, then no continuation
    too_long = 2,          // ASCII, then a continuation
    overlong_3 = 4,        // e0, then 80 to 9f
    too_large = 8,         // f4, then 90 or more; f5 or more
    surrogate = 16,        // ed, then a0 or more
    overlong_2 = 32,       // c0 or c1
    overlong_4 = 64,       // f0, then 80 to 8f; f5 or more, then 80 to 8f
    continuations = 128,   // two in a row: right only as third or fourth bytes
};
constexpr std::uint8_t any = too_short | too_long | continuations;
alignas(16) constexpr std::uint8_t first_high[16] = {too_long,
                                                     too_long,
                                                     too_long,
                                                     too_long,
                                                     too_long,
                                                     too_long,
                                                     too_long,
                                                     too_long,
                                                     continuations,
                                                     continuations,
                                                     continuations,
                                                     continuations,
                                                     too_short | overlong_2,
                                                     too_short,
                                                     too_short | overlong_3 | surrogate,
                                                     too_short | too_large | overlong_4};
alignas(16) constexpr std::uint8_t first_low[16] = {any | overlong_3 | overlong_2 | overlong_4,
                                                    any | overlong_2,
                                                    any,
                                                    any,
                                                    any | too_large,
                                                    any | too_large | overlong_4,
                                                    any | too_large | overlong_4,
                                                    any | too_large | overlong_4,
                                                    any | too_large | overlong_4,
                                                    any | too_large | overlong_4,
                                                    any | too_large | overlong_4,
                                                    any | too_large | overlong_4,
                                                    any | too_large | overlong_4,
                                                    any | too_large | overlong_4 | surrogate,
                                                    any | too_large | overlong_4,
                                                    any | too_large | overlong_4};
constexpr std::uint8_t lowest = too_long | overlong_2 | continuations | overlong_3 | overlong_4;   // 80 to 8f
constexpr std::uint8_t middle = too_long | overlong_2 | continuations | overlong_3 | too_large;    // 90 to 9f
constexpr std::uint8_t highest = too_long | overlong_2 | continuations | surrogate | too_large;    // a0 to bf
alignas(16) constexpr std::uint8_t second_high[16] = {too_short, too_short, too_short, too_short, too_short, too_short,
                                                      too_short, too_short, lowest,    middle,    highest,   highest,
                                                      too_short, too_short, too_short, too_short};

__attribute__((target("avx2"))) __m256i load(const unsigned char* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
__attribute__((target("avx2"))) __m256i table(const std::uint8_t* halves) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(halves)));
}

// Returns how many bytes from `from` on, in steps of 32, end no character wrongly. Three bytes before `from` must be
// readable and end a character; the last character may go on behind.
__attribute__((target("avx2"))) std::size_t well_formed(const unsigned char* bytes, std::size_t from,
                                                        std::size_t size) {
    const __m256i by_first_high = table(first_high), by_first_low = table(first_low),
                  by_second_high = table(second_high);
    const __m256i half = _mm256_set1_epi8(0x0f), top = _mm256_set1_epi8(static_cast<char>(0x80));
    std::size_t at = from;
    for (; at + 32 <= size; at += 32) {
        const __m256i second = load(bytes + at), first = load(bytes + at - 1);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(first, 4), half);
        const __m256i errors =
            _mm256_and_si256(_mm256_and_si256(_mm256_shuffle_epi8(by_first_high, high),
                                              _mm256_shuffle_epi8(by_first_low, _mm256_and_si256(first, half))),
                             _mm256_shuffle_epi8(by_second_high, _mm256_and_si256(_mm256_srli_epi16(second, 4), half)));
        // a third byte stands two behind e0 or more, a fourth three behind f0 or more: the top bit stays from there on
        const __m256i third = _mm256_subs_epu8(load(bytes + at - 2), _mm256_set1_epi8(static_cast<char>(0xe0 - 0x80)));
        const __m256i fourth = _mm256_subs_epu8(load(bytes + at - 3), _mm256_set1_epi8(static_cast<char>(0xf0 - 0x80)));
        const __m256i must_follow = _mm256_and_si256(_mm256_or_si256(third, fourth), top);
        const __m256i wrong = _mm256_xor_si256(must_follow, errors);
        if (!_mm256_testz_si256(wrong, wrong)) break;
    }
    return at;
}
#endif

// Returns a place from `at` on, up to which all is valid. `at` must be the end of a character.
std::size_t pass_over_valid(const unsigned char* bytes, std::size_t at, std::size_t size) {
#if defined(__x86_64__)
    if (at < 3 || !__builtin_cpu_supports("avx2")) return at;
    const std::size_t from = at;
    at = well_formed(bytes, from, size);
    // a character that is cut is read again
    for (std::size_t back = 1; back <= 3 && at - back >= from && at > from; back++) {
        const unsigned char byte = bytes[at - back];
        if (byte < 0x80) break;
        if (byte >= 0xc0) return at - back;
    }
#else
    (void)bytes, (void)size;
#endif
    return at;
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
        at = pass_over_valid(bytes, at, text.size());
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
