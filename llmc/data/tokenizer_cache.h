// Remembers the ids of pieces: most of a text is made of few different words.
//
// Two tables of fixed size, indexed by a hash, where a new entry replaces an old one: what they hold never changes a
// result, only the time it takes. Short pieces of few tokens sit two to a cache line; longer ones in a second table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

// The bytes of a short piece as two words, zeros behind them.
struct ShortKey {
    std::uint64_t low, high;
    std::uint32_t length;

    static constexpr std::uint32_t max_length = 16;

    // Reads 16 bytes at `at` whatever the length: they must be readable.
    static ShortKey load(const char* at, std::uint32_t length) {
        ShortKey key;
        std::memcpy(&key.low, at, 8);
        std::memcpy(&key.high, at + 8, 8);
        key.low &= mask(length);
        key.high &= length > 8 ? mask(length - 8) : 0;
        key.length = length;
        return key;
    }
    static ShortKey load_exactly(const char* at, std::uint32_t length) {
        char padded[max_length] = {};
        std::memcpy(padded, at, length);
        return load(padded, length);
    }
    std::uint64_t hash() const {
        std::uint64_t mixed = (low ^ length) * 0x9e3779b97f4a7c15ull;
        return (mixed ^ mixed >> 32 ^ high * 0xff51afd7ed558ccdull) * 0xc4ceb9fe1a85ec53ull;
    }

private:
    static std::uint64_t mask(std::uint32_t bytes) { return bytes >= 8 ? ~0ull : (1ull << (8 * bytes)) - 1; }
};

class PieceCache {
public:
    struct Short {
        static constexpr std::uint32_t max_ids = 3;
        std::uint64_t low, high;
        std::uint32_t ids[max_ids];
        std::uint16_t length;   // 0: an empty slot
        std::uint16_t count;
    };
    static_assert(sizeof(Short) == 32);

    struct Long {
        static constexpr std::uint32_t max_ids = 15, max_length = 64;
        std::uint32_t ids[max_ids];
        std::uint16_t length;   // 0: an empty slot
        std::uint16_t count;
        char bytes[max_length];
    };
    static_assert(sizeof(Long) == 128);

    PieceCache() : short_(new Pair[short_pairs]()), long_(new Long[long_slots]()) {}

    static std::size_t short_slot(const ShortKey& key) { return key.hash() >> (64 - short_bits); }
    void prefetch(std::size_t slot) const { __builtin_prefetch(&short_[slot]); }

    const Short* find(std::size_t slot, const ShortKey& key) const {
        const Pair& pair = short_[slot];
        for (const Short& entry : pair.entries) {
            if (entry.low == key.low && entry.high == key.high && entry.length == key.length) return &entry;
        }
        return nullptr;
    }
    void remember(std::size_t slot, const ShortKey& key, const std::uint32_t* ids, std::size_t count) {
        Pair& pair = short_[slot];
        pair.entries[1] = pair.entries[0];
        Short& entry = pair.entries[0];
        entry.low = key.low;
        entry.high = key.high;
        entry.length = static_cast<std::uint16_t>(key.length);
        entry.count = static_cast<std::uint16_t>(count);
        std::memcpy(entry.ids, ids, count * sizeof *ids);
    }

    static std::size_t long_slot(std::string_view piece) {
        std::uint64_t hash = piece.size();
        for (std::size_t at = 0; at < piece.size(); at += 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, piece.data() + at, piece.size() - at < 8 ? piece.size() - at : 8);
            hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
            hash ^= hash >> 32;
        }
        return hash * 0xc4ceb9fe1a85ec53ull >> (64 - long_bits);
    }
    const Long* find(std::size_t slot, std::string_view piece) const {
        const Long& entry = long_[slot];
        bool same = entry.length == piece.size() && std::memcmp(entry.bytes, piece.data(), piece.size()) == 0;
        return same ? &entry : nullptr;
    }
    void remember(std::size_t slot, std::string_view piece, const std::uint32_t* ids, std::size_t count) {
        Long& entry = long_[slot];
        entry.length = static_cast<std::uint16_t>(piece.size());
        entry.count = static_cast<std::uint16_t>(count);
        std::memcpy(entry.bytes, piece.data(), piece.size());
        std::memcpy(entry.ids, ids, count * sizeof *ids);
    }

private:
    static constexpr int short_bits = 17, long_bits = 14;   // 8 and 2 MiB: beyond a core's own cache, but fetched ahead
    static constexpr std::size_t short_pairs = std::size_t{1} << short_bits, long_slots = std::size_t{1} << long_bits;
    struct alignas(64) Pair {
        Short entries[2];
    };
    std::unique_ptr<Pair[]> short_;
    std::unique_ptr<Long[]> long_;
};
