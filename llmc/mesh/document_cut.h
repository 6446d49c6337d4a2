// Where documents begin, as each rank of a cut (context_cut.h) reads it. Pure functions.
//
// Documents are packed into sequences, and a token sees only its own: its `start` is the position where that begins, in
// its sequence. Attention compares numbers of keys: at step s of a ring the keys at hand are those of ring rank
// (own - s) mod N, in order, and a query sees none before the first that is not below its start. All of them, and no
// key, are seen where documents say so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "llmc/mesh/context_cut.h"

// Of each token the position of the last border up to it: `is_border(t)`, where a document begins at token t. The first
// token of a sequence begins one too.
template <class IsBorder>
void document_starts(std::span<std::int32_t> starts, IsBorder is_border) {
    std::int32_t start = 0;
    for (std::size_t t = 0; t < starts.size(); t++) {
        if (is_border(t)) start = static_cast<std::int32_t>(t);
        starts[t] = start;
    }
}

// first (ring steps, B, n): of each of a rank's queries the first key that it sees at each step, from their `starts`
// (B, n), n = T / ring_size.
inline void first_keys(std::span<std::int32_t> first, std::span<const std::int32_t> starts, const ContextCut& cut,
                       std::int64_t T) {
    const int N = cut.ring_size();
    ENSURE(first.size() == static_cast<std::size_t>(N) * starts.size(), first.size(), " first keys of ", starts.size(),
           " queries in a ring of ", N);
    auto to = first.begin();
    for (int step = 0; step < N; step++) {
        const std::vector<TokenRange> keys = zigzag_ranges(N, (cut.ring_rank() + N - step) % N, T);
        for (const std::int32_t start : starts) {
            std::int64_t before = 0;
            for (const TokenRange& range : keys)
                before += std::clamp<std::int64_t>(start - range.begin, 0, range.length);
            *to++ = static_cast<std::int32_t>(before);
        }
    }
}

// Of each step of a ring whether none of its queries sees one of its keys, from what first_keys gives of B sequences.
// At those of earlier ranks all queries look at the first half of the keys, at those of later ones the second half at
// all.
inline std::vector<char> hidden_steps(std::span<const std::int32_t> first, const ContextCut& cut, std::int64_t B) {
    const auto N = static_cast<std::size_t>(cut.ring_size()), n = first.size() / N / static_cast<std::size_t>(B);
    std::vector<char> hidden(N, 0);
    for (std::size_t step = 1; step < N; step++) {
        const bool earlier = static_cast<int>(step) <= cut.ring_rank();
        const std::size_t query = earlier ? 0 : n / 2, keys = earlier ? n / 2 : n;
        hidden[step] = 1;
        for (std::size_t b = 0; b < static_cast<std::size_t>(B); b++) {   // the first query sees the most
            const auto at = (step * static_cast<std::size_t>(B) + b) * n + query;
            if (first[at] < static_cast<std::int32_t>(keys)) hidden[step] = 0;
        }
    }
    return hidden;
}

// Of each of a rank's own tokens its place in its document, (B, T / cp), from the `starts` of the group's (B, n).
inline void document_positions(std::span<std::int32_t> positions, std::span<const std::int32_t> starts,
                               const ContextCut& cut, std::int64_t T) {
    const std::vector<int> own = token_positions(token_ranges(cut, T));
    const std::size_t n = static_cast<std::size_t>(T / cut.ring_size()), B = starts.size() / n;
    ENSURE(positions.size() == B * own.size(), positions.size(), " positions of ", B, " sequences");
    for (std::size_t b = 0; b < B; b++) {
        const std::size_t first = b * n + static_cast<std::size_t>(cut.ulysses_rank()) * own.size();
        for (std::size_t t = 0; t < own.size(); t++) positions[b * own.size() + t] = own[t] - starts[first + t];
    }
}

// Pairs of a query and a key that a rank's group computes: of its queries, whose positions repeat for each sequence.
inline std::int64_t visible_pairs(std::span<const std::int32_t> starts, const ContextCut& cut, std::int64_t T) {
    const std::vector<int> positions = token_positions(attended_ranges(cut, T));
    std::int64_t pairs = 0;
    for (std::size_t i = 0; i < starts.size(); i++) pairs += positions[i % positions.size()] - starts[i] + 1;
    return pairs;
}
