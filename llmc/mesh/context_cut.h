// Computes which tokens of a sequence a rank has under context parallelism. Pure functions.
//
// The cp ranks are rings of Ulysses groups: rank = ring rank x ulysses + rank in the group, so that a group's ranks are
// neighbours. A ring of N cuts the sequence into 2N slices, and ring rank r has slices r and 2N - 1 - r (zigzag, as in
// Llama 3's training, 2024): under a causal mask every ring rank then has the same number of (query, key) pairs. The
// ranks of a group share these tokens in their order. ulysses = 1 is a ring alone; ulysses = cp leaves one ring rank,
// whose two slices are the whole sequence.
//
// A sequence must be a multiple of 2 cp tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "llmc/base/ensure.h"

struct TokenRange {
    std::int64_t begin, length;
    friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

struct ContextCut {
    int cp = 1;        // ranks that share a sequence
    int ulysses = 1;   // ranks of a group that exchanges heads for tokens; divides cp
    int rank = 0;      // rank among the cp ranks

    int ring_size() const { return cp / ulysses; }
    int ring_rank() const { return rank / ulysses; }
    int ulysses_rank() const { return rank % ulysses; }
    // Return the cp ranks of this rank's ring, in the order of the ring, and of its Ulysses group.
    std::vector<int> ring_members() const;
    std::vector<int> ulysses_members() const;
};

// Returns the tokens of ring rank `ring_rank` of `ring_size`, in order, out of T.
std::vector<TokenRange> zigzag_ranges(int ring_size, int ring_rank, std::int64_t T);

// Queries from `first_query` on, and keys from the first on, of a step of a ring.
struct RingBlock {
    int first_query, queries, keys;
};

// Returns what a ring rank with n tokens attends to at a step, with the keys of ring rank (own - step) mod N: of an
// earlier rank's keys all queries see the first half; of a later rank's the second half of the queries see all.
inline RingBlock ring_block(int ring_rank, int step, int n) {
    if (step == 0) return {0, n, n};
    if (step <= ring_rank) return {0, n, n / 2};
    return {n / 2, n / 2, n};
}

// Returns the tokens of a rank, in order: T / cp of them, in one range or two.
std::vector<TokenRange> token_ranges(const ContextCut& cut, std::int64_t T);

// Copies the values of these ranges out of a whole sequence, one range after another.
template <class T>
void take_ranges(std::span<T> local, std::span<const T> whole, const std::vector<TokenRange>& ranges) {
    auto to = local.begin();
    for (const TokenRange& range : ranges) {
        const auto part = whole.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.length));
        ENSURE(local.end() - to >= std::ssize(part), "more tokens than room");
        to = std::copy(part.begin(), part.end(), to);
    }
}

// Returns the tokens of a rank's Ulysses group, T / ring_size of them in order. They are the queries of its attention
// and the keys of its first ring step.
std::vector<TokenRange> attended_ranges(const ContextCut& cut, std::int64_t T);

// Returns the position in the sequence of each of a rank's tokens.
std::vector<int> token_positions(const std::vector<TokenRange>& ranges);
