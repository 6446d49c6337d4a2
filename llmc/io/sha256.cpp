#include "llmc/io/sha256.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace {

constexpr std::size_t block_bytes = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<std::uint32_t, 8>;

// The first 32 bits of the fractional parts of the square roots of the first 8 primes.
constexpr State initial_state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

void add_block(State& state, const char* block) {
    std::uint32_t words[64];
    for (int i = 0; i < 16; i++) {
        words[i] = 0;
        for (int b = 0; b < 4; b++) words[i] = words[i] << 8 | static_cast<unsigned char>(block[4 * i + b]);
    }
    for (int i = 16; i < 64; i++) {
        const std::uint32_t x = words[i - 15], y = words[i - 2];
        words[i] = words[i - 16] + (std::rotr(x, 7) ^ std::rotr(x, 18) ^ x >> 3) + words[i - 7] +
                   (std::rotr(y, 17) ^ std::rotr(y, 19) ^ y >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int i = 0; i < 64; i++) {
        const std::uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) +
                                  round_constants[i] + words[i];
        const std::uint32_t two =
            (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
    }
    const State added = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < state.size(); i++) state[i] += added[i];
}

// Returns the hash as 32 bytes.
std::string hash_bytes(std::string_view message) {
    std::string padded(message);
    padded += '\x80';
    while (padded.size() % block_bytes != block_bytes - 8) padded += '\0';
    const std::uint64_t bits = 8 * std::uint64_t{message.size()};
    for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bits >> shift);
    State state = initial_state;
    for (std::size_t at = 0; at < padded.size(); at += block_bytes) add_block(state, padded.data() + at);
    std::string result;
    for (const std::uint32_t word : state) {
        for (int shift = 24; shift >= 0; shift -= 8) result += static_cast<char>(word >> shift);
    }
    return result;
}

std::string in_hexadecimal(std::string_view bytes) {
    constexpr const char* digits = "0123456789abcdef";
    std::string result;
    for (const char byte : bytes) {
        result += digits[static_cast<unsigned char>(byte) >> 4];
        result += digits[static_cast<unsigned char>(byte) & 15];
    }
    return result;
}

}   // namespace

std::string sha256(std::string_view bytes) { return in_hexadecimal(hash_bytes(bytes)); }

std::string hmac_sha256(std::string_view key, std::string_view message) {
    std::string inner = key.size() > block_bytes ? hash_bytes(key) : std::string(key);
    inner.resize(block_bytes);
    std::string outer = inner;
    for (char& byte : inner) byte ^= 0x36;
    for (char& byte : outer) byte ^= 0x5c;
    return in_hexadecimal(hash_bytes(outer + hash_bytes(inner.append(message))));
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
    if (a.size() != b.size()) return false;
    unsigned difference = 0;
    for (std::size_t i = 0; i < a.size(); i++) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
    return difference == 0;
}
