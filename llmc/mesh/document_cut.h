// Computes where documents begin, for each rank of a cut (context_cut.h). Pure functions.
//
// Documents are packed into sequences, and a token sees only its own document. A token's `start` is the position in the
// sequence where its document begins. Attention wants indices of keys: at step s of a ring, a rank has the keys of ring
// rank (own - s) mod N, in order, and a query sees no key before the first one at or after its start. first_keys counts
// the keys before that one; the count equals the number of keys where the query sees none. step_pairs counts what is
// seen at each step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "llmc/mesh/context_cut.h"

// Writes for each token the position of the last border up to it. `is_border(t)`: a document begins at token t. The
// first token of a sequence always begins one.
template <class IsBorder>
void document_starts(std::span<std::int32_t> starts, IsBorder is_border) {
    std::int32_t start = 0;
    for (std::size_t t = 0; t < starts.size(); t++) {
        if (is_border(t)) start = static_cast<std::int32_t>(t);
        starts[t] = start;
    }
}

// Returns where each query's window begins in its sequence, or its document if that begins later: (B, n) as `starts`.
inline std::vector<std::int32_t> window_starts(std::span<const std::int32_t> starts, const ContextCut& cut,
                                               std::int64_t T, std::int64_t window) {
    const std::vector<int> positions = token_positions(attended_ranges(cut, T));
    std::vector<std::int32_t> result(starts.begin(), starts.end());
    for (std::size_t i = 0; i < result.size(); i++) {
        const std::int64_t begin = positions[i % positions.size()] + 1 - window;
        result[i] = std::max(result[i], static_cast<std::int32_t>(std::max<std::int64_t>(begin, 0)));
    }
    return result;
}

// Writes first (ring steps, B, n): the first key that each of a rank's queries sees at each step, from the queries'
// `starts` (B, n), n = T / ring_size.
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

// Returns the (query, key) pairs that are seen at each ring step, from the result of first_keys for B sequences. Own
// queries see own keys up to themselves, those of a step's block all its keys from the first on.
inline std::vector<std::int64_t> step_pairs(std::span<const std::int32_t> first, const ContextCut& cut,
                                            std::int64_t B) {
    const int N = cut.ring_size();
    const auto n = static_cast<std::int64_t>(first.size()) / N / B;
    std::vector<std::int64_t> pairs(static_cast<std::size_t>(N), 0);
    for (int step = 0; step < N; step++) {
        const RingBlock block = ring_block(cut.ring_rank(), step, static_cast<int>(n));
        for (std::int64_t b = 0; b < B; b++) {
            const auto own = first.subspan(static_cast<std::size_t>((step * B + b) * n), static_cast<std::size_t>(n));
            for (int i = 0; i < block.queries; i++) {
                const int query = block.first_query + i, end = step == 0 ? query + 1 : block.keys;
                pairs[static_cast<std::size_t>(step)] += std::max(0, end - own[static_cast<std::size_t>(query)]);
            }
        }
    }
    return pairs;
}

// Writes each own token's position in its document, (B, T / cp), from the `starts` (B, n) of the rank's Ulysses group.
inline void document_positions(std::span<std::int32_t> positions, std::span<const std::int32_t> starts,
                               const ContextCut& cut, std::int64_t T) {
    const std::vector<int> local = token_positions(token_ranges(cut, T));
    const std::size_t n = static_cast<std::size_t>(T / cut.ring_size()), B = starts.size() / n;
    ENSURE(positions.size() == B * local.size(), positions.size(), " positions of ", B, " sequences");
    for (std::size_t b = 0; b < B; b++) {
        const std::size_t first = b * n + static_cast<std::size_t>(cut.ulysses_rank()) * local.size();
        for (std::size_t t = 0; t < local.size(); t++) positions[b * local.size() + t] = local[t] - starts[first + t];
    }
}

// Returns the number of (query, key) pairs that a rank's Ulysses group computes. The positions of its queries repeat
// for each sequence.
inline std::int64_t visible_pairs(std::span<const std::int32_t> starts, const ContextCut& cut, std::int64_t T) {
    const std::vector<int> positions = token_positions(attended_ranges(cut, T));
    std::int64_t pairs = 0;
    for (std::size_t i = 0; i < starts.size(); i++) pairs += positions[i % positions.size()] - starts[i] + 1;
    return pairs;
}
