#include "llmc/io/hash.h"

#define XXH_INLINE_ALL
#ifdef __AVX512F__
#define XXH_VECTOR XXH_AVX2   // AVX2 is fast enough, and g++ 12 warns about its own AVX-512 intrinsics
#endif
#include <xxhash.h>

#include <charconv>
#include <stdexcept>

#include "llmc/base/log.h"

struct Hash64::State {
    XXH3_state_t xxh3;
};

Hash64::Hash64() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh3); }
Hash64::~Hash64() = default;
Hash64::Hash64(Hash64&&) noexcept = default;
Hash64& Hash64::operator=(Hash64&&) noexcept = default;

void Hash64::update(const void* bytes, std::size_t count) { XXH3_64bits_update(&state_->xxh3, bytes, count); }
std::uint64_t Hash64::digest() const { return XXH3_64bits_digest(&state_->xxh3); }

// xxh3 keeps one state for both lengths; only the final step differs.
std::string Hash64::digest_128() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
    return hash_to_text(hash.high64) + hash_to_text(hash.low64);
}

std::uint64_t hash64(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hash_to_text(std::uint64_t hash) { return formatted("%016llx", static_cast<unsigned long long>(hash)); }

std::uint64_t hash_from_text(std::string_view digits) {
    std::uint64_t hash = 0;
    auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), hash, 16);
    if (problem != std::errc() || end != digits.data() + digits.size() || digits.size() != 16) {
        throw std::invalid_argument("a hash is 16 hexadecimal digits, not '" + std::string(digits) + "'");
    }
    return hash;
}
