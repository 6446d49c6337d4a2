#include "llmc/tokenizer/split/byte_masks.h"

#include <initializer_list>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

ByteMasks plain_masks(const char* at) {
    ByteMasks masks{};
    for (int i = 0; i < 64; i++) {
        const unsigned char byte = static_cast<unsigned char>(at[i]);
        const std::uint64_t bit = 1ull << i;
        if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z') masks.letter |= bit;
        if (byte >= '0' && byte <= '9') masks.digit |= bit;
        if (byte == ' ' || (byte >= '\t' && byte <= '\r')) masks.space |= bit;
        if (byte == ' ') masks.blank |= bit;
        if (byte == '\n' || byte == '\r') masks.newline |= bit;
        if (byte == '\'') masks.apostrophe |= bit;
        if (byte >= 0x80) masks.above_ascii |= bit;
    }
    return masks;
}

void plain(const char* bytes, std::size_t blocks, ByteMasks* masks) {
    for (std::size_t i = 0; i < blocks; i++) masks[i] = plain_masks(bytes + 64 * i);
}

#if defined(__x86_64__)
// A byte is in a range of `count` bytes from `first` on if, less `first`, it is below `count` as a number without sign.

__attribute__((target("avx2"))) std::uint64_t bits(__m256i low, __m256i high) {
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
           std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(high))} << 32;
}
__attribute__((target("avx2"))) __m256i in_range(__m256i bytes, char first, char count) {
    const __m256i less = _mm256_sub_epi8(bytes, _mm256_set1_epi8(first));
    return _mm256_cmpeq_epi8(_mm256_min_epu8(less, _mm256_set1_epi8(static_cast<char>(count - 1))), less);
}
__attribute__((target("avx2"))) std::uint64_t equal(__m256i low, __m256i high, char byte) {
    const __m256i wanted = _mm256_set1_epi8(byte);
    return bits(_mm256_cmpeq_epi8(low, wanted), _mm256_cmpeq_epi8(high, wanted));
}
__attribute__((target("avx2"))) ByteMasks avx2_masks(const char* at) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32));
    const __m256i small = _mm256_set1_epi8(0x20);
    ByteMasks masks;
    masks.letter =
        bits(in_range(_mm256_or_si256(low, small), 'a', 26), in_range(_mm256_or_si256(high, small), 'a', 26));
    masks.digit = bits(in_range(low, '0', 10), in_range(high, '0', 10));
    masks.blank = equal(low, high, ' ');
    masks.space = masks.blank | bits(in_range(low, '\t', 5), in_range(high, '\t', 5));
    masks.newline = equal(low, high, '\n') | equal(low, high, '\r');
    masks.apostrophe = equal(low, high, '\'');
    masks.above_ascii = bits(low, high);
    return masks;
}

__attribute__((target("avx2"))) void avx2(const char* bytes, std::size_t blocks, ByteMasks* masks) {
    for (std::size_t i = 0; i < blocks; i++) masks[i] = avx2_masks(bytes + 64 * i);
}

__attribute__((target("avx512bw"))) std::uint64_t in_range(__m512i bytes, char first, char count) {
    return _mm512_cmplt_epu8_mask(_mm512_sub_epi8(bytes, _mm512_set1_epi8(first)), _mm512_set1_epi8(count));
}
__attribute__((target("avx512bw"))) std::uint64_t equal(__m512i bytes, char byte) {
    return _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(byte));
}
__attribute__((target("avx512bw"))) ByteMasks avx512_masks(const char* at) {
    const __m512i bytes = _mm512_loadu_si512(at);
    ByteMasks masks;
    masks.letter = in_range(_mm512_or_si512(bytes, _mm512_set1_epi8(0x20)), 'a', 26);
    masks.digit = in_range(bytes, '0', 10);
    masks.blank = equal(bytes, ' ');
    masks.space = masks.blank | in_range(bytes, '\t', 5);
    masks.newline = equal(bytes, '\n') | equal(bytes, '\r');
    masks.apostrophe = equal(bytes, '\'');
    masks.above_ascii = _mm512_movepi8_mask(bytes);
    return masks;
}
__attribute__((target("avx512bw"))) void avx512(const char* bytes, std::size_t blocks, ByteMasks* masks) {
    for (std::size_t i = 0; i < blocks; i++) masks[i] = avx512_masks(bytes + 64 * i);
}
#endif

}   // namespace

FindMasks masks_of(MaskPath path) {
    if (path == MaskPath::plain) return plain;
#if defined(__x86_64__)
    if (path == MaskPath::avx2 && __builtin_cpu_supports("avx2")) return avx2;
    if (path == MaskPath::avx512 && __builtin_cpu_supports("avx512bw")) return avx512;
#endif
    return nullptr;
}

FindMasks fastest_masks() {
    for (MaskPath path : {MaskPath::avx512, MaskPath::avx2}) {
        if (FindMasks found = masks_of(path)) return found;
    }
    return plain;
}
