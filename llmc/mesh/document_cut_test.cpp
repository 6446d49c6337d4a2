#include "llmc/mesh/document_cut.h"

#include <doctest/doctest.h>

#include "llmc/base/rng.h"

namespace {

// Documents that begin at random, the more often the larger `share` of 16.
std::vector<std::int32_t> random_starts(std::int64_t T, std::uint64_t key, int share) {
    std::vector<std::int32_t> starts(static_cast<std::size_t>(T));
    document_starts(std::span(starts),
                    [&](std::size_t t) { return static_cast<int>(mix64(key * 1000 + t) % 16) < share; });
    return starts;
}

}   // namespace

TEST_CASE("document cut: a query of a window of W sees itself and the W - 1 keys before, of its document alone") {
    const std::int64_t T = 48;
    std::vector<std::int32_t> documents(48, 0);
    for (std::size_t t = 20; t < 48; t++) documents[t] = t < 23 ? 20 : 23;
    for (const auto& [cp, ulysses] : std::vector<std::pair<int, int>>{{1, 1}, {4, 1}, {4, 2}}) {
        for (const std::int32_t window : {1, 5, 48}) {
            std::vector<std::int32_t> expected = documents;
            for (std::int32_t t = 0; t < 48; t++) {
                auto& start = expected[static_cast<std::size_t>(t)];
                start = std::max(start, t + 1 - window);
            }
            const ContextCut cut{cp, ulysses, cp - 1};
            const std::vector<TokenRange> ranges = attended_ranges(cut, T);
            const std::size_t n = token_positions(ranges).size();
            std::vector<std::int32_t> starts(2 * n), wanted(2 * n);   // two sequences
            for (const std::size_t at : {std::size_t{0}, n}) {
                take_ranges(std::span(starts).subspan(at, n), std::span<const std::int32_t>(documents), ranges);
                take_ranges(std::span(wanted).subspan(at, n), std::span<const std::int32_t>(expected), ranges);
            }
            CHECK(window_starts(starts, cut, T, window) == wanted);
            if (window > 1) continue;
            std::vector<std::int32_t> first(wanted.size() * static_cast<std::size_t>(cut.ring_size()));
            first_keys(first, wanted, cut, T);
            const std::vector<std::int64_t> seen = step_pairs(first, cut, 2);   // own keys alone
            CHECK(seen.front() == std::ssize(wanted));
            CHECK(std::ranges::count(seen, 0) == cut.ring_size() - 1);
        }
    }
}

TEST_CASE("document cut: every rank sees the keys of its queries' documents and no others, at every step of a ring") {
    const std::int64_t T = 48, B = 2;
    for (const auto& [cp, ulysses] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {3, 1}, {4, 2}, {4, 4}, {6, 2}}) {
        for (const int share : {0, 1, 4, 16}) {
            std::vector<std::vector<std::int32_t>> whole;
            for (std::int64_t b = 0; b < B; b++) {
                whole.push_back(random_starts(T, static_cast<std::uint64_t>(7 * b + share), share));
            }
            std::int64_t pairs = 0, expected_pairs = 0;
            for (const auto& starts : whole) {
                for (std::int64_t t = 0; t < T; t++) expected_pairs += t - starts[static_cast<std::size_t>(t)] + 1;
            }
            for (int rank = 0; rank < cp; rank++) {
                const ContextCut cut{cp, ulysses, rank};
                const std::vector<TokenRange> ranges = attended_ranges(cut, T);
                const std::vector<int> queries = token_positions(ranges), own = token_positions(token_ranges(cut, T));
                std::vector<std::int32_t> starts(queries.size() * B);
                for (std::size_t b = 0; b < B; b++) {
                    take_ranges(std::span(starts).subspan(b * queries.size(), queries.size()),
                                std::span<const std::int32_t>(whole[b]), ranges);
                }
                const int N = cut.ring_size();
                std::vector<std::int32_t> first(starts.size() * static_cast<std::size_t>(N));
                first_keys(first, starts, cut, T);
                const std::vector<std::int64_t> seen = step_pairs(first, cut, B);
                for (int step = 0; step < N; step++) {
                    const int from = (cut.ring_rank() + N - step) % N;
                    const std::vector<int> keys = token_positions(zigzag_ranges(N, from, T));
                    std::int64_t expected = 0;
                    for (std::size_t i = 0; i < starts.size(); i++) {
                        const int query = queries[i % queries.size()],
                                  start = whole[i / queries.size()][static_cast<std::size_t>(query)];
                        const auto at = static_cast<std::size_t>(step) * starts.size() + i;
                        for (std::size_t k = 0; k < keys.size(); k++) {
                            CHECK((static_cast<std::int32_t>(k) >= first[at]) == (keys[k] >= start));
                            expected += keys[k] >= start && keys[k] <= query;
                        }
                    }
                    CHECK(seen[static_cast<std::size_t>(step)] == expected);
                }
                std::vector<std::int32_t> positions(own.size() * B);
                document_positions(positions, starts, cut, T);
                for (std::size_t i = 0; i < positions.size(); i++) {
                    const int t = own[i % own.size()];
                    CHECK(positions[i] == t - whole[i / own.size()][static_cast<std::size_t>(t)]);
                }
                if (cut.ulysses_rank() == 0) pairs += visible_pairs(starts, cut, T);
            }
            CHECK(pairs == expected_pairs);
        }
    }
}

TEST_CASE("document cut: a step of a ring is passed over only where no query sees a key, wherever a document begins") {
    const std::int64_t T = 32;
    for (const int N : {2, 4}) {
        for (std::int64_t border = 1; border < T; border++) {   // also where one key alone is seen
            for (int rank = 0; rank < N; rank++) {
                const ContextCut cut{N, 1, rank};
                const std::vector<int> queries = token_positions(attended_ranges(cut, T));
                std::vector<std::int32_t> starts;
                for (const int query : queries) starts.push_back(query >= border ? static_cast<int>(border) : 0);
                std::vector<std::int32_t> first(starts.size() * static_cast<std::size_t>(N));
                first_keys(first, starts, cut, T);
                const std::vector<std::int64_t> seen = step_pairs(first, cut, 1);
                for (int step = 0; step < N; step++) {
                    bool any_seen = false;
                    for (const int key : token_positions(zigzag_ranges(N, (rank + N - step) % N, T))) {
                        for (std::size_t i = 0; i < queries.size(); i++) {
                            any_seen = any_seen || (key >= starts[i] && key <= queries[i]);
                        }
                    }
                    CHECK((seen[static_cast<std::size_t>(step)] > 0) == any_seen);
                }
            }
        }
    }
}
