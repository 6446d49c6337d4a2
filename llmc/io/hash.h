// xxh3: the hash of files, shards, tokenizers and manifests, 64 bits; of checkpoints' files 128. Not cryptographic: it
// finds accidents.
//
// Behind an interface because xxhash is a header with thousands of lines that only one source file should compile.
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
    std::uint64_t digest() const;     // of everything so far; more may follow
    std::string digest_128() const;   // the same in 128 bits: 32 lower-case hexadecimal digits

private:
    struct State;
    std::unique_ptr<State> state_;
};

std::uint64_t hash64(std::string_view bytes);

// 16 lower-case hexadecimal digits, and back; anything else throws std::invalid_argument.
std::string hash_to_text(std::uint64_t hash);
std::uint64_t hash_from_text(std::string_view digits);
