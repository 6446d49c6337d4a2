#include "llmc/tokenizer/bpe/bpe.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "llmc/base/check.h"

namespace {

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
                   const std::vector<BpeMerge>& merges, bool whole_piece_first)
    : token_ids_(index_tokens(tokens, is_special)), whole_piece_first_(whole_piece_first) {
    for (int byte = 0; byte < 256; byte++) {
        char c = static_cast<char>(byte);
        byte_ids_[byte] = find({&c, 1});
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
    narrow_ = vocab_size <= std::size_t{1} << PairRanks<std::uint32_t>::id_bits;
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

std::uint32_t BpeModel::find(std::string_view bytes) const { return find_token(token_ids_, bytes); }

void BpeModel::encode(std::string_view piece, Scratch& scratch, std::vector<std::uint32_t>& ids) const {
    if (whole_piece_first_) {
        std::uint32_t id = find(piece);
        if (id != no_token) {
            ids.push_back(id);
            return;
        }
    }
    if (piece.size() <= short_piece) {
        encode_short(piece, ids);
    } else {
        encode_long(piece, scratch, ids);
    }
}

// Encodes in arrays on the stack: ids of the parts, and the merge of every part with its right neighbour.
void BpeModel::encode_short(std::string_view piece, std::vector<std::uint32_t>& out) const {
    std::uint32_t ids[short_piece], ranks[short_piece];
    std::size_t count = piece.size();
    auto byte = [&](std::size_t i) { return static_cast<unsigned char>(piece[i]); };
    for (std::size_t i = 0; i < count; i++) ids[i] = byte_ids_[byte(i)];
    for (std::size_t i = 0; i + 1 < count; i++) ranks[i] = byte_ranks_[std::size_t{byte(i)} << 8 | byte(i + 1)];
    while (count > 1) {
        std::size_t best = 0;
        for (std::size_t i = 1; i + 1 < count; i++) {
            if (ranks[i] < ranks[best]) best = i;   // the leftmost of equals, for the comparison is strict
        }
        if (ranks[best] == no_merge) break;
        ids[best] = result_of(ranks[best]);
        count--;
        for (std::size_t i = best + 1; i < count; i++) ids[i] = ids[i + 1];
        for (std::size_t i = best + 1; i + 1 < count; i++) ranks[i] = ranks[i + 1];
        if (best + 1 < count) ranks[best] = rank_of(ids[best], ids[best + 1]);
        if (best > 0) ranks[best - 1] = rank_of(ids[best - 1], ids[best]);
    }
    out.insert(out.end(), ids, ids + count);
}

// Encodes with the parts in a linked list over byte positions; a heap holds (rank, position) of every possible merge.
// An entry is stale when the pair at its position changed since; it is then dropped when it comes up.
void BpeModel::encode_long(std::string_view piece, Scratch& s, std::vector<std::uint32_t>& out) const {
    constexpr std::uint32_t gone = no_token;
    std::uint32_t count = static_cast<std::uint32_t>(piece.size());
    s.ids.resize(count);
    s.next.resize(count);
    s.previous.resize(count);
    s.ranks.assign(count, no_merge);   // rank of the merge of a part with its right neighbour
    s.heap.clear();
    for (std::uint32_t i = 0; i < count; i++) {
        s.ids[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
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
