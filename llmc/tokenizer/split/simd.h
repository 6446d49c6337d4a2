// Answers questions about 64 bytes at once, by one bit per byte.
//
// Three versions of the same small class: AVX-512, AVX2, and plain C++ for every other machine.
#pragma once

#include <cstdint>

#if defined(__AVX512BW__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512BW__)

class Bytes64 {
public:
    explicit Bytes64(const char* at) : bytes_(_mm512_loadu_si512(at)) {}
    std::uint64_t equal(char byte) const { return _mm512_cmpeq_epi8_mask(bytes_, _mm512_set1_epi8(byte)); }
    // bytes in [first, first + count)
    std::uint64_t in_range(unsigned char first, unsigned char count) const { return below(bytes_, first, count); }
    std::uint64_t ascii_letters() const { return below(_mm512_or_si512(bytes_, _mm512_set1_epi8(0x20)), 'a', 26); }
    std::uint64_t above_ascii() const { return _mm512_movepi8_mask(bytes_); }

private:
    static std::uint64_t below(__m512i bytes, unsigned char first, unsigned char count) {
        __m512i shifted = _mm512_sub_epi8(bytes, _mm512_set1_epi8(static_cast<char>(first)));
        return _mm512_cmplt_epu8_mask(shifted, _mm512_set1_epi8(static_cast<char>(count)));
    }
    __m512i bytes_;
};

#elif defined(__AVX2__)

class Bytes64 {
public:
    explicit Bytes64(const char* at)
        : low_(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))),
          high_(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32))) {}
    std::uint64_t equal(char byte) const {
        __m256i wanted = _mm256_set1_epi8(byte);
        return bits(_mm256_cmpeq_epi8(low_, wanted), _mm256_cmpeq_epi8(high_, wanted));
    }
    std::uint64_t in_range(unsigned char first, unsigned char count) const {
        return bits(below(low_, first, count), below(high_, first, count));
    }
    std::uint64_t ascii_letters() const {
        __m256i lower = _mm256_set1_epi8(0x20);
        return bits(below(_mm256_or_si256(low_, lower), 'a', 26), below(_mm256_or_si256(high_, lower), 'a', 26));
    }
    std::uint64_t above_ascii() const { return bits(low_, high_); }

private:
    static std::uint64_t bits(__m256i low, __m256i high) {
        return static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
               static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm256_movemask_epi8(high))) << 32;
    }
    static __m256i below(__m256i bytes, unsigned char first, unsigned char count) {
        __m256i shifted = _mm256_sub_epi8(bytes, _mm256_set1_epi8(static_cast<char>(first)));
        __m256i last = _mm256_set1_epi8(static_cast<char>(count - 1));
        return _mm256_cmpeq_epi8(_mm256_min_epu8(shifted, last), shifted);
    }
    __m256i low_, high_;
};

#else

class Bytes64 {
public:
    explicit Bytes64(const char* at) : bytes_(reinterpret_cast<const unsigned char*>(at)) {}
    std::uint64_t equal(char byte) const { return in_range(static_cast<unsigned char>(byte), 1); }
    std::uint64_t in_range(unsigned char first, unsigned char count) const {
        return collect([=](unsigned char byte) { return static_cast<unsigned char>(byte - first) < count; });
    }
    std::uint64_t ascii_letters() const {
        return collect([](unsigned char byte) { return static_cast<unsigned char>((byte | 0x20) - 'a') < 26; });
    }
    std::uint64_t above_ascii() const {
        return collect([](unsigned char byte) { return byte >= 0x80; });
    }

private:
    template <class Test>
    std::uint64_t collect(Test test) const {
        std::uint64_t bits = 0;
        for (int i = 0; i < 64; i++) bits |= static_cast<std::uint64_t>(test(bytes_[i])) << i;
        return bits;
    }
    const unsigned char* bytes_;
};

#endif
