// Remembers the ids of pieces: most of a text is made of few different words.
//
// Has three tables of fixed size, indexed by a hash. A new entry replaces an old one: the tables never change a result,
// only the time it takes. Short pieces of few tokens sit two to a cache line, medium ones take a line, long ones two.
// Every table looks in two places that one hash names, so that it fills up before words drive each other out. Ids are
// held in 16 bits where the vocabulary allows it, so that twice as many fit an entry.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>

#include "llmc/io/hash.h"

// Bytes of a short piece, zeros behind them, and its length in the last byte: two words that identify it.
struct ShortKey {
    std::uint64_t low, high;

    static constexpr std::uint32_t max_length = 15;
    static constexpr std::uint32_t load_bytes = 16;

    // Makes the key of a piece of 1 to 15 bytes. Reads 16 bytes at `at` whatever the length: they must be readable.
    static ShortKey load(const char* at, std::uint32_t length) {
        ShortKey key;
        std::memcpy(&key, at, load_bytes);
        key.low &= masks[length].low;
        key.high = (key.high & masks[length].high) | std::uint64_t{length} << 56;
        return key;
    }
    static ShortKey load_exactly(const char* at, std::uint32_t length) {
        char padded[load_bytes] = {};
        std::memcpy(padded, at, length);
        return load(padded, length);
    }
    std::string bytes() const {
        char all[load_bytes];
        std::memcpy(all, this, load_bytes);
        return std::string(all, static_cast<std::size_t>(high >> 56));
    }
    static ShortKey none() { return {0, 1}; }   // equals no piece's key, and no empty slot
    // Multiplies both words, and folds both halves of the product.
    std::uint64_t hash() const {
        __extension__ using Wide = unsigned __int128;
        Wide product = static_cast<Wide>(low ^ 0x9e3779b97f4a7c15ull) * (high ^ 0xff51afd7ed558ccdull);
        return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    }
    bool operator==(const ShortKey& other) const { return ((low ^ other.low) | (high ^ other.high)) == 0; }

    static const ShortKey masks[max_length + 1];   // the bytes of a piece, by its length
};
inline constexpr ShortKey ShortKey::masks[] = {
    {0, 0},
    {~0ull >> 56, 0},
    {~0ull >> 48, 0},
    {~0ull >> 40, 0},
    {~0ull >> 32, 0},
    {~0ull >> 24, 0},
    {~0ull >> 16, 0},
    {~0ull >> 8, 0},
    {~0ull, 0},
    {~0ull, ~0ull >> 56},
    {~0ull, ~0ull >> 48},
    {~0ull, ~0ull >> 40},
    {~0ull, ~0ull >> 32},
    {~0ull, ~0ull >> 24},
    {~0ull, ~0ull >> 16},
    {~0ull, ~0ull >> 8},
};

// Holds an array of zeros, on large pages where the system has them: a random access then seldom misses the TLB.
template <class T>
class ZeroedTable {
public:
    explicit ZeroedTable(std::size_t count) : entries_(allocate(count * sizeof(T))) {}
    T& operator[](std::size_t i) const { return entries_.get()[i]; }

private:
    static constexpr std::size_t large_page = 2 << 20;
    struct Free {
        void operator()(T* at) const { std::free(at); }
    };
    static T* allocate(std::size_t bytes) {
        void* memory = std::aligned_alloc(large_page, (bytes + large_page - 1) / large_page * large_page);
        if (memory == nullptr) throw std::bad_alloc();
        ::madvise(memory, bytes, MADV_HUGEPAGE);   // only a wish: if refused, all works the same
        std::memset(memory, 0, bytes);
        return static_cast<T*>(memory);
    }
    std::unique_ptr<T, Free> entries_;
};

// Holds a piece in one half and its ids in the other.
template <class Id, std::size_t entry_bytes>
struct alignas(entry_bytes) PieceEntry {
    static constexpr std::uint32_t max_length = entry_bytes / 2, max_ids = (entry_bytes / 2 - 2) / sizeof(Id);
    static constexpr std::uint32_t together = 8;   // ids that are copied at once
    static constexpr std::uint32_t most_written = (max_ids + together - 1) / together * together;
    Id ids[max_ids];
    std::uint8_t length;   // 0: an empty slot
    std::uint8_t count;
    char bytes[max_length];

    static bool holds(std::string_view piece, std::size_t count) {
        return piece.size() <= max_length && count <= max_ids;
    }
    bool is(std::string_view piece) const {
        return length == piece.size() && std::memcmp(bytes, piece.data(), piece.size()) == 0;
    }
    // Writes up to most_written ids, of which those behind `count` mean nothing; returns where the next ones belong.
    std::uint32_t* write(std::uint32_t* out) const {
        for (std::uint32_t i = 0; i < count; i += together) {
            Id copy[together];
            std::memcpy(copy, reinterpret_cast<const char*>(this) + i * sizeof(Id), sizeof copy);
            for (std::uint32_t j = 0; j < together; j++) out[i + j] = copy[j];
        }
        return out + count;
    }
};

// Holds entries in pairs. A piece goes to the first free one of two pairs that its hash names, else it replaces one.
template <class Entry>
class PieceTable {
public:
    explicit PieceTable(int bits) : bits_(bits), entries_(std::size_t{1} << bits) {}

    void prefetch(std::uint64_t hash) const {
        const Entry& entry = entries_[slots(hash)[0]];
        __builtin_prefetch(&entry);
        __builtin_prefetch(entry.bytes);
    }
    const Entry* find(std::uint64_t hash, std::string_view piece) const {
        for (std::size_t slot : slots(hash)) {
            const Entry& entry = entries_[slot];
            if (entry.is(piece)) return &entry;
            if (entry.length == 0) break;
        }
        return nullptr;
    }
    void remember(std::uint64_t hash, std::string_view piece, const std::uint32_t* ids, std::size_t count) {
        const std::array<std::size_t, 4> all = slots(hash);
        const auto free = std::find_if(all.begin(), all.end(), [&](std::size_t i) { return entries_[i].length == 0; });
        Entry& entry = entries_[free == all.end() ? all[0] : *free];
        entry.length = static_cast<std::uint8_t>(piece.size());
        entry.count = static_cast<std::uint8_t>(count);
        std::memcpy(entry.bytes, piece.data(), piece.size());
        for (std::size_t i = 0; i < count; i++) entry.ids[i] = static_cast<Id>(ids[i]);
    }

private:
    using Id = std::remove_all_extents_t<decltype(Entry::ids)>;
    std::array<std::size_t, 4> slots(std::uint64_t hash) const {
        const std::size_t first = hash >> (64 - bits_), second = hash << bits_ >> (64 - bits_);
        return {first, first ^ 1, second, second ^ 1};
    }
    int bits_;
    ZeroedTable<Entry> entries_;
};

// Sizes in bits of a slot's number: 16, 8 and 4 MiB, beyond a core's own cache, but fetched ahead.
template <class Id, int short_bits = 18, int medium_bits = 17, int long_bits = 15>
class PieceCache {
public:
    using Medium = PieceEntry<Id, 64>;
    using Long = PieceEntry<Id, 128>;
    static_assert(sizeof(Medium) == 64 && sizeof(Long) == 128);

    struct Short {
        static constexpr std::uint32_t max_ids = 16 / sizeof(Id) - 1;   // 7 or 3
        static constexpr Id in_long =
            std::numeric_limits<Id>::max();   // as count: too many ids, look in the other tables
        ShortKey key;                         // length 0: an empty slot
        Id ids[max_ids + 1];                  // and their count as the last
        Id count() const { return ids[max_ids]; }
        // Writes max_ids + 1 ids, of which those behind count() mean nothing; returns where the next ones belong.
        std::uint32_t* write(std::uint32_t* out) const {
            Id copy[max_ids + 1];   // which cannot overlap `out`: the loop becomes one vector instruction
            std::memcpy(copy, ids, sizeof copy);
            for (std::uint32_t i = 0; i <= max_ids; i++) out[i] = copy[i];
            return out + count();
        }
    };
    static_assert(sizeof(Short) == 32);

    static std::size_t short_slot(const ShortKey& key) { return key.hash() >> (64 - short_bits); }
    void prefetch_short(std::size_t slot) const { __builtin_prefetch(&short_[slot]); }

    const Short* find(std::size_t slot, const ShortKey& key) const {
        const Pair& pair = short_[slot];
        const bool first = pair.entries[0].key == key, second = pair.entries[1].key == key;
        return (first | second) ? &pair.entries[second] : nullptr;   // a branch for each could not be predicted
    }
    // Finds a piece that went to its second slot, for its first one was full.
    const Short* find_second(std::size_t slot, const ShortKey& key) const {
        return short_[slot].has_room() ? nullptr : find(second_slot(key), key);
    }
    // Stores a piece: in its first slot, or in its second one if only that has a free entry. The first entry of a pair
    // stays for long and the second changes, so that rare words do not drive out common ones.
    void remember(std::size_t slot, const ShortKey& key, const std::uint32_t* ids, std::size_t count) {
        Pair* pair = &short_[slot];
        if (!pair->has_room() && short_[second_slot(key)].has_room()) pair = &short_[second_slot(key)];
        const bool first_is_free = pair->entries[0].key.high == 0;
        if (!pair->has_room() && ++replaced_ % promote_every == 0) pair->entries[0] = pair->entries[1];
        Short& entry = pair->entries[first_is_free ? 0 : 1];
        entry.key = key;
        entry.ids[Short::max_ids] = count <= Short::max_ids ? static_cast<Id>(count) : Short::in_long;
        if (entry.count() == Short::in_long) return;
        for (std::size_t i = 0; i < count; i++) entry.ids[i] = static_cast<Id>(ids[i]);
    }

    static constexpr std::size_t max_length = Long::max_length;
    static constexpr std::uint32_t most_written = Long::most_written;
    // Fetches where a piece that no short entry holds may be.
    void prefetch(std::uint64_t hash) const {
        medium_.prefetch(hash);
        long_.prefetch(hash);
    }
    // Writes up to most_written ids, of which only the piece's own mean something; returns where the next ones belong,
    // or nullptr for a piece that is not there.
    std::uint32_t* write(std::uint64_t hash, std::string_view piece, std::uint32_t* out) const {
        if (const Medium* known = medium_.find(hash, piece)) return known->write(out);
        if (const Long* known = long_.find(hash, piece)) return known->write(out);
        return nullptr;
    }
    void remember(std::uint64_t hash, std::string_view piece, const std::uint32_t* ids, std::size_t count) {
        if (Medium::holds(piece, count)) {
            medium_.remember(hash, piece, ids, count);
        } else if (Long::holds(piece, count)) {
            long_.remember(hash, piece, ids, count);
        }
    }

private:
    static std::size_t second_slot(const ShortKey& key) { return key.hash() << short_bits >> (64 - short_bits); }
    static constexpr unsigned promote_every = 8;
    struct alignas(64) Pair {
        Short entries[2];
        bool has_room() const { return entries[1].key.high == 0; }
    };
    ZeroedTable<Pair> short_{std::size_t{1} << short_bits};
    PieceTable<Medium> medium_{medium_bits};
    PieceTable<Long> long_{long_bits};
    unsigned replaced_ = 0;
};
