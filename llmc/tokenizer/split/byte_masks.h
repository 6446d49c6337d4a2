// Classes of 64 bytes at once, by one bit per byte. Three versions with the same results: AVX-512, AVX2, and plain C++
// for every other machine; the processor at hand decides.
#pragma once

#include <cstddef>
#include <cstdint>

// Bit i is set when byte i is such a character. Bytes of characters beyond ASCII are only in above_ascii.
struct ByteMasks {
    std::uint64_t letter, digit, space, blank, newline, apostrophe, above_ascii;
    bool operator==(const ByteMasks&) const = default;
};   // space: \t \n \v \f \r and U+0020; blank: U+0020; newline: \n and \r

// Writes the masks of `blocks` times 64 bytes.
using FindMasks = void (*)(const char* bytes, std::size_t blocks, ByteMasks* masks);

enum class MaskPath { plain, avx2, avx512 };
// Returns the function of a path, or null where this processor does not have it.
FindMasks masks_of(MaskPath path);
// Returns the fastest one.
FindMasks fastest_masks();
