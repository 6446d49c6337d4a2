#include "llmc/tokenizer/bpe/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <numeric>

#include "llmc/base/check.h"
#include "llmc/base/utf8.h"

namespace {

// Several numbers that one instruction works on.
template <class T, std::size_t count>
struct Lanes {
    using Values __attribute__((vector_size(count * sizeof(T)))) = T;
    Values values;

    static Lanes load(const T* at) {
        Lanes lanes;
        std::memcpy(&lanes.values, at, sizeof lanes.values);
        return lanes;
    }
    friend Lanes min(const Lanes& a, const Lanes& b) { return {a.values < b.values ? a.values : b.values}; }
    T least() const {
        if constexpr (count == 1) {
            return values[0];
        } else {
            Lanes<T, count / 2> halves[2];
            std::memcpy(halves, &values, sizeof values);
            return min(halves[0], halves[1]).least();
        }
    }
};

// Maps the bytes of ordinary tokens to their ids; the first of equal ones counts.
TokenIds index_tokens(const std::vector<std::string>& tokens, const std::vector<std::uint8_t>& is_special) {
    TokenIds ids(tokens.size());
    for (std::uint32_t id = 0; id < tokens.size(); id++) {
        if (!tokens[id].empty() && !is_special[id]) ids.try_emplace(tokens[id], id);
    }
    return ids;
}

std::uint32_t find_token(const TokenIds& ids, std::string_view bytes) {
    const auto found = ids.find(bytes);
    return found == ids.end() ? BpeModel::no_token : found->second;
}

}   // namespace

template <class Key>
void PairRanks<Key>::reserve(std::size_t pairs) {
    const std::size_t wanted = pairs * 5 / 4 / per_line + 1;   // at most four fifths full
    const int bits = std::max<int>(static_cast<int>(std::bit_width(wanted - 1)), 1);
    Line empty{};
    std::fill(std::begin(empty.ranks), std::end(empty.ranks), none);
    lines_.assign(std::size_t{1} << bits, empty);
    shift_ = 64 - bits;
}

template <class Key>
void PairRanks<Key>::add(std::uint32_t left, std::uint32_t right, std::uint32_t rank) {
    if (find(left, right) != none) return;
    const Key key = key_of(left, right);
    std::size_t at = line_of(key);
    while (lines_[at].ranks[per_line - 1] != none) at = (at + 1) & (lines_.size() - 1);
    auto place = std::find(std::begin(lines_[at].ranks), std::end(lines_[at].ranks), none);
    *place = rank;
    lines_[at].keys[place - std::begin(lines_[at].ranks)] = key;
}

template <class Key>
std::uint32_t PairRanks<Key>::find(std::uint32_t left, std::uint32_t right) const {
    using Keys = Lanes<Key, per_line>;
    using Ranks = Lanes<std::uint32_t, per_line>;
    const Key key = key_of(left, right);
    for (std::size_t at = line_of(key);; at = (at + 1) & (lines_.size() - 1)) {
        const Line& line = lines_[at];
        const auto differs = Keys::load(line.keys).values != key;   // all bits of a lane, or none
        const auto there = __builtin_convertvector(differs, typename Ranks::Values);
        const std::uint32_t found = Ranks{Ranks::load(line.ranks).values | there}.least();
        const bool was_full = line.ranks[per_line - 1] != none;
        // one branch, which is seldom taken: a second one, for whether it is found, could not be predicted
        if ((found != none) | !was_full) [[likely]]
            return found;
    }
}

std::vector<BpeMerge> all_merges(const std::vector<std::string>& tokens, const std::vector<std::uint8_t>& is_special) {
    const TokenIds ids = index_tokens(tokens, is_special);
    // only cuts into lengths that occur are looked up: a token of a megabyte has a million cuts to hash
    std::size_t longest = 0;
    for (const std::string& bytes : tokens) longest = std::max(longest, bytes.size());
    std::vector<bool> occurs(longest + 1);
    for (const std::string& bytes : tokens) occurs[bytes.size()] = true;
    std::vector<BpeMerge> merges;
    for (std::uint32_t id = 0; id < tokens.size(); id++) {
        if (is_special[id]) continue;
        std::string_view bytes = tokens[id];
        for (std::size_t cut = 1; cut < bytes.size(); cut++) {
            if (!occurs[cut] || !occurs[bytes.size() - cut]) continue;
            std::uint32_t left = find_token(ids, bytes.substr(0, cut));
            if (left == BpeModel::no_token) continue;
            std::uint32_t right = find_token(ids, bytes.substr(cut));
            if (right != BpeModel::no_token) merges.push_back({left, right, id, id});
        }
    }
    return merges;
}

BpeModel::BpeModel(const std::vector<std::string>& tokens, const std::vector<std::uint8_t>& is_special,
                   const std::vector<BpeMerge>& merges, bool whole_piece_first, std::optional<UnknownByte> unknown,
                   std::optional<ByteFallback> fallback)
    : token_ids_(index_tokens(tokens, is_special)),
      whole_piece_first_(whole_piece_first),
      unknown_(unknown),
      fallback_(fallback),
      all_bytes_(!fallback) {
    for (int byte = 0; byte < 256; byte++) {
        char c = static_cast<char>(byte);
        byte_ids_[byte] = find({&c, 1});
        all_bytes_ &= byte_ids_[byte] != no_token;
    }
    index_merges(merges, tokens.size());
    byte_ranks_.resize(0x10000);
    for (std::size_t i = 0; i < byte_ranks_.size(); i++)
        byte_ranks_[i] = rank_of(byte_ids_[i >> 8], byte_ids_[i & 255]);
}

void BpeModel::index_merges(const std::vector<BpeMerge>& merges, std::size_t vocab_size) {
    std::vector<std::uint32_t> order(merges.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return merges[a].priority < merges[b].priority; });
    narrow_ = vocab_size < std::size_t{1} << PairRanks<std::uint32_t>::id_bits;   // no_token is no pair's
    narrow_ ? narrow_ranks_.reserve(merges.size()) : wide_ranks_.reserve(merges.size());
    const BpeMerge* previous = nullptr;
    for (std::uint32_t i : order) {
        const BpeMerge& merge = merges[i];
        if (previous == nullptr || merge.priority != previous->priority) results_.push_back(merge.result);
        ENSURE(results_.back() == merge.result, "merges of priority ", merge.priority, " make different tokens");
        const std::uint32_t rank = static_cast<std::uint32_t>(results_.size() - 1);
        narrow_ ? narrow_ranks_.add(merge.left, merge.right, rank) : wide_ranks_.add(merge.left, merge.right, rank);
        previous = &merge;
    }
    first_result_ = results_.empty() ? 0 : results_.front();
    bool consecutive = true;
    for (std::size_t rank = 0; rank < results_.size(); rank++) consecutive &= results_[rank] == first_result_ + rank;
    if (consecutive) results_.clear();
}

inline std::uint32_t BpeModel::rank_of(std::uint32_t left, std::uint32_t right) const {
    return narrow_ ? narrow_ranks_.find(left, right) : wide_ranks_.find(left, right);
}

std::uint32_t BpeModel::find(std::string_view bytes) const { return find_token(token_ids_, bytes); }

void BpeModel::encode(std::string_view piece, Scratch& scratch, std::vector<std::uint32_t>& ids) const {
    if (whole_piece_first_) {
        std::uint32_t id = find(piece);
        if (id != no_token) {
            ids.push_back(id);
            return;
        }
    }
    if (piece.size() <= short_piece && all_bytes_) {
        encode_short(piece, ids);
    } else {
        encode_long(piece, scratch, ids);
    }
}

// Encodes with a bit for every part, at the place of its first byte, from 1 on; before and behind them is one that
// joins with nothing. Every part has a number, its rank with its right neighbour above its place: the least tells the
// next merge, the leftmost of equals.
void BpeModel::encode_short(std::string_view piece, std::vector<std::uint32_t>& out) const {
    constexpr std::size_t places = std::size_t{1} << place_bits, together = 8;
    constexpr std::uint32_t no_rank = no_merge >> place_bits;
    alignas(64) std::uint32_t numbers[places];
    std::uint32_t ids[places];
    const std::size_t end = piece.size() + 1, filled = end / together * together + together;
    const auto byte = [&](std::size_t place) { return std::size_t{static_cast<unsigned char>(piece[place - 1])}; };
    const auto number = [](std::uint32_t rank, std::size_t place) {
        return rank << place_bits | static_cast<std::uint32_t>(place);
    };
    const auto least_number = [&] {
        auto least = Lanes<std::uint32_t, together>::load(numbers);
        for (std::size_t i = together; i < filled; i += together) {
            least = min(least, Lanes<std::uint32_t, together>::load(numbers + i));
        }
        return least.least();
    };
    ids[0] = ids[end] = no_token;
    numbers[0] = no_merge;
    for (std::size_t place = 1; place < end; place++) ids[place] = byte_ids_[byte(place)];
    for (std::size_t place = 1; place + 1 < end; place++) {
        numbers[place] = number(byte_ranks_[byte(place) << 8 | byte(place + 1)], place);
    }
    for (std::size_t place = end - 1; place < filled; place++) numbers[place] = no_merge;
    std::uint64_t parts = (2ull << end) - 1;
    const auto part_behind = [&](std::size_t place) {
        return place + 1 + static_cast<std::size_t>(std::countr_zero(parts >> (place + 1)));
    };
    for (std::uint32_t next = least_number(); next >> place_bits != no_rank;) {
        const std::size_t place = next % places, joined = part_behind(place);
        const std::size_t before = place - 1 - static_cast<std::size_t>(std::countl_zero(parts << (places - place)));
        parts &= ~(1ull << joined);
        const std::size_t behind = part_behind(place);
        ids[place] = result_of(next >> place_bits);
        const std::uint32_t first = number(rank_of(ids[before], ids[place]), before);
        const std::uint32_t second = number(rank_of(ids[place], ids[behind]), place);
        // the least of the others is found while these two ranks are
        numbers[before] = numbers[place] = numbers[joined] = no_merge;
        next = std::min({least_number(), first, second});
        numbers[before] = first;
        numbers[place] = second;
    }
    parts &= ~(1ull << end | 1);
    std::size_t written = out.size();
    out.resize(written + static_cast<std::size_t>(std::popcount(parts)));
    for (; parts != 0; parts &= parts - 1) out[written++] = ids[std::countr_zero(parts)];
}

// Makes the parts that a piece begins with: the tokens of its bytes, and what becomes of those that have none.
void BpeModel::begin_with_bytes(std::string_view piece, std::vector<std::uint32_t>& ids) const {
    ids.clear();
    bool was_unknown = false;
    for (const char c : piece) {
        const std::uint32_t id = byte_ids_[static_cast<unsigned char>(c)];
        const bool is_unknown = id == no_token;
        if (!is_unknown) ids.push_back(id);
        if (is_unknown && unknown_ && !(was_unknown && unknown_->fuse)) ids.push_back(unknown_->id);
        was_unknown = is_unknown;
    }
}

// Makes the parts that a piece begins with: the tokens of its characters, or of their bytes. Bytes that are not UTF-8
// are characters of their own.
void BpeModel::begin_with_characters(std::string_view piece, std::vector<std::uint32_t>& ids) const {
    ids.clear();
    bool unknown_waits = false;   // as in the tokenizers package: until the next character that is a token
    const auto add_unknown = [&] {
        if (unknown_waits) ids.push_back(unknown_->id);
        unknown_waits = false;
    };
    while (!piece.empty()) {
        const bool valid = valid_utf8_prefix(piece.substr(0, 4)) > 0;
        const std::string_view character = piece.substr(0, valid ? decode_utf8(piece.data()).length : 1);
        piece.remove_prefix(character.size());
        const auto byte_id = [&](char c) { return (*fallback_)[static_cast<unsigned char>(c)]; };
        if (const std::uint32_t id = find(character); id != no_token) {
            add_unknown();
            ids.push_back(id);
        } else if (std::ranges::all_of(character, [&](char c) { return byte_id(c) != no_token; })) {
            std::ranges::transform(character, std::back_inserter(ids), byte_id);
        } else if (unknown_) {
            if (!unknown_->fuse) add_unknown();
            unknown_waits = true;
        }
    }
    add_unknown();
}

// Encodes with the parts in a linked list over their places; a heap holds (rank, position) of every possible merge.
// An entry is stale when the pair at its position changed since; it is then dropped when it comes up.
void BpeModel::encode_long(std::string_view piece, Scratch& s, std::vector<std::uint32_t>& out) const {
    constexpr std::uint32_t gone = no_token;
    fallback_ ? begin_with_characters(piece, s.ids) : begin_with_bytes(piece, s.ids);
    const std::uint32_t count = static_cast<std::uint32_t>(s.ids.size());
    s.next.resize(count);
    s.previous.resize(count);
    s.ranks.assign(count, no_merge);   // rank of the merge of a part with its right neighbour
    s.heap.clear();
    for (std::uint32_t i = 0; i < count; i++) {
        s.next[i] = i + 1;
        s.previous[i] = i - 1;   // for the first part 0 - 1, which is `gone`
    }
    auto heap_entry = [&](std::uint32_t i) { return std::uint64_t{s.ranks[i]} << 32 | i; };
    auto update = [&](std::uint32_t i, bool push) {
        s.ranks[i] = s.next[i] < count ? rank_of(s.ids[i], s.ids[s.next[i]]) : no_merge;
        if (s.ranks[i] == no_merge) return;
        s.heap.push_back(heap_entry(i));
        if (push) std::push_heap(s.heap.begin(), s.heap.end(), std::greater<>());
    };
    for (std::uint32_t i = 0; i + 1 < count; i++) update(i, false);
    std::make_heap(s.heap.begin(), s.heap.end(), std::greater<>());
    while (!s.heap.empty()) {
        std::pop_heap(s.heap.begin(), s.heap.end(), std::greater<>());
        std::uint64_t entry = s.heap.back();
        s.heap.pop_back();
        std::uint32_t i = static_cast<std::uint32_t>(entry);
        if (s.ids[i] == gone || s.ranks[i] == no_merge || heap_entry(i) != entry) continue;
        std::uint32_t right = s.next[i];
        s.ids[i] = result_of(s.ranks[i]);
        s.ids[right] = gone;
        s.next[i] = s.next[right];
        if (s.next[i] < count) s.previous[s.next[i]] = i;
        update(i, true);
        if (s.previous[i] != gone) update(s.previous[i], true);
    }
    for (std::uint32_t i = 0; i < count; i = s.next[i]) out.push_back(s.ids[i]);
}
