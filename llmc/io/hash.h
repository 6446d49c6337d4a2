// Hashes with xxh3: 64 bits for files, shards, tokenizers and manifests, 128 bits for a checkpoint's files. Not
// cryptographic: it finds accidents.
//
// The interface hides xxhash, a header of thousands of lines that only one source file should compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

class Hash64 {
public:
    Hash64();
    ~Hash64();
    Hash64(Hash64&&) noexcept;
    Hash64& operator=(Hash64&&) noexcept;

    void update(const void* bytes, std::size_t count);
    std::uint64_t digest() const;     // hash of everything so far; update() may follow
    std::string digest_128() const;   // the 128-bit hash as 32 lower-case hexadecimal digits

private:
    struct State;
    std::unique_ptr<State> state_;
};

std::uint64_t hash64(std::string_view bytes);

// Converts a hash to 16 lower-case hexadecimal digits, and back; hash_from_text throws std::invalid_argument for
// anything else.
std::string hash_to_text(std::uint64_t hash);
std::uint64_t hash_from_text(std::string_view digits);
